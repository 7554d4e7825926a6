"""Progress of a bench: how much is done, and when it may all be. One line now and then, and a last one.

What is done in other processes is counted in files: a line for each thing, or the number of things in a line (`note`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Progress:
    """Looks how much is done and says so every `seconds`."""

    def __init__(self, say: Callable[[str], None], seconds: float = 10.0) -> None:
        self._say = say
        self._seconds = seconds

    @contextmanager
    def of(
        self,
        name: str,
        count: Callable[[], int],
        before: int,
        total: int,
        things: str = "programs",
    ) -> Iterator[None]:
        """Inside, say how `count` grows from `before` to `total` of `things`."""
        began, over = time.monotonic(), threading.Event()

        def now() -> str:
            done, seconds = count(), time.monotonic() - began
            return told(name, done, before, total, seconds, things)

        def watch() -> None:
            while not over.wait(self._seconds):
                self._say(now())

        self._say(
            f"{name}: {total - before} {things} to go" + (f", {before} done earlier" * bool(before))
        )
        watcher = threading.Thread(target=watch, name="coldstart-bench-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self._say(now())


def quiet() -> Progress:
    """One that says nothing."""
    return Progress(lambda line: None, 3600.0)


def note(record: Path, things: int = 1) -> None:
    """So many more are done."""
    with record.open("a") as file:
        file.write(f"{things}\n")


def count_noted(record: Path) -> int:
    """All that was noted there; what is being written doesn't count yet."""
    if not record.exists():
        return 0
    return sum(
        int(line) for line in record.read_text().splitlines(keepends=True) if line.endswith("\n")
    )


def told(
    name: str, done: int, before: int, total: int, seconds: float, things: str = "programs"
) -> str:
    """One line: what is done, and what is left at the pace so far."""
    line = f"{name}: {done}/{total} {things}, {_clock(seconds)}"
    new = done - before
    if done >= total or new <= 0:
        return line
    return f"{line}, about {_clock(seconds / new * (total - done))} left"


def count_lines(records: Sequence[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in records if path.exists())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
