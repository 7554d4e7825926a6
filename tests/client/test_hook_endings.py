"""Interpreters that end, children that fork, exceptions that can't be told: the program's own course is not changed."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hooked import X, run

from coldstart.errors import DaemonTimeout


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it can't be said")


@pytest.mark.parametrize("error", [Unspeakable(), ValueError("\ud800 no Unicode")])
def test_an_exception_that_cannot_be_told_arrives_and_nothing_compiles_twice(
    hook: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from jax._src import compiler

    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        raise error

    monkeypatch.setattr(compiler, "backend_compile_and_load", broken)
    with pytest.raises(type(error)) as caught:
        run(lambda x: x * 3)
    assert caught.value is error
    assert len(calls) == 1


def test_trouble_of_ours_after_the_compiler_refused_compiles_no_second_time(
    daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax._src import compiler

    import coldstart
    from coldstart.client.publisher import Publisher

    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        raise KeyError("the compiler's")

    def ours(*args: Any) -> None:
        raise ZeroDivisionError("ours")

    assert coldstart.install(daemon.address, strict=False)
    try:
        monkeypatch.setattr(compiler, "backend_compile_and_load", broken)
        monkeypatch.setattr(Publisher, "report_failure", ours)
        with pytest.raises(KeyError, match="the compiler's"):
            run(lambda x: x * 5)
        assert len(calls) == 1
        monkeypatch.undo()
        np.testing.assert_array_equal(run(lambda x: x * 7), X * 7)
    finally:
        coldstart.uninstall()


@pytest.mark.parametrize("where", ["serialize", "publish", "describe"])
def test_interrupted_after_its_compile_it_gives_the_lease_back(
    hook: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A notebook lives on after Ctrl-C: its heartbeats must not keep everybody else waiting."""
    from coldstart.client import jax_internals
    from coldstart.client.publisher import Publisher

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    place = jax_internals if where == "serialize" else Publisher
    monkeypatch.setattr(place, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(lambda x: x * 11)
    monkeypatch.undo()
    assert hook.flush()
    assert daemon.stats().leases == 0
    np.testing.assert_array_equal(run(lambda x: x * 11), X * 11)


def test_without_a_thread_to_be_had_nothing_waits_and_all_goes_on_later(
    hook: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name.startswith("coldstart"):
            raise RuntimeError("can't start new thread")
        start(self)

    session = hook.session()
    monkeypatch.setattr(threading.Thread, "start", refused)
    np.testing.assert_array_equal(run(lambda x: x * 13), X * 13)
    began = time.monotonic()
    assert hook.flush(30.0)
    assert time.monotonic() - began < 10
    session.link.mark_down(DaemonTimeout("for a moment"), 0.0)
    np.testing.assert_array_equal(run(lambda x: x * 13), X * 13)
    monkeypatch.undo()
    np.testing.assert_array_equal(run(lambda x: x * 17), X * 17)
    assert hook.flush() and len(daemon.artifacts()) == 1


@pytest.mark.parametrize("before", [0, 2])
def test_compiles_of_a_thread_that_outlives_the_main_one(
    daemon: Any, program: Any, before: int
) -> None:
    """Interpreters from 3.12 on start no thread any more then, and gRPC can't do without."""
    ran = program(
        f"""
import threading
def compile(k): return float(jax.jit(lambda x: x * 2 + k)(np.float32(k)))
for k in range({before}): compile(k)
def late():
    threading.main_thread().join()
    say(results=[compile(10 + k) for k in range(3)])
threading.Thread(target=late).start()
""",
        COLDSTART_ADDRESS=daemon.address,
        seconds=60,
    )
    assert ran.said["results"] == [30.0, 33.0, 36.0]
    assert "Traceback" not in ran.stderr


def test_a_forked_child_does_not_wait_for_what_its_parent_has_to_send(
    daemon: Any, program: Any
) -> None:
    ran = program(
        """
import coldstart
from coldstart.client import jax_hook
jax.jit(lambda x: x * 2)(np.float32(1))
hook = jax_hook.installed()
gate = __import__("threading").Event()
hook.session().outbox.put("something slow", gate.wait)
child = os.fork()
if child == 0:
    sys.exit(3)  # with its atexit functions
began = time.monotonic()
_, status = os.waitpid(child, 0)
say(code=os.waitstatus_to_exitcode(status), seconds=time.monotonic() - began)
gate.set()
""",
        prelude="import warnings; warnings.simplefilter('ignore')\n"
        + __import__("processes").PRELUDE,
        COLDSTART_ADDRESS=daemon.address,
        seconds=120,
    )
    assert ran.said["code"] == 3
    assert ran.said["seconds"] < 30  # the flush of a parent may take 60
