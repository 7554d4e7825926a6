"""The Unix socket's place: who may use it, and that only one daemon does.

A lock file beside the socket is held for the daemon's life, so that two daemons that start at once can't both
think the other's socket stale. A socket file whose lock is free was left by a daemon that died: it is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote

from coldstart.errors import ColdstartError, ConfigError
from coldstart.server.passes import DOOR

FOLDER_MODE = 0o700


class SocketPlace:
    """One Unix socket path, held from `take` to `release`."""

    def __init__(self, path: Path, *, mode: int, group: str | None) -> None:
        self.path = path
        self._mode = mode
        self._group = group
        self._lock: int | None = None
        self._private: Path | None = None
        self._bound: dict[
            Path, tuple[int, int]
        ] = {}  # device and inode of each socket that is ours

    def take(self) -> None:
        """Make the folder, and be the only one here.

        Raises:
            ColdstartError: a daemon listens there. ConfigError: the path can't be used.
        """
        folder = self.path.parent
        try:
            if not folder.exists():
                folder.mkdir(mode=FOLDER_MODE, parents=True)
            self._lock = os.open(
                self.path.with_name(self.path.name + ".lock"),
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                0o600,
            )
        except OSError as exc:
            raise ConfigError(
                f"listen=unix://{self.path}: {folder} can't be used ({exc.strerror}); "
                "name a folder that you may write, for example --listen unix:///tmp/me/coldstart.sock"
            ) from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._lock, 20).decode(errors="replace").strip()
            self._close()
            raise self._taken(f"pid {owner}" if owner else "another process") from None
        try:
            self._clear()
        except BaseException:
            self._close()
            raise
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def birthplace(self) -> str:
        """Where gRPC binds the socket: in a folder of its own, until `move_in`. Quoted, as gRPC takes it for a URI."""
        return "unix:" + quote(str(self._nursery() / "s"))

    def door_birthplace(self) -> Path:
        """As `birthplace`, for the socket beside it that tells who somebody is (passes.py)."""
        return self._nursery() / "w"

    def _nursery(self) -> Path:
        """A folder that nobody else may enter.

        A umask would do for a process of one thread; this one has a store's threads making files meanwhile.
        """
        if self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix=".", dir=self.path.parent))  # mode 0700
        return self._private

    def move_in(self) -> None:
        """Give the bound sockets their mode and group, then their names."""
        door = self._nursery() / "w"
        if door.exists():
            self._name(door, self.path.with_name(self.path.name + DOOR))
        self._name(self._nursery() / "s", self.path)

    def _name(self, born: Path, path: Path) -> None:
        try:
            if self._group is not None:
                self._give_to(born, grp.getgrnam(self._group).gr_gid)
            born.chmod(self._mode)
            status = born.stat()
            self._bound[path] = (status.st_dev, status.st_ino)
            born.rename(path)
        except KeyError:
            raise ConfigError(
                f"socket_group={self._group!r}: there is no such group; name one of /etc/group"
            ) from None
        except OSError as exc:
            raise ConfigError(
                f"listen=unix://{self.path}: the socket can't be set up there ({exc.strerror}); "
                "is this user in socket_group, and may it write the folder?"
            ) from exc

    def _give_to(self, born: Path, group: int) -> None:
        os.chown(born, -1, group)
        folder = self.path.parent
        status = folder.stat()
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == FOLDER_MODE:
            os.chown(folder, -1, group)
            folder.chmod(FOLDER_MODE | stat.S_IXGRP)  # the group may pass, not look around

    def release(self) -> None:
        """Remove the sockets if they are still ours, and let the next daemon in."""
        for path, bound in self._bound.items():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if (status.st_dev, status.st_ino) == bound:
                    path.unlink()
        self._bound.clear()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None
        self._close()

    def _clear(self) -> None:
        """Take a dead socket away; raise where something lives there."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise ConfigError(
                f"listen=unix://{self.path}: something else is there, not a socket; name another path"
            )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.path))
            except (ConnectionRefusedError, FileNotFoundError):
                pass
            except OSError:  # a full backlog or silence: somebody holds it
                raise self._taken("a process that does not answer") from None
            else:
                raise self._taken("another process")
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _taken(self, owner: str) -> ColdstartError:
        return ColdstartError(
            f"a daemon already listens at unix://{self.path} ({owner}); "
            "use it, stop it, or give --listen another path"
        )

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
