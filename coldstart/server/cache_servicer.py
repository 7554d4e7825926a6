"""Cache service: translates between cache.proto and `Lookups`. No policy."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from coldstart import __version__, wire
from coldstart.artifact import Artifact
from coldstart.config import DaemonConfig
from coldstart.errors import ArtifactMismatch, InvalidRequest, TierError
from coldstart.identity.key import SCHEME
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc
from coldstart.server.answers import (
    Answer,
    Asker,
    FinalAnswer,
    Hit,
    Leased,
    NeedDescriptor,
    Refused,
    Rewritten,
    Waiting,
)
from coldstart.server.checks import read_header
from coldstart.server.holdings import Holdings
from coldstart.server.lookups import Lookups
from coldstart.server.peers import Peers
from coldstart.server.publisher import Publication, Published
from coldstart.server.tally import Ending
from coldstart.server.uploads import Uploads
from coldstart.trust.roles import Peer

# Of one message of a fetch. gRPC holds some copies of each that is under way, and there may be a hundred streams.
FETCH_BYTES = 128 << 10
MAX_TEXT = 256  # of names that people read
MAX_NOTICE = 2000
NOTICES = (Reason.GROUP_MISMATCH,)
MAX_SECONDS = 1e7  # what a client may claim that something took

T = TypeVar("T")


class CacheServicer(cache_pb2_grpc.CacheServicer):
    """The wire's side of the lookup table."""

    def __init__(
        self, lookups: Lookups, config: DaemonConfig, holdings: Holdings, peers: Peers
    ) -> None:
        self._lookups = lookups
        self._peers = peers
        self._config = config
        self._holdings = holdings
        self._uploads = Uploads(lookups.publish)
        self._host = socket.gethostname()

    async def Hello(self, request: pb.HelloRequest, context: Any) -> pb.HelloReply:
        volume = None
        nonce_path = await self._holdings.nonce_path()
        if nonce_path:
            volume = pb.Volume(root=str(self._holdings.volume_root), nonce_path=nonce_path)
        return pb.HelloReply(
            daemon_version=__version__,
            scheme=SCHEME,
            mode=wire.mode_to_pb(self._lookups.mode),
            volume=volume,
            min_compile_seconds=self._config.min_compile_seconds,
            lease_seconds=self._config.lease_seconds,
            heartbeat_seconds=self._config.heartbeat_seconds,
        )

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupReply:
        asker = self._asker(request, self._peers.of(context))
        asked = request.WhichOneof("asked")
        if asked == "raw_digest":
            return self._reply(
                await self._lookups.ask_raw(asker, request.raw_digest, may_hit=request.may_hit)
            )
        if asked == "descriptor":
            return self._reply(await self._lookups.ask_descriptor(asker, request.descriptor))
        if asked == "record":
            record = wire.record_from_pb(request.record)
            return self._reply(await self._lookups.ask_record(asker, record))
        if asked == "final_program":
            return self._final_reply(await self._ask_final(asker, request.final_program))
        raise InvalidRequest(
            "a lookup asks by raw_digest, descriptor, record or final_program; none is set"
        )

    async def _ask_final(self, asker: Asker, program: pb.FinalProgram) -> FinalAnswer:
        parts = wire.final_parts_from_pb(program.record)
        return await self._lookups.ask_final(asker, program.descriptor, parts)

    async def Await(self, request: pb.AwaitRequest, context: Any) -> pb.LookupReply:
        seconds = _seconds("max_wait_seconds", request.max_wait_seconds)
        return self._reply(await self._lookups.wait(request.lookup_id, request.key, seconds))

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        artifact = await self._lookups.fetch(request.lookup_id, request.key, request.digest)
        if artifact is None:
            raise ArtifactMismatch(
                f"{request.key[:16]} {request.digest[:12]} is gone; look it up again",
                reason=Reason.EVICTED.value,
            )
        yield pb.Chunk(data=artifact.header.prefix())
        async for chunk in _read(artifact):
            yield pb.Chunk(data=chunk)

    async def Reject(self, request: pb.RejectRequest, context: Any) -> pb.LookupReply:
        reason = wire.reason_from_pb(request.reason)
        return self._reply(
            await self._lookups.reject(request.lookup_id, request.key, request.digest, reason)
        )

    async def Publish(
        self, requests: AsyncIterator[pb.PublishRequest], context: Any
    ) -> pb.PublishReply:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "start":
            raise InvalidRequest("a publish begins with its start, not with data")
        published = await self._lookups.publish(
            self._publication(first.start, context), _data(requests)
        )
        return _published(published)

    async def Upload(self, request: pb.UploadRequest, context: Any) -> pb.UploadReply:
        if request.HasField("start"):
            self._uploads.begin(request.upload_id, self._publication(request.start, context))
        published = await self._uploads.feed(request.upload_id, request.data, last=request.last)
        return pb.UploadReply(published=None if published is None else _published(published))

    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:
        return pb.RenewReply(seconds=await self._lookups.renew(request.lease_id))

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        await self._lookups.release(request.lease_id)
        return pb.ReleaseReply()

    async def Fail(self, request: pb.FailRequest, context: Any) -> pb.FailReply:
        reason = wire.reason_from_pb(request.kind)
        await self._lookups.fail(request.lease_id, reason, request.message)
        return pb.FailReply()

    async def Finish(self, request: pb.FinishRequest, context: Any) -> pb.FinishReply:
        if request.outcome == pb.OUTCOME_UNSPECIFIED or request.reason == pb.REASON_UNSPECIFIED:
            raise InvalidRequest("a lookup ends with an outcome and a reason; one is not set")
        outcome = wire.outcome_from_pb(request.outcome)
        ending = Ending(
            outcome=outcome,
            reason=wire.reason_from_pb(request.reason),
            tier=request.tier if outcome is Outcome.HIT else "",
            program_name=request.program_name[:MAX_TEXT],
            compile_seconds=_seconds("compile_seconds", request.compile_seconds),
            fetch_seconds=_seconds("fetch_seconds", request.fetch_seconds),
            load_seconds=_seconds("load_seconds", request.load_seconds),
            identify_seconds=_seconds("identify_seconds", request.identify_seconds),
            wait_seconds=_seconds("wait_seconds", request.wait_seconds),
        )
        await self._lookups.finish(request.lookup_id, request.key, ending)
        return pb.FinishReply()

    async def Notice(self, request: pb.NoticeRequest, context: Any) -> pb.NoticeReply:
        reason = wire.reason_from_pb(request.reason)
        if reason not in NOTICES:
            raise InvalidRequest(f"a notice is about {', '.join(NOTICES)}, not about {reason}")
        who, program = request.holder[:MAX_TEXT], request.program_name[:MAX_TEXT]
        self._lookups.notice(reason, f"{who}: {program}: {request.message[:MAX_NOTICE]}")
        return pb.NoticeReply()

    async def Batch(self, request: pb.BatchRequest, context: Any) -> pb.BatchReply:
        features = frozenset(request.host.cpu_features)
        planned = request.host.planned
        answers = await self._lookups.batch(request.keys, features, planned=planned)
        return pb.BatchReply(
            answers=[
                pb.KeyAnswer(
                    key=answer.key,
                    state=wire.key_state_to_pb(answer.state),
                    digest=answer.digest,
                    compile_seconds=answer.compile_seconds,
                )
                for answer in answers
            ]
        )

    async def GetRecord(self, request: pb.GetRecordRequest, context: Any) -> pb.GetRecordReply:
        record = await self._lookups.record(request.key)
        if record is None:
            return pb.GetRecordReply(found=False)
        return pb.GetRecordReply(found=True, record=wire.record_to_pb(record))

    def _asker(self, request: pb.LookupRequest, peer: Peer) -> Asker:
        host = request.host
        mode = (
            self._lookups.mode if host.mode == pb.MODE_UNSPECIFIED else wire.mode_from_pb(host.mode)
        )
        return Asker(
            lookup_id=request.lookup_id,
            holder=request.holder[:MAX_TEXT] or "somebody unnamed",
            namespace=request.namespace,
            cpu_features=frozenset(host.cpu_features),
            sees_volume=self._holdings.proves(host.volume_proof),
            mode=mode,
            planned=host.planned,
            estimate_seconds=_seconds("estimate_seconds", request.estimate_seconds),
            only_reads=peer.only_reads,
        )

    def _publication(self, start: pb.PublishStart, context: Any) -> Publication:
        return Publication(
            lookup_id=start.lookup_id,
            lease_id=start.lease_id,
            header=read_header(start.header),
            record=wire.record_from_pb(start.record),
            planned=start.planned,
            producer=f"{self._peers.of(context).identity}@{self._host}",
        )

    def _reply(self, answer: Answer) -> pb.LookupReply:
        reply = pb.LookupReply(mode=wire.mode_to_pb(self._lookups.mode))
        if isinstance(answer, NeedDescriptor):
            reply.need_descriptor.SetInParent()
            return reply
        if isinstance(answer, Rewritten):
            reply.rewrites.SetInParent()
            reply.rewrites.rewrites.extend(
                wire.rewrite_to_pb(rewrite) for rewrite in answer.rewrites
            )
            return reply
        reply.key = answer.key
        if isinstance(answer, Hit):
            reply.hit.CopyFrom(
                pb.Hit(
                    header=answer.header.encode(),
                    path=answer.path,
                    tier=answer.tier,
                    waited=answer.waited,
                    signature=answer.header.signature,
                    record=wire.record_to_pb(answer.record) if answer.record else None,
                )
            )
        elif isinstance(answer, Leased):
            reply.lease.CopyFrom(
                pb.Lease(
                    lease_id=answer.lease_id,
                    seconds=answer.seconds,
                    reason=wire.reason_to_pb(answer.reason),
                )
            )
        elif isinstance(answer, Waiting):
            reply.wait.CopyFrom(
                pb.Wait(
                    holder=answer.holder,
                    estimate_seconds=answer.estimate_seconds,
                    max_wait_seconds=answer.max_wait_seconds,
                )
            )
        elif isinstance(answer, Refused):
            reply.refused.CopyFrom(
                pb.Refused(reason=wire.reason_to_pb(answer.reason), message=answer.message)
            )
        return reply

    def _final_reply(self, final: FinalAnswer) -> pb.LookupReply:
        reply = self._reply(final.answer)
        if final.record is not None:
            reply.record.CopyFrom(wire.record_to_pb(final.record))
        answer = reply.WhichOneof("answer")
        if answer in ("hit", "lease", "wait"):
            rewrites = getattr(reply, answer).rewrites
            rewrites.extend(wire.rewrite_to_pb(rewrite) for rewrite in final.rewrites)
        return reply


