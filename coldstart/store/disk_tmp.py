"""TempFolder: names for files that are not published yet, and the sweep of those whose owner died.

The owner is told by a locked file, not by a process id: ids mean nothing across containers that share a volume,
while the kernel drops a lock at the moment its process is gone, however it went.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from pathlib import Path

from coldstart.store.disk_layout import unlink

OWNER_SUFFIX = ".owner"
SPOOL_SUFFIX = ".spool"  # of files that grow while their bytes arrive


class TempFolder:
    """tmp/ of one store, as one process sees it. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()  # around taking and letting go of the owner file
        self._owner = ""
        self._owner_fd = -1

    def new_path(self, suffix: str = "") -> Path:
        """A fresh name of this owner. Takes the owner file at the first call (so a reader never writes)."""
        return self.folder / f"{self._own()}-{secrets.token_hex(8)}{suffix}"

    def owns(self, path: Path) -> bool:
        """True for a path that `new_path` gave out in this process."""
        return (
            bool(self._owner)
            and path.parent == self.folder
            and path.name.startswith(f"{self._owner}-")
        )

    def sizes(self, suffix: str = "") -> list[int]:
        """Sizes of all unpublished files whose names end so, of every process."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(OWNER_SUFFIX) or not entry.name.endswith(suffix):
                    continue
                try:
                    found.append(entry.stat(follow_symlinks=False).st_size)
                except FileNotFoundError:
                    continue  # published or dropped since
        return found

    def sweep(self) -> int:
        """Remove files of dead owners; returns how many."""
        names = os.listdir(self.folder)
        alive: dict[str, bool] = {self._owner: True} if self._owner else {}
        swept = 0
        # An owner file is written before its owner's first temporary file, and `names` was listed before any
        # owner is asked; so a temporary file listed here belongs to an owner that can be asked.
        for name in names:
            owner = name.removesuffix(OWNER_SUFFIX) if name.endswith(OWNER_SUFFIX) else ""
            owner = owner or name.partition("-")[0]
            if len(owner) != 16 or not all(c in "0123456789abcdef" for c in owner):
                continue  # a stranger's
            if owner not in alive:
                alive[owner] = self._is_alive(owner)
            if not alive[owner] and not name.endswith(OWNER_SUFFIX):
                swept += unlink(self.folder / name)
        for owner, lives in alive.items():
            if not lives:  # last, so that a sweep that dies half-way is taken up by the next
                unlink(self.folder / (owner + OWNER_SUFFIX))
        return swept

    def close(self) -> None:
        """Let go of the owner file; what is still in tmp/ is then anybody's to sweep."""
        with self._lock:
            if self._owner_fd >= 0:
                unlink(self.folder / (self._owner + OWNER_SUFFIX))
                os.close(self._owner_fd)
            self._owner, self._owner_fd = "", -1

    def _own(self) -> str:
        with self._lock:
            if self._owner and not (self.folder / (self._owner + OWNER_SUFFIX)).exists():
                os.close(self._owner_fd)  # somebody cleaned up: it would be a dead owner to others
                self._owner, self._owner_fd = "", -1
            while not self._owner:
                owner = secrets.token_hex(8)
                path = self.folder / (owner + OWNER_SUFFIX)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.stat(path)
                except (BlockingIOError, FileNotFoundError):
                    os.close(fd)  # a sweeper took the new file for a dead owner's: make another
                    continue
                self._owner, self._owner_fd = owner, fd
            return self._owner

    def _is_alive(self, owner: str) -> bool:
        try:
            fd = os.open(self.folder / (owner + OWNER_SUFFIX), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)
