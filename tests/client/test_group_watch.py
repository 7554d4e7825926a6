"""The watch over a real key-value store of JAX's, with two members in this process."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="the store is JAX's")

from coldstart.client import group_watch
from coldstart.client.group import Difference
from coldstart.client.group_watch import GroupWatch
from coldstart.client.jax_job import JobStore
from coldstart.identity.key import Component, KeyRecord

pytestmark = pytest.mark.stacks

SECONDS = 30.0


def together(calls: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def stores() -> Iterator[list[JobStore]]:
    """A job of two, by JAX's own service and clients."""
    from jax._src.lib import _jax

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, 2)
    clients = [_jax.get_distributed_runtime_client(address, rank) for rank in range(2)]
    together([client.connect for client in clients])
    yield [JobStore(client) for client in clients]
    together([client.shutdown for client in clients])
    service.shutdown()


class Member:
    """One process's watch, and what it was told."""

    def __init__(self, rank: int, store: JobStore | None, **how: Any) -> None:
        self.rank = rank
        self.store = store
        self.told: list[Difference] = []
        self.watch = GroupWatch(
            lambda difference, words: self.told.append(difference),
            find_store=lambda: self.store,
            **how,
        )

    def meets(self, program: str, name: str = "jit_step", processes: int = 2) -> None:
        values = (program, "options", "{}", "", "0")
        names = ("program", "options", "target", "flags", "callbacks")
        record = KeyRecord(tuple(map(Component, names, values)), name)
        devices = [SimpleNamespace(process_index=n) for n in range(processes)]
        request = SimpleNamespace(
            compile_only=False,
            devices=np.array(devices),
            platform="cpu",
            backend=SimpleNamespace(process_index=lambda: self.rank),
        )
        identity = SimpleNamespace(multi_process=processes > 1, record=record)
        self.watch.note(request, identity)  # type: ignore[arg-type]

    @property
    def threads(self) -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t is self.watch._thread]


@pytest.fixture
def members(stores: list[JobStore]) -> Iterator[list[Member]]:
    made = [Member(rank, store) for rank, store in enumerate(stores)]
    yield made
    for member in made:
        member.watch.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_both_are_told_once_within_the_time(
    members: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    """With the grace and the pauses as they are."""
    for member in members:
        member.meets("common", "jit_common")
        member.meets(f"own {member.rank}")
    members[0].meets("only mine", "jit_more")
    until(lambda: all(member.told for member in members))
    for member in members:
        member.watch.close()
        assert [told.components for told in member.told] == [("program",)]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.records) == 2


def test_a_member_that_comes_later_is_compared_when_it_comes(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_watch, "GRACE_SECONDS", 0.0)
    members[0].meets("one")
    time.sleep(3)
    assert members[0].told == []
    members[1].meets("two")
    until(lambda: all(member.told for member in members))


def test_a_program_of_one_process_is_nobodys_business(members: list[Member]) -> None:
    members[0].meets("local", processes=1)
    assert members[0].threads == []


def test_strict_says_it_louder_and_raises_nowhere(
    stores: list[JobStore], caplog: pytest.LogCaptureFixture
) -> None:
    strict, other = Member(0, stores[0], strict=True), Member(1, stores[1])
    other.meets("one")
    until(lambda: stores[1].below(group_watch.FOLDER))
    strict.meets("two")
    strict.watch.close()  # looks once more, without grace
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert len(strict.told) == 1 and strict.threads == []
    other.watch.close()


def test_a_store_that_never_answers_delays_neither_a_compile_nor_the_end() -> None:
    class Silent(JobStore):
        answers = threading.Event()

        def put(self, key: str, value: str) -> None:
            self.answers.wait()

        def below(self, folder: str) -> dict[str, str]:
            self.answers.wait()
            return {}

    member = Member(0, Silent(object()))
    began = time.monotonic()
    member.meets("one")
    member.meets("two")
    assert time.monotonic() - began < 1
    member.watch.close()
    assert time.monotonic() - began < group_watch.CLOSE_SECONDS + 3
    Silent.answers.set()
    until(lambda: not member.threads)


def test_a_store_that_is_gone_is_no_error_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client of JAX's raises after its job has ended; the coordinator's own end ends a process."""
    monkeypatch.setattr(group_watch, "MOST_PAUSE_SECONDS", 0.05)
    calls: list[str] = []

    class Gone(JobStore):
        def put(self, key: str, value: str) -> None:
            calls.append(key)
            raise RuntimeError("UNAVAILABLE: the agent is in an error state")

    member = Member(0, Gone(object()))
    member.meets("one")
    until(lambda: not member.threads)
    member.meets("two")
    assert len(calls) == group_watch.MOST_FAILURES
    assert caplog.records == []
    member.watch.close()


def test_a_job_that_was_left_is_forgotten_and_the_next_one_watched(
    stores: list[JobStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left(JobStore):
        def put(self, key: str, value: str) -> None:
            raise RuntimeError("FAILED_PRECONDITION: the agent is shut down")

    monkeypatch.setattr(group_watch, "MOST_PAUSE_SECONDS", 0.05)
    old = Left(object())
    member, other = Member(0, old), Member(1, stores[1])
    member.meets("of the old job")
    member.store = None
    time.sleep(1)
    assert member.threads
    member.store = stores[0]
    member.meets("one")
    until(lambda: stores[1].below(group_watch.FOLDER))
    other.meets("two")
    other.watch.close()
    assert [told.mine.parts[0][1] for told in other.told] == ["two"]
    member.watch.close()


def test_a_forked_child_leaves_its_parents_watch_alone(members: list[Member]) -> None:
    members[0].meets("one")
    with members[0].watch._changed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's and JAX's, about forks beside threads
        child = os.fork()
        if child == 0:
            members[0].watch.close()
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_the_store_is_bounded(
    stores: list[JobStore], members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldstart.client.group.MOST_PROGRAMS", 5)
    for number in range(9):
        members[0].meets(f"program {number}")
    members[0].watch.close()
    assert len(stores[1].below(group_watch.FOLDER)) == 5 + 1
    assert stores[0].get("coldstart/v1/nothing") is None
