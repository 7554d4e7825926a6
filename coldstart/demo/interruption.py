"""Ctrl-C, SIGTERM and a closed terminal, noticed where it is safe.

A handler that raises could strike between the start of a process and the line that remembers its pid, and that process
would outlive us. So the handlers only make a descriptor readable; loops that wait look at it.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Whether a signal came. `fd` is readable from then on."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def wait(self, seconds: float = 0.0) -> None:
        """Let time pass. Raises KeyboardInterrupt at once when a signal has come or comes."""
        readable, _, _ = select.select([self.fd], [], [], seconds)
        if readable:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Inside, the signals make the yielded object readable and do nothing else. For the main thread."""
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def note(number: int, frame: FrameType | None) -> None:
        os.eventfd_write(fd, 1)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield Interruption(fd)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(fd)
