"""Threads: those in which a disk is waited for, and how long callers wait for them.

A disk that doesn't answer (a file server that is gone, a device that tries again for ever) keeps a thread in the
kernel, where nothing can end it. So nobody waits for a thread longer than a deadline, and no process waits for one at
its end. What a thread had begun may still come to pass, whole or invisible; what nobody had begun is not begun.

Who stands in line behind others that do get answers waits on: that is a busy disk, not a silent one, and a crowd that
publishes at once must not be taken for one. After one deadline the next callers are given half a second, for a minute
or until the disk answers: else each of the lookups of a start would stand there in turn.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from coldstart.errors import TierTimeout

DOUBTFUL_SECONDS, DOUBT_LASTS_SECONDS = 0.5, 60.0
PATIENT = 0.8  # of the time that a caller had: who gives up after that much found it silent
CLOSE_SECONDS = 10.0

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    work: Callable[[], Any]
    began: float = 0.0  # 0: nobody is at it yet


class Threads:
    """At most `count` threads, started as they are needed. `run` and `close` on an event loop."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._ends: list[Future[None]] = []  # of the threads that were started
        self._doubtful_until = 0.0
        self._answered = [
            0.0
        ]  # when a thread was last done with something; a list, as threads hold it
        weakref.finalize(self, _end, self._jobs, self._ends)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do it when a thread is free. From one thread at a time."""
        future: Future[T] = Future()
        self._start(_Job(future, work))
        return future

    def _start(self, job: _Job) -> None:
        self._jobs.put(job)
        if not self._idle.acquire(blocking=False) and len(self._ends) < self._count:
            self._ends.append(Future())
            threading.Thread(
                target=_work,
                args=(self._jobs, self._idle, self._ends[-1], self._answered),
                name=f"{self._name}-{len(self._ends)}",
                daemon=True,
            ).start()

    async def run(
        self,
        work: Callable[[], T],
        seconds: float | None,
        unwanted: Callable[[T], object] = lambda result: None,
    ) -> T:
        """What `work` comes to. `unwanted` is given a result that comes when nobody waits for it any more.

        Raises:
            TierTimeout: nothing after `seconds` (None: for as long as it takes), nor anything for those before it.
        """
        began = time.monotonic()
        if seconds is not None and began < self._doubtful_until:
            seconds = min(seconds, DOUBTFUL_SECONDS)
        future: Future[T] = Future()
        job = _Job(future, work)
        self._start(job)
        waiting = asyncio.wrap_future(future)
        try:
            left = seconds
            while not (await asyncio.wait({waiting}, timeout=left))[0]:
                left = (seconds or 0.0) - self._still(job)
                if left <= 0:
                    self._doubt()
                    raise TierTimeout(
                        f"disk: no answer after {seconds:g} s; does the file system still answer?"
                    )
        except BaseException as exc:
            # A chain has deadlines of its own, which may be as long.
            silent = min(time.monotonic() - began, self._still(job))
            if isinstance(exc, asyncio.CancelledError) and silent >= PATIENT * (
                seconds or math.inf
            ):
                self._doubt()
            waiting.cancel()  # what nobody had begun is not begun
            future.add_done_callback(lambda late: self._came_late(late, unwanted))
            raise
        result = waiting.result()
        self._doubtful_until = 0.0
        return result

    def _still(self, job: _Job) -> float:
        """Seconds since it was begun; where it wasn't yet, since anybody got an answer."""
        return time.monotonic() - (job.began or self._answered[0])

    async def close(self) -> bool:
        """Wait for what was submitted; False: a thread was left behind, as it gets no answer."""
        _end(self._jobs, self._ends)
        if not self._ends:
            return True
        doubtful = time.monotonic() < self._doubtful_until
        ends = [asyncio.wrap_future(end) for end in self._ends]
        _, left = await asyncio.wait(ends, timeout=DOUBTFUL_SECONDS if doubtful else CLOSE_SECONDS)
        return not left

    def _doubt(self) -> None:
        self._doubtful_until = time.monotonic() + DOUBT_LASTS_SECONDS

    def _came_late(self, future: Future[T], unwanted: Callable[[T], object]) -> None:
        """In the thread that did it; at once where it is not begun any more."""
        if future.cancelled():
            return
        self._doubtful_until = 0.0
        if future.exception() is None:
            unwanted(future.result())


def _work(
    jobs: queue.SimpleQueue[_Job | None],
    idle: threading.Semaphore,
    end: Future[None],
    answered: list[float],
) -> None:
    """One thread's life. Holds nothing of the `Threads`, which can go while it waits."""
    while (job := jobs.get()) is not None:
        if job.future.set_running_or_notify_cancel():
            job.began = time.monotonic()
            try:
                result = job.work()
            except BaseException as exc:
                job.future.set_exception(exc)
            else:
                job.future.set_result(result)
                del result
            answered[0] = time.monotonic()
        del job
        idle.release()
    end.set_result(None)


def _end(jobs: queue.SimpleQueue[_Job | None], ends: list[Future[None]]) -> None:
    for _ in ends:
        jobs.put(None)
