"""How much a daemon that is slow, or silent, may cost."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from coldstart.client.link import Link
from coldstart.errors import DaemonError, DaemonTimeout
from coldstart.rpc.v1 import cache_pb2 as pb


def test_failures_cost_less_than_two_seconds_however_often_they_come() -> None:
    link = Link("unix:///nowhere.sock", holder="test")
    given = 0.0
    for _ in range(20):
        given += link.patience
        link.mark_down(DaemonError("gone"), link.patience)
    assert given < 2
    assert link.lost_seconds == given


def test_a_daemon_that_is_known_to_be_down_is_not_asked_again(tmp_path: Any) -> None:
    link = Link(f"unix://{tmp_path}/nobody.sock", holder="test")
    with pytest.raises(DaemonError):
        link.client()
    lost, patience = link.lost_seconds, link.patience
    for _ in range(100):
        with pytest.raises(DaemonError):
            link.client()
    assert (link.lost_seconds, link.patience) == (lost, patience)


class _Late:
    """A call whose answer comes after `rounds` slices of patience."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.cancelled = False

    def future(self, request: Any, timeout: float) -> _Late:
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