async def _read(artifact: Artifact) -> AsyncIterator[bytes]:
    """An artifact's payload, read off the event loop."""
    chunks = artifact.payload.chunks(FETCH_BYTES)
    while True:
        try:
            chunk = await asyncio.to_thread(_next, chunks.__next__)
        except OSError as exc:
            raise TierError(
                f"{artifact.header.key[:16]}: the copy can't be read: {exc.strerror}"
            ) from exc
        if chunk is None:
            return
        yield chunk


def _next(step: Callable[[], T]) -> T | None:
    """One step; None at the end, as StopIteration can't leave a thread."""
    try:
        return step()
    except StopIteration:
        return None


async def _data(requests: AsyncIterator[pb.PublishRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "data":
            raise InvalidRequest("after the start of a publish only data may follow")
        yield request.data


def _seconds(name: str, value: float) -> float:
    if not math.isfinite(value) or not 0 <= value <= MAX_SECONDS:
        raise InvalidRequest(f"{name} is not a sensible number of seconds: {value!r}")
    return value


def _published(published: Published) -> pb.PublishReply:
    kept = published.kept_local
    return pb.PublishReply(
        digest=published.digest,
        adopted=published.adopted,
        kept_local=pb.REASON_UNSPECIFIED if kept is None else wire.reason_to_pb(kept),
    )
