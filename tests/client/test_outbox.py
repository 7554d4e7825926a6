"""What a process keeps to send later is bounded, by count and by bytes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coldstart.client import outbox as module
from coldstart.client.link import Link
from coldstart.client.outbox import Outbox


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(Link(f"unix://{tmp_path}/nobody.sock", holder="test"))


def test_jobs_are_bounded_by_count(outbox: Outbox) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go_on.wait(30)

    assert outbox.put("slow", slow)
    assert begun.wait(30)
    for n in range(module.MAX_WAITING):
        assert outbox.put("more", lambda n=n: done.append(n))
    assert not outbox.put("one too many", lambda: done.append(-1))
    assert outbox.dropped == 1
    go_on.set()
    outbox._jobs.join()
    assert done == list(range(module.MAX_WAITING))


def test_jobs_are_bounded_by_bytes(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1000)
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(30)

    assert outbox.put("alone, it may be larger", slow, 5000)
    assert begun.wait(30)
    assert not outbox.put("held up", bool, 1)
    assert outbox.dropped == 1
    go_on.set()
    outbox._jobs.join()
    assert outbox.put("there is room again", bool, 900)
    outbox._jobs.join()
