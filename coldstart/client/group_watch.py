"""GroupWatch: posts this process's programs of several processes to the others of its job, and reads theirs.

Through the key-value store of `jax.distributed`, by one thread, so that no compile waits for it:

    coldstart/v1/<group>/seen/<process>          the marks of the programs it has met, comma by comma
    coldstart/v1/<group>/program/<process>/<n>   its n-th program in full; read only where marks differ

A difference is logged once per program on every side that has it, counted, and told to the daemon; the program itself
goes on, in strict mode too: a member that stopped here would leave its peers waiting in a collective. The thread sleeps
while all members agree, and ends with the interpreter.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from coldstart import wire
from coldstart.client import host, jax_job
from coldstart.client.group import MOST_PROGRAMS, Comparison, Difference, Post, post_of
from coldstart.client.identify import Identity
from coldstart.client.jax_internals import CompileRequest
from coldstart.client.jax_job import JobStore
from coldstart.client.link import Link
from coldstart.client.outbox import Outbox
from coldstart.client.report import Tally
from coldstart.errors import InvalidRequest
from coldstart.outcomes import Reason
from coldstart.rpc.v1 import cache_pb2 as pb

log = logging.getLogger("coldstart")

FOLDER = "coldstart/v1"
# From a program's second post on one side until it is told on both: at most the pause and the grace, 18 s.
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 10.0
GRACE_SECONDS = 8.0  # two threads may compile in another order here and there
CLOSE_SECONDS = 2.0
MOST_FAILURES = 5  # of the store in a row; then nobody compares any more
MOST_WARNINGS = 20  # of a process; further ones are only counted
MOST_GROUPS = 64
NEVER = float("inf")

Tell = Callable[[Difference, str], None]


@dataclass(slots=True)
class _Group:
    """One set of processes that programs run on."""

    comparison: Comparison
    store: JobStore
    folder: str
    posted: int = 0  # of our posts, how many the store has
    pause: float = FIRST_PAUSE_SECONDS
    due: float = NEVER  # when to read next
    details: dict[tuple[int, int], Post] = field(default_factory=dict)


def teller(tally: Tally, outbox: Outbox, link: Link) -> Tell:
    """Counts a difference here at once, and at the daemon when there is time."""

    def tell(difference: Difference, words: str) -> None:
        tally.add_group_mismatch()
        notice = pb.NoticeRequest(
            reason=wire.reason_to_pb(Reason.GROUP_MISMATCH),
            program_name=difference.mine.name,
            message=words,
            holder=host.holder(),
        )

        def send() -> None:
            with suppress(InvalidRequest):  # a daemon that has no such call
                link.client().notice(notice)

        outbox.put("tell of a group mismatch", send)

    return tell


class GroupWatch:
    """One process's watch. Thread-safe; nothing runs before the first program of several processes."""

    def __init__(
        self,
        tell: Tell,
        *,
        strict: bool = False,
        find_store: Callable[[], JobStore | None] = jax_job.job_store,
    ) -> None:
        """
        Args:
            tell: called with each difference and its words, on the watch's thread.
            strict: differences are logged as errors instead of warnings.
        """
        self._tell = tell
        self._level = logging.ERROR if strict else logging.WARNING
        self._find_store = find_store
        self._changed = threading.Condition()
        self._waiting: list[tuple[JobStore, str, tuple[int, ...], int, Post]] = []
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closing = False
        self._over = False  # nothing is compared any more
        # The thread's own:
        self._client: object = None
        self._groups: dict[str, _Group] = {}
        self._warnings = 0

    def note(self, request: CompileRequest, identity: Identity) -> None:
        """A program is about to be looked up. Only remembers it; returns at once."""
        if not identity.multi_process or request.compile_only or self._over:
            return
        store = self._find_store()
        if store is None:
            return
        members = tuple(sorted({int(device.process_index) for device in request.devices.flat}))
        me = int(request.backend.process_index())
        if me not in members:
            return
        with self._changed:
            if self._closing or len(self._waiting) >= MOST_PROGRAMS:
                return
            self._waiting.append((store, request.platform, members, me, post_of(identity.record)))
            if self._thread is None:
                self._start()
            self._changed.notify()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Look once more, without grace, and end the thread; waits for that for `seconds` at most."""
        if os.getpid() != self._pid:
            return  # in a forked child: the thread is the parent's, and so may be the lock
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="coldstart-group", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            self._over = True
            return
        self._thread = thread
        atexit.register(self.close)  # after JAX's own, so before JAX leaves the job

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not (self._waiting or self._closing):
                    left = self._due() - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                waiting, self._waiting = self._waiting, []
                closing = self._closing
            try:
                for item in waiting:
                    self._add(*item)
                self._look(closing=closing)
                failures = 0
            except RuntimeError as exc:  # the store's; what that means for the job is JAX's matter
                failures = 0 if self._left_job() else failures + 1
                log.debug("group: the job's store doesn't answer: %s", exc)
                self._put_off()
            except Exception:
                log.exception("group: programs are not compared any more")
                failures = MOST_FAILURES
            if closing or failures >= MOST_FAILURES:
                self._over = True
                return

    def _due(self) -> float:
        return min((group.due for group in self._groups.values()), default=NEVER)

    def _left_job(self) -> bool:
        """Whether this process is no longer in the job that it was watching. Then there is nothing to compare."""
        store = self._find_store()
        left = store is None or store.client is not self._client
        if left:
            self._client, self._groups = None, {}
        return left

    def _put_off(self) -> None:
        for group in self._groups.values():
            group.due = time.monotonic() + MOST_PAUSE_SECONDS

    def _add(
        self, store: JobStore, platform: str, members: tuple[int, ...], me: int, post: Post
    ) -> None:
        if store.client is not self._client:  # another job: its store is empty
            self._client, self._groups = store.client, {}
        name = hashlib.sha256(f"{platform} {members}".encode()).hexdigest()[:16]
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                return
            group = self._groups[name] = _Group(Comparison(me, members), store, f"{FOLDER}/{name}")
        if group.comparison.add(post, time.monotonic()):
            group.pause = FIRST_PAUSE_SECONDS
            group.due = min(group.due, time.monotonic() + group.pause)

    def _look(self, *, closing: bool) -> None:
        for group in self._groups.values():
            self._post(group)
            now = time.monotonic()
            if now >= group.due or closing:
                self._compare(group, now, before=now if closing else now - GRACE_SECONDS)

    def _post(self, group: _Group) -> None:
        comparison = group.comparison
        if group.posted == len(comparison.posts):
            return
        for n in range(group.posted, len(comparison.posts)):
            place = f"{group.folder}/program/{comparison.me}/{n}"
            group.store.put(place, comparison.posts[n].to_json())
        group.store.put(f"{group.folder}/seen/{comparison.me}", ",".join(comparison.marks))
        group.posted = len(comparison.posts)
        group.due = min(group.due, time.monotonic() + group.pause)

    def _compare(self, group: _Group, now: float, *, before: float) -> None:
        comparison = group.comparison
        news = False
        for key, value in group.store.below(f"{group.folder}/seen").items():
            rank = key.rpartition("/")[2]
            if rank.isdecimal():
                news |= comparison.hear(int(rank), filter(None, value.split(",")), now)
        for difference in comparison.differences(
            lambda *of: self._detail(group, *of), before=before
        ):
            self._say(comparison, difference)
        for back in comparison.taken_back():
            log.warning(
                "group: program %d, %s, was a matter of order: each side has compiled both by now",
                back.ordinal,
                back.mine.name,
            )
        if comparison.agreed:
            group.due = NEVER  # until this process has another program
            return
        group.pause = FIRST_PAUSE_SECONDS if news else min(MOST_PAUSE_SECONDS, group.pause * 1.5)
        group.due = time.monotonic() + group.pause

    def _detail(self, group: _Group, rank: int, n: int) -> Post | None:
        known = group.details.get((rank, n))
        if known is None:
            text = group.store.get(f"{group.folder}/program/{rank}/{n}")
            known = None if text is None else Post.from_json(text)
            if known is not None:
                group.details[rank, n] = known
        return known

    def _say(self, comparison: Comparison, difference: Difference) -> None:
        words = difference.in_words(comparison.me, comparison.members)
        if self._warnings < MOST_WARNINGS:
            self._warnings += 1
            log.log(self._level, "%s", words)
            if self._warnings == MOST_WARNINGS:
                log.log(self._level, "group-mismatch: further ones are counted, not shown")
        self._tell(difference, words)
