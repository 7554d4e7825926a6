"""Publisher: what the holder of a lease owes the others. Sends in the background, beats until that is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from coldstart import artifact, wire
from coldstart.client import host, jax_internals
from coldstart.client.client import CacheClient
from coldstart.client.heartbeat import Heartbeat
from coldstart.client.jax_internals import CompileRequest
from coldstart.client.lookup import Lookup
from coldstart.client.outbox import Outbox
from coldstart.client.rewriting import described
from coldstart.errors import ArtifactError, DaemonError, DaemonTimeout, LeaseLost, NotAllowed
from coldstart.outcomes import Reason
from coldstart.rpc.v1 import cache_pb2 as pb

log = logging.getLogger("coldstart")

# A compile of this length can bear a description, which takes a hundredth of it at most.
DESCRIBE_FROM_SECONDS = 0.5
DESCRIBE_SECONDS = 10.0
PUBLISH_IDLE_SECONDS = 10.0  # for each piece; in the background, so nobody waits for it


# A compile that fails so may well succeed where the handler, the plug-in or the memory is there.
_LACKING = ("NOT_FOUND", "UNIMPLEMENTED", "FFI handler", "Cannot allocate memory", "bad_alloc")


class Publisher:
    """One process's publishing side. Thread-safe."""

    def __init__(
        self,
        outbox: Outbox,
        heartbeat: Heartbeat,
        warn: Callable[[str], None],
        not_stored: Callable[[Reason], None],
    ) -> None:
        self._outbox = outbox
        self._heartbeat = heartbeat
        self._warn = warn
        self._not_stored = not_stored  # counts a program that nobody else will find

    def publish(
        self,
        lookup: Lookup,
        request: CompileRequest,
        executable: Any,
        client: CacheClient,
        lease_id: str,
    ) -> None:
        """Serialize now, encode and send in the background; the lease lives until that is done."""
        try:
            raw = jax_internals.serialize(executable, request)
        except Exception as exc:
            self._warn(f"{request.module_name} can't be serialized, so it is not shared: {exc}")
            self._not_stored(Reason.UNSHAREABLE)
            if lease_id:
                self.release(client, lease_id)
            return
        identity, seconds = lookup.identity, lookup.seconds["compile"]

        def send() -> None:
            try:
                made = artifact.make(
                    raw,
                    key=identity.key,
                    module_digest=identity.record.module_digest,
                    platform=request.platform,
                    target=identity.target,
                    partitions=identity.partitions,
                    replicas=identity.replicas,
                    callbacks=identity.callbacks,
                    cpu_features=host.cpu_features() if identity.is_cpu else (),
                    compile_seconds=round(seconds, 6),
                    created_unix=round(time.time(), 3),
                    producer=host.holder(),
                    program_name=identity.record.program_name,
                    compiler=str(request.backend.platform_version),
                )
                start = pb.PublishStart(
                    lookup_id=lookup.id,
                    lease_id=lease_id,
                    header=made.header.encode(),
                    record=wire.record_to_pb(identity.record),
                    planned=lookup.planned,
                )
                reply = client.publish(start, made.payload.chunks(), PUBLISH_IDLE_SECONDS)
                if reply.kept_local:
                    reason = wire.reason_from_pb(reply.kept_local)
                    self._not_stored(reason)
                    log.info(
                        "%s: the daemon did not store it: %s", made.header.program_name, reason
                    )
            except Exception as exc:
                self._not_stored(_why_unsent(exc))
                raise
            finally:
                self._heartbeat.stop(lease_id)

        if not self._outbox.put(f"publish {identity.record.program_name}", send, len(raw)):
            self._heartbeat.stop(lease_id)  # or everybody would wait for it until the end
            self._not_stored(Reason.QUOTA)

    def release(self, client: CacheClient, lease_id: str) -> None:
        self._heartbeat.stop(lease_id)

        def release() -> None:
            with suppress(LeaseLost):
                client.release(lease_id)

        self._outbox.put("release a lease", release)

    def describe(
        self,
        lookup: Lookup,
        request: CompileRequest,
        client: CacheClient,
        question: Callable[..., pb.LookupRequest],
    ) -> None:
        """Tell the daemon what was compiled, where no rule called for it: `explain` compares programs with it."""
        if lookup.seconds["compile"] < DESCRIBE_FROM_SECONDS:
            return
        if lookup.described or not lookup.raw_digest:  # the daemon has it, or wants none
            return
        lookup.described = True
        try:
            descriptor = described(request)
            if descriptor is None:
                return
            asked = question(descriptor=descriptor)
        except Exception as exc:  # it is stored; that it can't be explained is nobody's trouble
            log.info("%s is not described: %r", request.module_name, exc)
            return

        def tell() -> None:
            client.lookup(asked, DESCRIBE_SECONDS)

        self._outbox.put(f"describe {lookup.program_name}", tell, asked.ByteSize())

    def report_failure(self, client: CacheClient, lease_id: str, exc: Exception) -> None:
        """Tell the others why it failed, where that is about the program; what only this process lacks is not."""
        message = in_words(exc)
        if any(words in message for words in _LACKING):
            self.release(client, lease_id)
            return
        self._heartbeat.stop(lease_id)
        kind = Reason.NEGATIVE_OOM if "RESOURCE_EXHAUSTED" in message else Reason.NEGATIVE_COMPILE
        request = pb.FailRequest(
            lease_id=lease_id, kind=wire.reason_to_pb(kind), message=message[:2000]
        )

        def fail() -> None:
            with suppress(LeaseLost):
                client.fail(request)

        self._outbox.put("report a failed compile", fail)


def _why_unsent(error: Exception) -> Reason:
    if isinstance(error, DaemonTimeout):
        return Reason.DEADLINE
    if isinstance(error, DaemonError):
        return Reason.DAEMON_ABSENT
    if isinstance(error, NotAllowed):
        return Reason.ROLE
    return Reason.CORRUPT if isinstance(error, ArtifactError) else Reason.TIER_DOWN


def in_words(error: BaseException) -> str:
    """What an error says, fit for a message: somebody else's class may fail at saying it, or say it in bad Unicode."""
    try:
        text = str(error)
    except Exception:
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()
