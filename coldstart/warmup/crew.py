"""The crew: worker processes under a target's environment, and one queue with what they say.

Workers have sessions of their own, so that a terminal's Ctrl-C reaches only the command, which then sends them home.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from coldstart.warmup.plan import Plan
from coldstart.warmup.targets import Target

GONE = "gone"  # the event that a process ended; `code` is its exit status
DISMISS_SECONDS = 10.0
TAIL_BYTES = 4000


class Hand:
    """One worker process."""

    def __init__(self, number: int, process: subprocess.Popen[str], log: Any) -> None:
        self.number = number
        self.ready = False
        self.entry: int | None = None  # what it is at: nothing else is sent meanwhile
        self.open: set[int] = (
            set()
        )  # sent and not settled: that, and what it waits for or publishes
        self._process = process
        self._log = log

    def order(self, **order: Any) -> None:
        """Send a line. A process that is gone says so by its event."""
        self.entry = int(order["entry"])
        self._send(order)

    def _send(self, line: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def last_words(self) -> str:
        """The end of what it wrote to standard error, in one line."""
        self._log.seek(0, 2)
        self._log.seek(max(0, self._log.tell() - TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1].split())[:300] if lines else ""

    def dismiss(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Until it has gone; then it is made to."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Crew:
    """Up to `jobs` workers for one plan and target. A context manager: at its end all have gone."""

    def __init__(self, plan: Plan, target: Target, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._target = target
        self._environ = dict(environ)
        self._events: queue.SimpleQueue[tuple[Hand, dict[str, Any]]] = queue.SimpleQueue()
        self._numbers = 0
        self.hands: list[Hand] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self.hands:
            hand.dismiss()
        deadline = time.monotonic() + DISMISS_SECONDS
        for hand in self.hands:
            hand.wait(max(0.0, deadline - time.monotonic()))

    def hire(self) -> Hand:
        """Start one more worker; it says `ready` when it is."""
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed in Hand.wait
        process = subprocess.Popen(
            [sys.executable, "-m", "coldstart.warmup.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=self._environ,
            start_new_session=True,
        )
        hand = Hand(self._numbers, process, log)
        self._numbers += 1
        self.hands.append(hand)
        hand._send({"plan": asdict(self._plan), "target": self._target.name})
        threading.Thread(target=self._listen, args=(hand, process), daemon=True).start()
        return hand

    def event(self) -> tuple[Hand, dict[str, Any]]:
        """The next thing that a worker says. A signal's handler may raise out of this."""
        hand, event = self._events.get()
        if event["event"] == GONE and hand in self.hands:
            self.hands.remove(hand)
        return hand, event

    def _listen(self, hand: Hand, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # half a line of a process that died
                    self._events.put((hand, json.loads(line)))
        code = process.wait()
        self._events.put((hand, {"event": GONE, "entry": None, "code": code}))


def how_it_ended(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, out of memory?" if -code == signal.SIGKILL else name
