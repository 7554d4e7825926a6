"""A daemon that answers, and answers nonsense, costs a bounded time and never the program (I5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hooked import X, lookups, run

import coldstart
from coldstart import wire
from coldstart.artifact import make
from coldstart.client import client as client_module
from coldstart.client import session
from coldstart.client.client import CacheClient
from coldstart.errors import ArtifactCorrupt, DaemonTimeout, TierError
from coldstart.identity.key import key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

pytestmark = pytest.mark.timeout(60)


class Liar(cache_pb2_grpc.CacheServicer):
    """Answers as a test wants it to."""

    def __init__(self) -> None:
        self.hello = pb.HelloReply(scheme="cs1", mode=pb.MODE_CANONICAL)
        self.answer: Callable[[str, Any], pb.LookupReply] = lambda key, record: pb.LookupReply()
        self.await_: Callable[[str], pb.LookupReply] = lambda key: pb.LookupReply()
        self.stream: Callable[[], Iterator[bytes]] = lambda: iter(())
        self.calls: list[str] = []

    def Hello(self, request: Any, context: Any) -> Any:
        return self.hello

    def Lookup(self, request: Any, context: Any) -> Any:
        if request.WhichOneof("asked") != "record":
            return pb.LookupReply(mode=pb.MODE_CANONICAL, rewrites=pb.Rewrites())
        record = wire.record_from_pb(request.record)
        return self.answer(key_of(record), record)

    def Await(self, request: Any, context: Any) -> Any:
        self.calls.append("await")
        return self.await_(request.key)

    def Fetch(self, request: Any, context: Any) -> Any:
        for data in self.stream():
            yield pb.Chunk(data=data)

    def Reject(self, request: Any, context: Any) -> Any:
        self.calls.append("reject")
        return pb.LookupReply(
            mode=pb.MODE_CANONICAL, key=request.key, refused=pb.Refused(reason=pb.REASON_COLD)
        )

    def Renew(self, request: Any, context: Any) -> Any:
        self.calls.append("renew")
        return pb.RenewReply(seconds=-1)

    def Finish(self, request: Any, context: Any) -> Any:
        return pb.FinishReply()


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[tuple[Liar, str]]:
    servicer = Liar()
    server = grpc.server(ThreadPoolExecutor(8))
    cache_pb2_grpc.add_CacheServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{tmp_path}/liar.sock")
    server.start()
    yield servicer, f"unix://{tmp_path}/liar.sock"
    server.stop(None)


@pytest.fixture
def hooked(liar: tuple[Liar, str]) -> Iterator[Liar]:
    assert coldstart.install(liar[1], strict=False)
    yield liar[0]
    coldstart.uninstall()


def _hit(key: str, record: Any) -> pb.LookupReply:
    header = make(
        b"no executable",
        key=key,
        module_digest=record.module_digest,
        platform="cpu",
        target=record["target"].value,
        partitions=1,
        replicas=1,
        callbacks=0,
        cpu_features=(),
        compile_seconds=3.0,
        created_unix=0.0,
        producer="",
        program_name="",
        compiler="",
    ).header
    return pb.LookupReply(mode=pb.MODE_CANONICAL, key=key, hit=pb.Hit(header=header.encode()))


def _wait(key: str, seconds: float) -> pb.LookupReply:
    return pb.LookupReply(
        mode=pb.MODE_CANONICAL, key=key, wait=pb.Wait(holder="x", max_wait_seconds=seconds)
    )


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_wait_ends_whatever_the_daemon_says(
    hooked: Liar, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_WAIT_SECONDS", 1.0)
    hooked.answer = lambda key, record: _wait(key, seconds)
    hooked.await_ = lambda key: _wait(key, seconds)  # at once: it doesn't wait itself
    np.testing.assert_array_equal(run(lambda x: x + 1), X + 1)
    assert [outcome for outcome, _ in lookups()] == [Outcome.TIMEOUT]
    assert len(hooked.calls) < 100  # and is not asked in a circle without a pause


def test_a_wait_whose_end_takes_long_is_no_silence(hooked: Liar) -> None:
    """A tier of the daemon is slow, and the daemon says Hello meanwhile: what was waited for is waited for."""

    def slowly(key: str) -> pb.LookupReply:
        time.sleep(3.0)  # longer than a slice and all patience
        return pb.LookupReply(
            mode=pb.MODE_CANONICAL, key=key, refused=pb.Refused(reason=pb.REASON_NEGATIVE_OOM)
        )

    hooked.answer = lambda key, record: _wait(key, 30.0)
    hooked.await_ = slowly
    np.testing.assert_array_equal(run(lambda x: x + 5), X + 5)
    assert lookups() == {(Outcome.REFUSED, Reason.NEGATIVE_OOM): 1}
    report = coldstart.report()
    assert report is not None and report.lost_seconds == 0.0


def test_more_bytes_than_announced_are_not_kept(hooked: Liar) -> None:
    hooked.answer = _hit

    def endless() -> Iterator[bytes]:
        while True:
            yield b"\0" * (1 << 20)

    hooked.stream = endless
    np.testing.assert_array_equal(run(lambda x: x + 2), X + 2)
    assert hooked.calls == ["reject"]
    report = coldstart.report()
    assert report is not None
    assert (report.hits, report.saved_seconds) == (0, 0.0)  # a refused copy saved nothing


def test_bytes_that_drip_are_not_waited_for(hooked: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LEAST_FETCH_SECONDS", 1.0)
    hooked.answer = _hit

    def drip() -> Iterator[bytes]:
        for _ in range(250):
            yield b"\0"
            time.sleep(0.1)  # within the patience for a pause

    hooked.stream = drip
    began = time.monotonic()
    np.testing.assert_array_equal(run(lambda x: x + 3), X + 3)
    assert time.monotonic() - began < 20
    assert [outcome for outcome, _ in lookups()] == [Outcome.TIMEOUT]


def test_bytes_of_a_living_daemon_are_waited_for(
    liar: tuple[Liar, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier of the daemon is slow: that is no silence, but it is not waited for without end either."""
    client = CacheClient(liar[1], holder="test")
    pause = [2.0]

    def late() -> Iterator[bytes]:
        time.sleep(pause[0])
        yield b"late"

    liar[0].stream = late
    assert client.fetch(pb.FetchRequest(), 1.0, most_bytes=10, most_seconds=60) == b"late"
    monkeypatch.setattr(client_module, "ALIVE_SECONDS", 1.0)
    pause[0] = 10.0
    began = time.monotonic()
    with pytest.raises(TierError, match="alive, and had no bytes"):
        client.fetch(pb.FetchRequest(), 1.0, most_bytes=10, most_seconds=60)
    assert time.monotonic() - began < 9
    client.close()


