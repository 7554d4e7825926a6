"""Passes: how a daemon learns which user calls it over the Unix socket. gRPC doesn't say; the kernel does.

Beside the socket `c.sock` lies `c.sock.who`. Whoever connects there is told one line, its *pass*, and hung up on: the
user and process id that the kernel gives for the connection, and a MAC over them. It sends the line as metadata
`coldstart-pass` with each call. The MAC's key lies in `c.sock.who-key` (0600), so that passes outlive a restart of the
daemon, which clients don't notice.

A pass is worth what its holder's memory is: who can read that, can be its user anyway. It is sent over the Unix socket
only.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import struct
from pathlib import Path

from coldstart.errors import ConfigError

DOOR = ".who"
KEY_FILE = ".who-key"
KEY_BYTES = 32
MOST_READ = 4096
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, as Linux gives them


class Passes:
    """Makes passes and reads them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._read: dict[
            str, int
        ] = {}  # passes that were found good: a process shows its own with each call

    def issue(self, uid: int, pid: int) -> str:
        return f"{uid}.{pid}.{self._mac(f'{uid}.{pid}')}"

    def uid(self, text: str) -> int | None:
        """Whose pass it is; None: nobody's."""
        known = self._read.get(text)
        if known is not None:
            return known
        said, _, mac = text.rpartition(".")
        if not said.isascii() or not hmac.compare_digest(mac.encode(), self._mac(said).encode()):
            return None
        if len(self._read) >= MOST_READ:
            self._read.clear()
        self._read[text] = uid = int(said.partition(".")[0])
        return uid

    def _mac(self, said: str) -> str:
        return hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()


def open_passes(socket_path: Path) -> Passes:
    """With the key beside that socket, which is made where there is none. Raises ConfigError."""
    path = socket_path.with_name(socket_path.name + KEY_FILE)
    try:
        key = _read(path)
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
            path.unlink(missing_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(key)
    except OSError as exc:
        raise ConfigError(
            f"listen=unix://{socket_path}: {path} can't be used ({exc.strerror}); who calls is told by it"
        ) from exc
    return Passes(key)


def _read(path: Path) -> bytes | None:
    """The key, if it is one that only we can have written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            return None
        key = file.read(KEY_BYTES + 1)
    return key if len(key) == KEY_BYTES else None


async def open_door(passes: Passes, path: Path) -> asyncio.Server:
    """Listens at `path` and gives passes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            caller: socket.socket = writer.get_extra_info("socket")
            packed = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, _ = _CREDENTIALS.unpack(packed)
            writer.write(f"{passes.issue(uid, pid)}\n".encode())
        finally:
            writer.close()

    return await asyncio.start_unix_server(answer, path)
