"""How much a daemon that is slow, or silent, may cost."""

from __future__ import annotations

import gc
import signal
import time
import weakref
from typing import Any

import pytest

from coldstart.client.link import REGROW_SECONDS, Link
from coldstart.errors import DaemonAbsent, DaemonError, DaemonTimeout
from coldstart.rpc.v1 import cache_pb2 as pb


def test_failures_cost_less_than_two_seconds_however_often_they_come() -> None:
    link = Link("unix:///nowhere.sock", holder="test")
    given = 0.0
    for _ in range(20):
        given += link.patience
        link.mark_down(DaemonError("gone"), link.patience)
    assert given < 2
    assert link.lost_seconds == given


def test_failures_that_cost_the_caller_nothing_cost_no_patience() -> None:
    """Of a frozen daemon one call in the foreground hears, and several in the background."""
    link = Link("unix:///nowhere.sock", holder="test")
    link.mark_down(DaemonError("gone"), link.patience)
    for _ in range(10):
        link.mark_down(DaemonError("gone"), 0.0)
    assert link.patience == 1 / 2
    link.mark_down(DaemonError("refused"), 0.125)
    assert link.patience == 1 / 2 - 1 / 16
    link.mark_down(DaemonError("alive, and slow"), 10.0)  # more than it had: half of it
    assert link.patience == 1 / 4 - 1 / 32


def test_a_daemon_that_is_known_to_be_down_is_not_asked_again(tmp_path: Any) -> None:
    link = Link(f"unix://{tmp_path}/nobody.sock", holder="test")
    with pytest.raises(DaemonError):
        link.client()
    lost, patience = link.lost_seconds, link.patience
    for _ in range(100):
        with pytest.raises(DaemonError):
            link.client()
    assert (link.lost_seconds, link.patience) == (lost, patience)


def test_what_is_raised_while_it_is_down_holds_nobodys_frames(tmp_path: Any) -> None:
    class Module:
        """Stands for what a caller has in hand while it asks."""

    held: list[weakref.ref[Module]] = []

    def ask(link: Link) -> None:
        module = Module()
        held.append(weakref.ref(module))
        with pytest.raises(DaemonAbsent, match=r"no daemon at .*start one with"):
            link.client()

    link = Link(f"unix://{tmp_path}/nobody.sock", holder="test")
    for _ in range(5):
        ask(link)
    gc.collect()
    assert [module() for module in held] == [None] * 5


class _Late:
    """A call whose answer comes after `rounds` slices of patience."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.cancelled = False

    def future(self, request: Any, timeout: float, metadata: Any) -> _Late:
        return self

    def result(self, timeout: float) -> str:
        import grpc

        if self.rounds == 0:
            return "late but there"
        self.rounds -= 1
        raise grpc.FutureTimeoutError

    def cancel(self) -> None:
        self.cancelled = True


def test_a_slow_answer_of_a_living_daemon_is_waited_for(daemon: Any) -> None:
    client = daemon.client()
    assert client._call_while_alive(_Late(3), pb.LookupRequest(), 1.0, str) == "late but there"
    client.close()


def test_a_slow_answer_of_a_silent_daemon_is_not(daemon: Any) -> None:
    client = daemon.client()
    client.hello(5.0)
    daemon.signal(signal.SIGSTOP)
    began = time.monotonic()
    call = _Late(1000)
    try:
        with pytest.raises(DaemonTimeout):
            client._call_while_alive(call, pb.LookupRequest(), 0.2, str)
    finally:
        daemon.signal(signal.SIGCONT)
    assert call.cancelled
    assert time.monotonic() - began < 30
    client.close()


def test_patience_grows_back_while_all_goes_well() -> None:
    """A process of weeks meets many restarts of its daemon. No spell of trouble costs two seconds."""
    clock = [0.0]
    link = Link("unix:///nowhere.sock", holder="test", now=lambda: clock[0])
    for _ in range(5):
        link.mark_down(DaemonError("gone"), link.patience)
    assert link.patience == 1 / 32
    for _ in range(1000):  # however many answers come at once
        link.foreground(lambda: None)
    assert link.patience == 1 / 32
    clock[0] += REGROW_SECONDS - 1
    link.foreground(lambda: None)
    assert link.patience == 1 / 32
    clock[0] += 1
    link.foreground(lambda: None)
    link.foreground(lambda: None)
    assert link.patience == 1 / 16
    clock[0] += 100 * REGROW_SECONDS  # silence is no sign of health
    link.foreground(lambda: None)
    assert link.patience == 1 / 8
    for _ in range(10):
        clock[0] += REGROW_SECONDS
        link.foreground(lambda: None)
    assert link.patience == 1


def test_one_failure_every_ten_minutes_costs_less_than_a_second_each_time() -> None:
    clock = [0.0]
    link = Link("unix:///nowhere.sock", holder="test", now=lambda: clock[0])
    given = []
    for _ in range(500):
        clock[0] += REGROW_SECONDS
        link.foreground(lambda: None)
        given.append(link.patience)
        link.mark_down(DaemonError("gone"), link.patience)
    assert max(given) <= 1
    assert sum(given) < 2 + len(given)


def test_threads_that_come_at_once_make_one_connection(
    daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from coldstart.client import link as module

    made: list[Any] = []
    real = module.CacheClient

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(module, "CacheClient", counted)
    link = Link(daemon.address, holder="test")
    go = threading.Barrier(32)
    found: list[Any] = []

    def ask() -> None:
        go.wait()
        found.append(link.client())

    threads = [threading.Thread(target=ask) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 1 and found == made * 32
    made[0].close()
