"""Audit: who published what, what was refused and why, one line each. In the log, and in a file where one is named.

A refusal is told once an hour for each copy, place and reason, or caller and call: lookups come again and again, and a
stranger must not fill the disk. Every one of them is counted.
Lines hold names and digests, no program.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from coldstart.artifact import Header
from coldstart.errors import ConfigError
from coldstart.outcomes import Reason
from coldstart.server.logs import say
from coldstart.server.tally import Tally

log = logging.getLogger("coldstart.audit")

TOLD = 4096  # refusals that are remembered, so as not to be told again
AGAIN_SECONDS = 3600.0


class Audit:
    """One daemon's audit. On one event loop."""

    def __init__(
        self, tally: Tally, file: Path | None = None, unix_now: Callable[[], float] = time.time
    ) -> None:
        """Raises ConfigError where the file can't be written."""
        self._tally = tally
        self._unix_now = unix_now
        self._told: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._file: TextIO | None = None
        if file is not None:
            try:
                self._file = file.open("a", buffering=1)  # a line is written when it is complete
            except OSError as exc:
                raise ConfigError(
                    f"audit_file={file}: {exc.strerror}; name a file in a folder that you may write"
                ) from exc

    def refused(self, tier: str, header: Header, why: str) -> None:
        """A copy that must not be believed was met in a tier."""
        what = (tier, header.key, header.digest, header.signature.hex(), why)
        if self._lately(what):
            self._tally.event_counts[Reason.SIGNATURE.value] += 1
            return
        self._tally.event(
            Reason.SIGNATURE.value, f"{tier}: {header.key[:16]} {header.digest[:12]}: {why}"
        )
        self._line(
            "copy refused",
            logging.WARNING,
            tier=tier,
            key=header.key,
            digest=header.digest,
            why=why,
            reason=Reason.SIGNATURE.value,
        )

    def bad(self, key: str, digest: str, why: str, said_by: str) -> None:
        """A copy was put aside: its bytes, or what it says of itself, were wrong."""
        self._tally.event("quarantined", f"{key[:16]} {digest[:12]}: {why}, said {said_by}")
        self._line("copy bad", logging.WARNING, key=key, digest=digest, why=why, said_by=said_by)

    def damaged(self, key: str) -> None:
        """A tier took away what wasn't even what it said of itself; nobody was offered it."""
        if not self._lately(("damaged", key)):
            why, by = "not what it says of itself", "the store"
            self._line("copy bad", logging.WARNING, key=key, digest="", why=why, said_by=by)

    def published(self, header: Header, producer: str, *, adopted: bool) -> None:
        """An artifact was taken in, or another was there first."""
        self._line(
            "published",
            logging.INFO,
            key=header.key,
            digest=header.digest,
            producer=producer,
            adopted=adopted,
        )

    def denied(self, who: str, what: str, why: str) -> None:
        """Somebody asked for what it may not."""
        if self._lately((who, what, why)):
            self._tally.event_counts[Reason.ROLE.value] += 1
            return
        self._tally.event(Reason.ROLE.value, f"{who}: {what}: {why}")
        self._line("denied", logging.WARNING, who=who, what=what, why=why, reason=Reason.ROLE.value)

    def trouble(self, words: str) -> None:
        """A file of keys or a list can't be used now."""
        self._tally.event("trust-file", words)
        self._line("trust file", logging.WARNING, error=words)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lately(self, what: tuple[str, ...]) -> bool:
        """Whether it was told lately. If not, it is now."""
        now = self._unix_now()
        if now - self._told.get(what, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return True
        self._told[what] = now
        self._told.move_to_end(what)
        if len(self._told) > TOLD:
            self._told.popitem(last=False)
        return False

    def _line(self, happened: str, level: int, **fields: Any) -> None:
        say(log, happened, level=level, audit=1, **fields)
        if self._file is None:
            return
        try:
            said = {"unix_seconds": round(self._unix_now(), 3), "audit": happened, **fields}
            self._file.write(json.dumps(said) + "\n")
        except OSError as exc:  # a full disk: the log has the line
            say(log, "audit file", level=logging.ERROR, error=exc)
