"""Faults of a disk that are the kernel's own: a file that nobody can open for now, rights that are gone, a volume that
is full or can only be read.

    HeldFile   whoever opens the file waits, as on a disk that doesn't answer: a lease on it (fcntl(2)) is not
               given back
    Volume     a small tmpfs of its own, in the mount namespace of a process that sleeps; reached through /proc.
               A folder of it can be made one that never answers, as of a file server that is gone
    as_nobody  this process without root's rights
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

NOBODY = 65534

# A server of a file system that reads no request: the kernel's callers wait for as long as it lives.
HANG = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
server = os.open("/dev/fuse", os.O_RDWR)
about = f"fd={server},rootmode=40000,user_id=0,group_id=0"
if libc.mount(b"silent", sys.argv[1].encode(), b"fuse", 0, about.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
print("hung", flush=True)
sys.stdin.read()
"""


class HeldFile(AbstractContextManager["HeldFile"]):
    """Opening `path` waits in the kernel until `let_go`, or for /proc/sys/fs/lease-break-time (45 s)."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # The kernel tells the holder that somebody waits; SIGURG is the signal that does nothing by default.
        fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    @property
    def waited_for(self) -> bool:
        """Somebody waits for it now."""
        return self._fd >= 0 and fcntl.fcntl(self._fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def cut(self, size_bytes: int) -> None:
        """Shorten the file, by the holder's own hand: others would have to wait too."""
        os.ftruncate(self._fd, size_bytes)

    def let_go(self) -> None:
        if self._fd >= 0:
            fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            os.close(self._fd)
            self._fd = -1

    def __exit__(self, *_: object) -> None:
        self.let_go()


def can_mount() -> bool:
    """True where a process may have a tmpfs of its own."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(command, capture_output=True).returncode
    )


class Volume(AbstractContextManager["Volume"]):
    """A file system of `size_kib`; it goes with the process that holds it, which is ended by pid."""

    def __init__(self, folder: Path, size_kib: int) -> None:
        mount = folder / "mount"
        mount.mkdir()
        command = f"mount -t tmpfs -o size={size_kib}k tmpfs {mount} && echo there && exec cat"
        self._process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"there\n"
        self._mount = mount
        self._silent: subprocess.Popen[bytes] | None = None
        self.root = Path(f"/proc/{self._process.pid}/root{mount}")

    def freeze(self) -> None:
        """It can only be read: mounted once more over itself, as open files would keep it from being remounted."""
        self._run(f"mount --bind {self._mount} {self._mount}")
        self._run(f"mount -o remount,bind,ro {self._mount}")

    def leave(self) -> None:
        """It isn't mounted any more; who has a file of it open keeps that."""
        self._run(f"umount -l {self._mount}")

    def thaw(self) -> None:
        self._run(f"umount {self._mount}")

    def hang(self, folder: str) -> None:
        """Whoever looks below `folder` waits: a file system by FUSE lies over it, whose server says nothing."""
        self._hung = self._mount / folder
        command = [*self._within, sys.executable, "-c", HANG, str(self._hung)]
        self._silent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._silent.stdout is not None and self._silent.stdout.readline() == b"hung\n"

    def answer(self) -> None:
        """It is as it was; who waited is told that the file system was disconnected."""
        if self._silent is not None:
            self._silent.kill()
            self._silent.communicate()
            self._silent = None
            self._run(f"umount -l {self._hung}")

    @property
    def _within(self) -> list[str]:
        return ["nsenter", "-t", str(self._process.pid), "-U", "-m", "--preserve-credentials"]

    def _run(self, command: str) -> None:
        subprocess.run([*self._within, "sh", "-c", command], check=True)

    def fill(self) -> None:
        """Not a byte is left."""
        with (self.root / "filler").open("wb", buffering=0) as filler:
            while True:
                try:
                    filler.write(bytes(4096))
                except OSError:
                    return

    def empty(self) -> None:
        (self.root / "filler").unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.answer()
        self._process.kill()
        self._process.communicate()


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Nothing below `folder` is this process's to read."""
    folder.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)
