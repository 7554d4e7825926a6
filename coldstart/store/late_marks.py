"""LateMarks: which puts a tier has still to be given, on disk, so a daemon that is killed makes them when it is back.

    <folder>/<tier>/<key>.<variant or any>   the artifact's header

Written before whoever published is told, and only where a tier could not take it. Without a folder nothing is kept.
Blocking. Whatever goes wrong here costs the other daemons an artifact, never the publisher.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from coldstart.artifact import Header, decode_header
from coldstart.errors import ArtifactError

log = logging.getLogger(__name__)

NO_VARIANT = "any"
NEW = ".new"  # not complete yet


class LateMarks:
    """The marks of one chain."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def kept(self) -> bool:
        """Whether they outlive the process."""
        return self._folder is not None

    def add(self, tier: str, header: Header) -> None:
        """Durable when it returns, or a warning in the log."""
        if self._folder is None:
            return
        path = self._path(self._folder, tier, header)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path.with_name(path.name + NEW), "wb") as file:
                file.write(header.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            log.warning("a late put into %s is not remembered over a restart: %s", tier, exc)

    def drop(self, tier: str, header: Header) -> None:
        if self._folder is not None:
            with suppress(OSError):
                self._path(self._folder, tier, header).unlink(missing_ok=True)

    def all(self, tier: str) -> list[Header]:
        """What is marked for that tier. A mark that can't be read is taken away."""
        if self._folder is None:
            return []
        found = []
        with suppress(OSError):
            for path in sorted((self._folder / tier).iterdir()):
                try:
                    if not path.name.endswith(NEW):
                        found.append(decode_header(path.read_bytes()))
                        continue
                except ArtifactError as exc:
                    log.warning("a mark of a late put into %s can't be read: %s", tier, exc)
                path.unlink(missing_ok=True)
        return found

    @staticmethod
    def _path(folder: Path, tier: str, header: Header) -> Path:
        return folder / tier / f"{header.key}.{header.variant or NO_VARIANT}"
