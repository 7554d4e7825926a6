"""The Unix socket's place: who may use it, and that only one daemon does.

A lock file beside the socket is held for the daemon's life, so that two daemons that start at once can't both
think the other's socket stale. A socket file whose lock is free was left by a daemon that died: it is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from coldstart.errors import ColdstartError, ConfigError

FOLDER_MODE = 0o700


class SocketPlace:
    """One Unix socket path, held from `take` to `release`."""

    def __init__(self, path: Path, *, mode: int, group: str | None) -> None:
        self.path = path
        self._mode = mode
        self._group = group
        self._lock: int | None = None
        self._bound: tuple[int, int] | None = None  # device and inode of the socket that is ours

    @property
    def grpc_address(self) -> str:
        """As gRPC wants it: a URI, so that a space or a percent sign is quoted."""
        return "unix:" + quote(str(self.path))

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

    @contextlib.contextmanager
    def only_ours(self) -> Iterator[None]:
        """While gRPC binds: the socket is born without rights for others."""
        before = os.umask(0o177)
        try:
            yield
        finally:
            os.umask(before)

    def dress(self) -> None:
        """Give the bound socket the mode and group that were asked for."""
        try:
            if self._group is not None:
                number = grp.getgrnam(self._group).gr_gid
                os.chown(self.path, -1, number)
                folder = self.path.parent
                if folder.stat().st_uid == os.geteuid() and stat.S_IMODE(folder.stat().st_mode) == 0o700:
                    os.chown(folder, -1, number)
                    folder.chmod(0o710)  # the group may pass, not look around
            os.chmod(self.path, self._mode)
        except KeyError:
            raise ConfigError(
                f"socket_group={self._group!r}: there is no such group; name one of /etc/group"
            ) from None
        except OSError as exc:
            raise ConfigError(
                f"socket_group={self._group!r}: not allowed for {self.path} ({exc.strerror}); "
                "name a group that this user is in"
            ) from exc
        status = self.path.stat()
        self._bound = (status.st_dev, status.st_ino)

    def release(self) -> None:
        """Remove the socket if it is still ours, and let the next daemon in."""
        if self._bound is not None:
            with contextlib.suppress(FileNotFoundError):
                status = self.path.stat()
                if (status.st_dev, status.st_ino) == self._bound:
                    self.path.unlink()
            self._bound = None
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
