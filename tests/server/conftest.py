"""A real daemon process on a temporary socket and disk, and what a client of it needs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from gcs_server import cloud, gcs_process, own_cloud  # noqa: F401
from redis_server import redis_server, redis_servers, shared_redis  # noqa: F401

from coldstart import artifact, wire
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc, cache_pb2_grpc
from coldstart.rpc.v1 import cache_pb2 as pb

START_SECONDS = 20.0


def make_record(name: str) -> KeyRecord:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return KeyRecord(
        components=(
            Component("program", digest),
            Component("options", "o"),
            Component("target", "cpu:test"),
            Component("flags", ""),
            Component("callbacks", "0"),
        ),
        program_name=name,
    )


def make_artifact(record: KeyRecord, raw: bytes = b"executable", **changes: object):
    about = {
        "key": key_of(record),
        "module_digest": record.module_digest,
        "platform": "cpu",
        "target": record["target"].value,
        "partitions": 1,
        "replicas": 1,
        "callbacks": 0,
        "compile_seconds": 2.0,
        "program_name": record.program_name,
    }
    return artifact.make(raw, **{**about, **changes})


class DaemonProcess:
    """A daemon in a process of its own."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environ: dict[str, str] | None = None,
        stores: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.socket = folder / "run" / "c.sock"
        self.address = f"unix://{self.socket}"
        self.store = folder / "store"
        self.ready_file = folder / "ready.json"
        self.command = [
            sys.executable,
            "-m",
            "coldstart.cli.main",
            "daemon",
            f"--listen={self.address}",
            *(f"--store={url}" for url in stores or (f"disk://{self.store}",)),
            f"--ready-file={self.ready_file}",
            *options,
        ]
        names = ("PATH", "HOME", "PYTHONPATH", "LANG")
        self.environ = {n: os.environ[n] for n in names if n in os.environ} | (environ or {})
        self.log = folder / "log"
        self._channel: grpc.Channel | None = None
        self.start()

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=self.environ, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self.ready_file.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the daemon did not get ready"
            time.sleep(0.01)  # a file has no event to wait for
        self.ready = json.loads(self.ready_file.read_text())

    @property
    def channel(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.address)
        return self._channel

    @property
    def cache(self) -> cache_pb2_grpc.CacheStub:
        return cache_pb2_grpc.CacheStub(self.channel)

    def stats(self) -> admin_pb2.StatsReply:
        return admin_pb2_grpc.AdminStub(self.channel).Stats(admin_pb2.StatsRequest(), timeout=10)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


class Asking:
    """One lookup of one client, by hand."""

    def __init__(self, cache: cache_pb2_grpc.CacheStub, record: KeyRecord, **host: object) -> None:
        self.cache = cache
        self.record = record
        self.key = key_of(record)
        self.id = uuid.uuid4().hex
        self.host = pb.Host(mode=pb.MODE_CANONICAL, **host)

    def lookup(self, **more: object) -> pb.LookupReply:
        request = pb.LookupRequest(
            lookup_id=self.id,
            host=self.host,
            holder=f"test/{self.id[:6]}",
            record=wire.record_to_pb(self.record),
            **more,
        )
        return self.cache.Lookup(request, timeout=30)

    def wait(self, seconds: float = 30.0) -> pb.LookupReply:
        request = pb.AwaitRequest(lookup_id=self.id, key=self.key, max_wait_seconds=seconds)
        return self.cache.Await(request, timeout=seconds + 30)

    def publish(
        self, made, lease_id: str = "", *, data: bytes | None = None, **start: object
    ) -> pb.PublishReply:
        encoded = b"".join(made.payload.chunks()) if data is None else data
        begin = pb.PublishStart(
            lookup_id=self.id,
            lease_id=lease_id,
            header=made.header.encode(),
            record=wire.record_to_pb(self.record),
        )
        for name, value in start.items():
            if name == "header":
                begin.header = value
            elif name == "record":
                begin.record.CopyFrom(wire.record_to_pb(value))
            else:
                setattr(begin, name, value)
        parts = [pb.PublishRequest(start=begin)]
        parts += [
            pb.PublishRequest(data=encoded[i : i + 100_000])
            for i in range(0, len(encoded), 100_000)
        ]
        return self.cache.Publish(iter(parts), timeout=30)

    def fetch(self, digest: str) -> bytes:
        request = pb.FetchRequest(lookup_id=self.id, key=self.key, digest=digest)
        return b"".join(chunk.data for chunk in self.cache.Fetch(request, timeout=30))

    def finish(self, outcome: Outcome, reason: Reason, **more: object) -> None:
        request = pb.FinishRequest(
            lookup_id=self.id,
            key=self.key,
            outcome=wire.outcome_to_pb(outcome),
            reason=wire.reason_to_pb(reason),
            **more,
        )
        self.cache.Finish(request, timeout=30)


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons; all are stopped at the end."""
    started: list[DaemonProcess] = []

    def start(
        *options: str,
        folder: str = "d",
        environ: dict[str, str] | None = None,
        stores: Sequence[str] = (),
    ):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        started.append(DaemonProcess(place, *options, environ=environ, stores=stores))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for a file's tests; each test uses its own keys."""
    folder = tmp_path_factory.mktemp("shared")
    daemon = DaemonProcess(
        folder,
        "--listen=tcp://127.0.0.1:0",
        "--insecure",
        "--http=127.0.0.1:0",
        "--health=127.0.0.1:0",
        "--min-compile-seconds=0.5",
    )
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture
def made() -> SimpleNamespace:
    """Records and artifacts to ask for."""
    return SimpleNamespace(record=make_record, artifact=make_artifact)


@pytest.fixture
def new_record(request: pytest.FixtureRequest) -> KeyRecord:
    """A record that no other test has."""
    return make_record(f"{request.node.nodeid}-{uuid.uuid4().hex}")


@pytest.fixture
def asking() -> type[Asking]:
    return Asking
