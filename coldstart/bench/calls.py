"""What the clients of `bench load` and `bench hit` say to a daemon: publish, and a whole hit, beside a plain read."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import zstandard

from coldstart import artifact, wire
from coldstart.artifact import Artifact, BytesPayload
from coldstart.client import host, volume
from coldstart.client.client import CacheClient
from coldstart.errors import ColdstartError
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

PATIENCE_SECONDS = 60.0


def record_of(name: str) -> KeyRecord:
    """Of a program that exists in a bench only."""
    values = {"program": hashlib.sha256(name.encode()).hexdigest(), "options": "bench"}
    values |= {"target": '{"platform": "cpu"}', "flags": "", "callbacks": "0"}
    return KeyRecord(tuple(Component(n, v) for n, v in values.items()), program_name=name)


def artifact_of(record: KeyRecord, raw: bytes, *, codec: str = "zstd") -> Artifact:
    return artifact.make(
        raw,
        codec=codec,
        key=key_of(record),
        module_digest=record.module_digest,
        platform="cpu",
        target=record["target"].value,
        partitions=1,
        replicas=1,
        callbacks=0,
        compile_seconds=10.0,
        program_name=record.program_name,
    )


def publish(client: CacheClient, record: KeyRecord, made: Artifact) -> None:
    """Ask, compile nothing, send: as a participant that leads does. What is there already stays.

    Raises:
        ColdstartError: it was not stored.
    """
    lookup_id = uuid.uuid4().hex
    asked = question(record, lookup_id, features=made.header.cpu_features)
    reply = client.lookup(asked, PATIENCE_SECONDS)
    if reply.HasField("hit"):
        client.finish(ending(lookup_id, record, Outcome.HIT, Reason.OK), PATIENCE_SECONDS)
        return
    start = pb.PublishStart(
        lookup_id=lookup_id,
        lease_id=reply.lease.lease_id,
        header=made.header.encode(),
        record=wire.record_to_pb(record),
        planned=True,
    )
    sent = client.publish(start, made.payload.chunks(), PATIENCE_SECONDS)
    client.finish(ending(lookup_id, record, Outcome.MISS, Reason.COLD), PATIENCE_SECONDS)
    if sent.kept_local:
        reason = wire.reason_from_pb(sent.kept_local)
        raise ColdstartError(f"the daemon at {client.address} did not store it: {reason}")


def question(
    record: KeyRecord, lookup_id: str, *, proof: bytes = b"", features: Sequence[str] = ()
) -> pb.LookupRequest:
    """By key record. `features`: what code of an artifact this host can run; none for bytes that are no code."""
    asker = pb.Host(mode=pb.MODE_CANONICAL, planned=True, volume_proof=proof, cpu_features=features)
    return pb.LookupRequest(lookup_id=lookup_id, host=asker, record=wire.record_to_pb(record))


def ending(lookup_id: str, record: KeyRecord, outcome: Outcome, reason: Reason) -> pb.FinishRequest:
    return pb.FinishRequest(
        lookup_id=lookup_id,
        key=key_of(record),
        outcome=wire.outcome_to_pb(outcome),
        reason=wire.reason_to_pb(reason),
        program_name=record.program_name,
    )


class Reader:
    """Whole hits at one daemon, over a connection of its own."""

    def __init__(self, address: str, *, by_path: bool = True) -> None:
        """`by_path`: where the daemon has a disk that this process sees; else all bytes come by stream."""
        self.client = CacheClient(address, holder="bench")
        self.client.connect(PATIENCE_SECONDS)
        hello = self.client.hello()
        self._root = Path(hello.volume.root)
        nonce = hello.volume.nonce_path if by_path else ""
        self._proof = volume.proof(self._root, nonce) if nonce else b""
        self._features = host.cpu_features()
        self.path = Path()  # of the file that the last hit was read from, where it came by path

    def hit(self, record: KeyRecord) -> tuple[float, bytes]:
        """Seconds from the question to the checked and decoded bytes, and these.

        Raises:
            ColdstartError: it is no hit.
        """
        lookup_id = uuid.uuid4().hex
        began = time.perf_counter()
        asked = question(record, lookup_id, proof=self._proof, features=self._features)
        reply = self.client.lookup(asked, PATIENCE_SECONDS)
        if not reply.HasField("hit"):
            raise ColdstartError(
                f"{self.client.address}: what was published was answered {reply.WhichOneof('answer')}"
            )
        found = self._found(reply, lookup_id)
        raw = artifact.decode(found)
        seconds = time.perf_counter() - began
        self.client.finish(ending(lookup_id, record, Outcome.HIT, Reason.OK), PATIENCE_SECONDS)
        return seconds, raw

    def _found(self, reply: pb.LookupReply, lookup_id: str) -> Artifact:
        if reply.hit.path:
            self.path = volume.inside(self._root, reply.hit.path)
            return artifact.open_file(self.path)
        header = artifact.decode_header(reply.hit.header)
        data = self.client.fetch(
            pb.FetchRequest(lookup_id=lookup_id, key=reply.key, digest=header.digest),
            PATIENCE_SECONDS,
            most_bytes=len(header.prefix()) + header.payload_bytes,
            most_seconds=PATIENCE_SECONDS,
        )
        found, offset = artifact.read_header(data)
        return Artifact(found, BytesPayload(data[offset:]))

    def close(self) -> None:
        self.client.close()


def plain_read(path: Path, made: Artifact) -> tuple[float, bytes]:
    """The same bytes by hand: read the file, one sha256, decompress."""
    began = time.perf_counter()
    data = path.read_bytes()[len(made.header.prefix()) :]
    if hashlib.sha256(data).hexdigest() != made.header.digest:
        raise ColdstartError(f"{path} isn't the artifact")
    raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=made.header.raw_bytes)
    return time.perf_counter() - began, raw
