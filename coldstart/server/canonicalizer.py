"""Canonicalizer: rewrites for descriptors, off the event loop, in worker processes that may die.

    ask ──▶ wait for a free worker (bounded) ──▶ job (deadline) ──▶ rewrites
                                                     ├ InvalidDescriptor: the sender can fix it
                                                     └ abandoned: no rewrites, counted, the worker replaced

A process and not a thread: a walk over 20 000 nodes is Python code, which would hold the interpreter's lock and with it
everybody's lookups. Started when the first descriptor is announced, ended when none came for a while, replaced when it
has grown, is worn, too slow or dead. An abandoned program is compiled as it is: a miss, never an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import coldstart
from coldstart.errors import InvalidDescriptor
from coldstart.identity.final import Described
from coldstart.identity.rewrite import Rewrite
from coldstart.outcomes import Reason
from coldstart.server.answers import Canonicalized
from coldstart.server.frames import PEAK_BYTES, Job, frame, receive

log = logging.getLogger("coldstart.server")

WORKERS = 2
JOB_SECONDS = 5.0  # 20 000 nodes take 0.1; a descriptor may have 25 times as many
QUEUE_SECONDS = 3.0  # both together stay below the 10 s that clients give a lookup
MAX_WAITING = 64
MAX_WAITING_BYTES = 256 << 20
MAX_DESCRIPTOR_BYTES = 48 << 20
MEMORY_BYTES = 4 << 30  # of address space, which a worker can't exceed
GROWN_BYTES = 512 << 20  # of memory; a worker that ever used more is not used again
MAX_JOBS = 10_000
IDLE_SECONDS = 60.0
END_SECONDS = 2.0

COMMAND = (sys.executable, "-m", "coldstart.server.canonicalizer_worker", str(MEMORY_BYTES))


class Canonicalizer:
    """Call it with a serialized descriptor. For one event loop; `close` at the end."""

    def __init__(
        self,
        *,
        workers: int = WORKERS,
        job_seconds: float = JOB_SECONDS,
        queue_seconds: float = QUEUE_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        grown_bytes: int = GROWN_BYTES,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._job_seconds = job_seconds
        self._queue_seconds = queue_seconds
        self._idle_seconds = idle_seconds
        self._grown_bytes = grown_bytes
        self._command = command
        # A worker is made only by who holds a turn and finds none idle: so there are never more than turns.
        self._turns = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []
        self._waiting = self._waiting_bytes = 0
        self._spare: _Worker | None = None  # has started, and takes the place of a worn one
        self._warming: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._retiring: asyncio.TimerHandle | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._closed = False
        self.done = 0  # descriptors that were canonicalized
        self.started = 0  # workers
        self.abandoned: Counter[str] = Counter()  # by reason: busy, slow, died, failed

    async def __call__(self, descriptor: bytes, job: Job = Job.REWRITES) -> Canonicalized:
        """The rewrites, or why there are none. Raises InvalidDescriptor."""
        if len(descriptor) > MAX_DESCRIPTOR_BYTES:
            raise InvalidDescriptor(
                f"the descriptor has {len(descriptor)} bytes, the limit is {MAX_DESCRIPTOR_BYTES}"
            )
        if not await self._turn(len(descriptor)):
            return self._abandon("busy", "too many descriptors were waiting")
        try:
            return await self._job(descriptor, job)
        finally:
            self._turns.release()
            self._retire_later()

    def warm(self) -> None:
        """Have a worker ready: a descriptor is on its way."""
        if not (self._closed or self._idle or self._warming or self._turns.locked()):
            self._warming = self._chore(self._warm())

    async def close(self) -> None:
        """End the workers."""
        self._closed = True
        if self._retiring is not None:
            self._retiring.cancel()
        for task in (self._warming, self._renewing):
            if task is not None:
                task.cancel()
        self._retire()
        await asyncio.gather(*self._chores, return_exceptions=True)

    # --- one job -------------------------------------------------------------------------------

    async def _turn(self, size: int) -> bool:
        """Wait until a worker may be used; False: too many wait, or for too long."""
        if not self._turns.locked():
            await self._turns.acquire()
            return True
        if self._waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            return False
        self._waiting += 1
        self._waiting_bytes += size
        try:
            await asyncio.wait_for(self._turns.acquire(), self._queue_seconds)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size
        return True

    async def _job(self, descriptor: bytes, job: Job) -> Canonicalized:
        worker = None
        try:
            async with asyncio.timeout(self._job_seconds):
                worker = await self._worker()
                answer, kept = await worker.ask(descriptor, job)
        except TimeoutError:
            return self._abandon("slow", f"it took longer than {self._job_seconds:g} s")
        except (EOFError, OSError, ValueError) as exc:
            return self._abandon("died", f"the process that canonicalizes ended ({exc})")
        else:
            if worker.peak_bytes <= self._grown_bytes:
                worker = self._put_back(worker)
        finally:  # whatever happened, cancellation too: a worker that is not idle again goes
            if worker is not None:
                self._chore(worker.end())
        if "invalid" in answer:
            raise InvalidDescriptor(answer["invalid"])
        if "failed" in answer:
            return self._abandon("failed", answer["failed"])
        self.done += 1
        rewrites = tuple(Rewrite(*rewrite) for rewrite in answer["rewrites"])
        return Canonicalized(rewrites, kept, final=_described(answer.get("final")))

    def _abandon(self, word: str, why: str) -> Canonicalized:
        self.abandoned[word] += 1
        log.warning("a descriptor is not canonicalized: %s", why)
        late = word in ("busy", "slow")
        return Canonicalized(abandoned=why, reason=Reason.DEADLINE if late else Reason.UNSHAREABLE)

    # --- workers -------------------------------------------------------------------------------

    async def _worker(self) -> _Worker:
        if not self._idle and self._warming is not None:
            await asyncio.wait({self._warming})
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._chore(worker.end())
        self.started += 1
        return await _Worker.start(self._command)

    def _put_back(self, worker: _Worker) -> _Worker | None:
        """Idle again. A worn one goes as soon as its successor has started: nobody waits for that. Returns who goes."""
        if worker.jobs < MAX_JOBS or self._spare is None:
            self._idle.append(worker)
            if worker.jobs >= MAX_JOBS and self._renewing is None and not self._closed:
                self._renewing = self._chore(self._renew())
            return None
        self._idle.append(self._spare)
        self._spare = None
        return worker

    async def _renew(self) -> None:
        try:
            self.started += 1
            spare = await _Worker.start(self._command)
            try:
                async with asyncio.timeout(self._job_seconds):
                    await spare.ask(b"", Job.REWRITES)  # what it answers says only that it is there
            except (TimeoutError, EOFError, OSError, ValueError):
                await spare.end()
            else:
                self._spare = spare
        except OSError as exc:
            log.warning("no process to canonicalize in: %s", exc)
        finally:
            self._renewing = None
        if self._closed:
            self._retire()

    async def _warm(self) -> None:
        try:
            async with self._turns:
                if not self._idle:
                    self.started += 1
                    self._idle.append(await _Worker.start(self._command))
        except OSError as exc:  # the job that comes says so again
            log.warning("no process to canonicalize in: %s", exc)
        finally:
            self._warming = None
        self._retire_later()

    def _retire_later(self) -> None:
        if self._retiring is not None:
            self._retiring.cancel()
        later = asyncio.get_running_loop().call_later
        self._retiring = None if self._closed else later(self._idle_seconds, self._retire)
        if self._closed:
            self._retire()

    def _retire(self) -> None:
        """End the workers that have nothing to do."""
        if self._spare is not None:
            self._idle.append(self._spare)
            self._spare = None
        while self._idle:
            self._chore(self._idle.pop().end())

    def _chore(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(what)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task


def _described(said: dict[str, Any] | None) -> Described | None:
    if said is None:
        return None
    lists = {name: tuple(said[name]) for name in ("rules", "reasons")}
    return Described(**{**said, **lists})


class _Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._busy = False
        self.jobs = 0
        self.peak_bytes = 0

    @classmethod
    async def start(cls, command: Sequence[str]) -> _Worker:
        root = str(Path(coldstart.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # Nothing else of the environment: descriptors are strangers', and secrets stand there.
        environ = {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environ,
            start_new_session=True,  # Ctrl-C is for the daemon, which then ends its workers
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, descriptor: bytes, job: Job) -> tuple[dict[str, Any], bytes]:
        """Raises EOFError, OSError or ValueError where the process can't be used any more."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        self._busy = True
        stdin.write(frame(job.encode(), descriptor))
        await stdin.drain()
        text, data = await receive(stdout)
        self._busy = False
        self.jobs += 1
        self.peak_bytes = int.from_bytes(data[:PEAK_BYTES], "big")
        answer: dict[str, Any] = json.loads(text)
        return answer, data[PEAK_BYTES:]

    async def end(self) -> None:
        """Let it go, kindly where it is idle. It ends by itself when its stdin does."""
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        if not self._busy:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_SECONDS)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