@pytest.mark.parametrize("every", [float("nan"), -5.0, 1e-9, float("inf")])
def test_heartbeats_keep_a_sensible_pace(hooked: Liar, every: float) -> None:
    hooked.hello.heartbeat_seconds = every
    hooked.answer = lambda key, record: pb.LookupReply(
        mode=pb.MODE_CANONICAL, key=key, lease=pb.Lease(lease_id="x", seconds=-1)
    )
    np.testing.assert_array_equal(run(lambda x: x + 4), X + 4)
    assert hooked.calls.count("renew") <= 1


def test_a_call_whose_deadline_nobody_announces_ends(liar: tuple[Liar, str]) -> None:
    class Silent:
        """As a call of gRPC's whose thread could not start."""

        def future(self, request: Any, timeout: float, metadata: Any) -> Silent:
            return self

        def result(self, timeout: float) -> Any:
            raise grpc.FutureTimeoutError

        def cancel(self) -> None:
            pass

    client = CacheClient(liar[1], holder="test")
    with pytest.raises(DaemonTimeout, match="no answer within"):
        client._call_while_alive(Silent(), pb.LookupRequest(), 0.5, str)
    client.close()


def test_a_fetch_says_what_was_wrong(liar: tuple[Liar, str]) -> None:
    client = CacheClient(liar[1], holder="test")
    liar[0].stream = lambda: iter([b"12345", b"67890"])
    assert client.fetch(pb.FetchRequest(), 5.0, most_bytes=10, most_seconds=60) == b"1234567890"
    with pytest.raises(ArtifactCorrupt, match="9 bytes announced"):
        client.fetch(pb.FetchRequest(), 5.0, most_bytes=9, most_seconds=60)
    client.close()
