"""Daemons with keys and lists, and somebody who asks them, for the tests of trust."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_artifacts import make_artifact, make_record

from coldstart import wire
from coldstart.artifact import Artifact
from coldstart.client.client import CacheClient
from coldstart.identity.key import KeyRecord, key_of
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server.in_process import daemon_in_process

PATIENCE = 10.0


@contextmanager
def daemon(folder: Path, store: str, **settings: Any) -> Iterator[World]:
    """A daemon at `folder`/d.sock; its audit goes to `folder`/audit.jsonl."""
    folder.mkdir(exist_ok=True)
    address = f"unix://{folder}/d.sock"
    listen = (address, *settings.pop("also_listen", ()))
    audit = folder / "audit.jsonl"
    with daemon_in_process([store], listen=listen, audit_file=audit, **settings):
        yield World(address, audit)


@dataclass
class World:
    """A running daemon."""

    address: str
    audit_file: Path

    def audit(self, what: str = "") -> list[dict[str, Any]]:
        lines = map(json.loads, self.audit_file.read_text().splitlines())
        return [line for line in lines if what in ("", line["audit"])]

    @contextmanager
    def client(self, address: str = "") -> Iterator[Client]:
        client = CacheClient(address or self.address, holder="test")
        try:
            client.connect(PATIENCE)
            yield Client(client)
        finally:
            client.close()


@dataclass
class Client:
    """Somebody who looks up and publishes by hand."""

    calls: CacheClient

    def lookup(
        self, record: KeyRecord, *, namespace: str = "", proof: bytes = b"", **asked: Any
    ) -> tuple[str, pb.LookupReply]:
        """The lookup's id and the answer."""
        request = pb.LookupRequest(
            lookup_id=uuid.uuid4().hex,
            namespace=namespace,
            host=pb.Host(mode=pb.MODE_CANONICAL, volume_proof=proof),
            holder="test",
            record=wire.record_to_pb(record),
        )
        for name, value in asked.items():
            setattr(request, name, value)
        return request.lookup_id, self.calls.lookup(request, PATIENCE)

    def publish(
        self, made: Artifact, record: KeyRecord, lookup: str = "l", lease: str = ""
    ) -> pb.PublishReply:
        start = pb.PublishStart(
            lookup_id=lookup,
            lease_id=lease,
            header=made.header.encode(),
            record=wire.record_to_pb(record),
            planned=True,
        )
        return self.calls.publish(start, made.payload.chunks(), PATIENCE)

    def compile(
        self, word: str, content: bytes = b"code", *, namespace: str = ""
    ) -> pb.PublishReply:
        """As a client that gets a lease and publishes."""
        record = make_record(word)
        lookup, reply = self.lookup(record, namespace=namespace)
        assert reply.WhichOneof("answer") == "lease", reply
        return self.publish(make_artifact(word, content), record, lookup, reply.lease.lease_id)


def key(word: str) -> str:
    return key_of(make_record(word))
