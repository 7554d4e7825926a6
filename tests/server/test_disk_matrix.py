"""What each fault of a disk does to each verb of a daemon that keeps its artifacts there, and nowhere else.

CELLS is the matrix: data, each line of which is run here and printed in tests/README.md. A daemon's parts are put
together as app.py does, in this process; another daemon has the same folder open. The faults are the kernel's:
disk_faults.py says how.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from disk_faults import HeldFile, Volume, as_nobody, can_mount
from failure_matrix import FAULTS, Cell, cells_of, complete, table, to_run
from failure_world import FailureWorld, check

from coldstart.artifact import MAGIC
from coldstart.errors import TierError
from coldstart.store import disk as disk_module
from coldstart.store.disk import DiskTier
from coldstart.store.urls import disk_of, open_store

SILENT_SECONDS = 0.6
SLOW_SECONDS = 0.08
VOLUME_KIB = 1024

disk = cells_of("disk")
NO_LEASES = "leases on a disk are those of one daemon, in its memory"

# "host only": nothing is stored, as there is no other tier; whoever compiled has what it needs.
CELLS = (
    disk("refused", "lookup", "error", "tier-down", "disk.find.error"),
    disk("refused", "fetch", "error", "tier-down", "disk.get.error"),
    disk("refused", "publish", "host only", "tier-down", "disk.put.error"),
    disk("slow", "lookup", "hit", "ok", "disk.find.hit"),
    disk("slow", "fetch", "hit", "ok", "disk.get.hit"),
    disk("slow", "publish", "stored", "ok", "disk.put.ok"),
    disk("black hole", "lookup", "timeout", "deadline", "disk.find.timeout"),
    disk("black hole", "fetch", "timeout", "deadline", "disk.get.timeout"),
    disk("black hole", "publish", "host only", "deadline", "disk.put.timeout"),
    disk("full", "lookup", "n/a", "asking needs no room"),
    disk("full", "fetch", "hit", "ok", "disk.get.hit"),
    disk("full", "publish", "host only", "quota", "disk.put.full"),
    disk("read-only", "lookup", "hit", "ok", "disk.find.hit"),
    disk("read-only", "fetch", "hit", "ok", "disk.get.hit"),
    disk("read-only", "publish", "host only", "tier-down", "disk.put.error"),
    disk("evicting", "lookup", "miss", "cold", "disk.find.miss"),
    disk("evicting", "fetch", "miss", "evicted", "disk.get.miss"),
    disk("evicting", "publish", "stored", "ok", "disk.put.ok"),
    disk("truncated", "lookup", "error", "corrupt", "disk.heal.corrupt"),
    disk("truncated", "fetch", "miss", "corrupt", "disk.heal.corrupt"),
    disk("truncated", "publish", "repaired", "ok", "disk.heal.corrupt"),
    disk("bit-flipped", "lookup", "error", "corrupt", "disk.quarantine.ok"),
    disk("bit-flipped", "fetch", "error", "corrupt", "disk.quarantine.ok"),
    disk("bit-flipped", "publish", "repaired", "ok", "disk.heal.corrupt"),
    disk("wrong size", "lookup", "error", "corrupt", "disk.heal.corrupt"),
    disk("wrong size", "fetch", "miss", "corrupt", "disk.heal.corrupt"),
    disk("wrong size", "publish", "repaired", "ok", "disk.heal.corrupt"),
    disk("wrong key", "lookup", "error", "corrupt", "disk.get.corrupt"),
    disk("wrong key", "fetch", "error", "corrupt", "disk.get.corrupt"),
    disk("wrong key", "publish", "repaired", "ok", "disk.heal.corrupt"),
    disk("old format", "lookup", "miss", "cold", "disk.heal.ok"),
    disk("old format", "fetch", "miss", "evicted", "disk.heal.ok"),
    disk("old format", "publish", "stored", "ok", "disk.heal.ok"),
    disk("lost mid-read", "lookup", "miss", "cold", "disk.find.miss"),
    disk("lost mid-read", "fetch", "error", "corrupt", "disk.get.corrupt"),
    disk("lost mid-read", "publish", "host only", "tier-down", "disk.put.error"),
    disk("back again", "lookup", "hit", "ok", "disk.find.hit"),
    disk("back again", "fetch", "hit", "ok", "disk.get.hit"),
    disk("back again", "publish", "stored", "ok", "disk.put.ok"),
    *(disk(fault, "lease", "n/a", NO_LEASES) for fault in FAULTS),
)
RUN = to_run(CELLS)


class DiskWorld(FailureWorld):
    """A folder, on a volume of its own where that has to fail as a whole; another daemon has it open too."""

    place = "disk"

    def __init__(self, root: Path, made: Any, volume: Volume | None = None) -> None:
        super().__init__(made)
        self.root, self.volume = root, volume
        self.other = DiskTier(root)
        chain = open_store([f"disk://{root}"], recorder=self.counts)
        self.assemble(chain, disk=disk_of(chain))
        (
            root / "v1" / "locks" / "limit"
        ).touch()  # it isn't the first time that something is stored
        self._faults = ExitStack()
        self._healed = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None
        self._was_waited_for = True
        self._lose_spool = False

    def files(self, kind: str) -> list[Path]:
        return sorted(path for path in (self.root / "v1" / kind).rglob("*") if path.is_file())

    async def damage(self, fault: str) -> None:
        ((path,), (entry,)) = self.files("objects"), self.files("keys")
        data = path.read_bytes()
        if fault == "evicting":
            await self._evict()
            assert not path.exists()
        elif fault == "truncated":
            os.truncate(path, len(data) // 2)
        elif fault == "bit-flipped":
            path.write_bytes(data[:5000] + bytes([data[5000] ^ 4]) + data[5001:])
        elif fault == "wrong size":
            path.write_bytes(data + b"more")
        elif fault == "wrong key":
            another = self.made.artifact(self.made.record("mirror"), bytes(102_400), codec="raw")
            whole = another.header.prefix() + b"".join(another.payload.chunks())
            assert len(whole) == len(data)  # so that only its header tells
            path.write_bytes(whole)
        else:
            assert fault == "old format" and MAGIC == b"CSA1"
            header = self.artifact.header.encode().replace(b'"format":1', b'"format":0')
            path.write_bytes(b"CSA0" + data[4:])
            said = json.loads(entry.read_bytes())
            said |= {"header": header.decode(), "header_hash": sha256(header).hexdigest()}
            entry.write_text(json.dumps(said))

    async def _evict(self) -> None:
        """A third daemon, whose limit is lower, needs the room."""
        small = DiskTier(self.root, limit_bytes=150_000)
        record = self.made.record("another")
        await small.put(self.made.artifact(record, bytes(100_000), codec="raw"), record)
        await small.close()

    def disturb(self, fault: str, verb: str) -> None:
        if fault in ("refused", "back again"):
            self._faults.enter_context(as_nobody(self.root))
        elif fault == "slow":
            self._hold(verb, lambda held: asyncio.sleep(SLOW_SECONDS))
        elif fault == "black hole":
            self._hold(verb, lambda held: self._healed.wait())
        elif fault == "full":
            self.volume.fill()
            self._faults.callback(self.volume.empty)
        elif fault == "read-only":
            self.volume.freeze()
            self._faults.callback(self.volume.thaw)
        else:
            assert fault == "lost mid-read"
            self._lose_spool = verb == "publish"  # what was read of a publisher is lost
            if verb != "publish":
                self._hold(verb, lambda held: self._lose(held, verb))

    def _needed(self, verb: str) -> Path:
        """The file without which the verb can't be done."""
        if verb == "publish":
            return self.root / "v1" / "locks" / "limit"
        (path,) = self.files({"lookup": "keys", "fetch": "objects"}[verb])
        return path

    def _hold(self, verb: str, meanwhile: Callable[[HeldFile], Awaitable[Any]]) -> None:
        """The file that the verb needs can't be opened before `meanwhile` ends, which begins when somebody waits."""
        held = self._faults.enter_context(HeldFile(self._needed(verb)))

        async def hold() -> None:
            await self.until(lambda: held.waited_for)
            self._was_waited_for = True
            await meanwhile(held)
            held.let_go()

        self._was_waited_for = False
        self._holding = asyncio.create_task(hold())

    async def _lose(self, held: HeldFile, verb: str) -> None:
        """While a reader is at it."""
        if verb == "lookup":
            for path in (*self.files("keys"), *self.files("objects")):
                path.unlink()  # in the order in which an eviction does
        else:
            held.cut(5000)

    async def _chunks(self) -> AsyncIterator[bytes]:
        async for chunk in super()._chunks():
            for path in self.files("tmp") if self._lose_spool else ():
                path.unlink()
            self._lose_spool = False
            yield chunk

    def heal(self) -> None:
        self._faults.close()
        self._healed.set()

    async def close(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
        await super().close()
        assert self._was_waited_for  # or it was no fault at all

    async def recover(self) -> None:
        with pytest.raises(TierError):
            await self.chain.find(self.key)
        self.heal()

    def holds_nothing(self) -> bool:
        return not self.files("objects") and not self.files("keys")


@pytest.fixture
def volume(cell: Cell, tmp_path: Path) -> Iterator[Volume | None]:
    if cell.fault not in ("full", "read-only"):
        yield None
        return
    if not can_mount():
        pytest.skip("needs the right to mount a tmpfs of its own")
    with Volume(tmp_path, VOLUME_KIB) as one:
        yield one


@pytest.fixture
async def world(
    tmp_path: Path, volume: Volume | None, made: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DiskWorld]:
    for name in ("READ_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(disk_module, name, SILENT_SECONDS)
    async with AsyncExitStack() as stack:
        one = DiskWorld((volume.root if volume else tmp_path) / "store", made, volume)
        stack.push_async_callback(one.close)
        stack.callback(one.heal)  # first of all: closing waits for answers
        yield one


@pytest.mark.parametrize("cell", RUN, ids=str)
async def test_cell(world: DiskWorld, cell: Cell) -> None:
    await check(world, cell)


def test_no_pair_is_missing_and_few_are_not_applicable() -> None:
    assert complete(CELLS, "disk") and len(RUN) == 38
    lines = table(CELLS)
    assert len(lines) == 2 + 13 and all(line.count("|") == 7 for line in lines)
