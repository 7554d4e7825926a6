"""What each fault of a bucket does to each verb of a daemon that keeps artifacts and leases in it.

CELLS is the matrix: data, each line of which is run here and printed in tests/README.md. A daemon's parts are put
together as app.py does, in this process, over a real object store behind a proxy that fails on demand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from failure_matrix import Cell, cells_of, complete, table, to_run
from failure_world import FailureWorld, check
from gcs_proxy import WRITES
from gcs_server import Cloud, gcs_tier, open_bucket

pytest.importorskip("google.cloud.storage", reason="needs the extras gcs and dev")

from coldstart.artifact import MAGIC
from coldstart.errors import TierError
from coldstart.lease.board import LeaseBoard
from coldstart.lease.gcs import GcsLeaseBoard
from coldstart.server.publisher import Published
from coldstart.store.breaker import NOBODYS_KEY, Breaker
from coldstart.store.gcs import GcsTier

WAITS = {"call_seconds": 0.6, "idle_seconds": 0.6, "backoff_seconds": 0.01}

gcs = cells_of("gcs")
# A lookup that ends in a lease was answered so because this daemon goes on by itself. "later": published here, and in
# the bucket once it can be. A lease is the fleet's, this daemon's own ("alone"), or somebody else's ("busy").
CELLS = (
    gcs("refused", "lookup", "error", "tier-down", "gcs.find.error"),
    gcs("refused", "fetch", "error", "tier-down", "gcs.get.error"),
    gcs("refused", "publish", "later", "ok", "gcs.put.error"),
    gcs("refused", "lease", "alone", "tier-down", "leases.alone"),
    gcs("slow", "lookup", "hit", "ok", "gcs.find.hit"),
    gcs("slow", "fetch", "hit", "ok", "gcs.get.hit"),
    gcs("slow", "publish", "stored", "ok", "gcs.put.ok"),
    gcs("slow", "lease", "fleet", "ok", "leases.fleet"),
    gcs("black hole", "lookup", "timeout", "deadline", "gcs.find.timeout"),
    gcs("black hole", "fetch", "timeout", "deadline", "gcs.get.timeout"),
    gcs("black hole", "publish", "later", "ok", "gcs.put.timeout"),
    gcs("black hole", "lease", "alone", "deadline", "leases.alone"),
    gcs("full", "lookup", "n/a", "asking needs no room"),
    gcs("full", "fetch", "hit", "ok", "gcs.get.hit"),
    gcs("full", "publish", "later", "ok", "gcs.put.full"),
    gcs("full", "lease", "alone", "quota", "leases.alone"),
    gcs("read-only", "lookup", "hit", "ok", "gcs.find.hit"),
    gcs("read-only", "fetch", "hit", "ok", "gcs.get.hit"),
    gcs("read-only", "publish", "later", "ok", "gcs.put.error"),
    gcs("read-only", "lease", "alone", "tier-down", "leases.alone"),
    gcs("evicting", "lookup", "miss", "cold", "gcs.find.miss"),
    gcs("evicting", "fetch", "miss", "evicted", "gcs.get.miss"),
    gcs("evicting", "publish", "stored", "ok", "gcs.put.ok"),
    gcs("evicting", "lease", "n/a", "leases have a lifetime of their own"),
    gcs("truncated", "lookup", "error", "corrupt", "gcs.heal.corrupt"),
    gcs("truncated", "fetch", "miss", "corrupt", "gcs.heal.corrupt"),
    gcs("truncated", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("truncated", "lease", "fleet", "ok", "leases.fleet"),
    gcs("bit-flipped", "lookup", "error", "corrupt", "gcs.get.corrupt"),
    gcs("bit-flipped", "fetch", "error", "corrupt", "gcs.get.corrupt"),
    gcs("bit-flipped", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("bit-flipped", "lease", "fleet", "ok", "leases.fleet"),
    gcs("wrong size", "lookup", "error", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong size", "fetch", "miss", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong size", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("wrong size", "lease", "busy", "ok", "leases.busy"),
    gcs("wrong key", "lookup", "error", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong key", "fetch", "miss", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong key", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("wrong key", "lease", "busy", "ok", "leases.busy"),
    gcs("old format", "lookup", "miss", "cold", "gcs.find.miss"),
    gcs("old format", "fetch", "miss", "evicted", "gcs.get.miss"),
    gcs("old format", "publish", "here only", "ok", "gcs.put.error"),
    gcs("old format", "lease", "n/a", "a note of another release is none, as if it were truncated"),
    gcs("lost mid-read", "lookup", "hit", "ok", "gcs.retry.error"),
    gcs("lost mid-read", "fetch", "hit", "ok", "gcs.retry.error"),
    gcs("lost mid-read", "publish", "stored", "ok", "gcs.retry.error"),
    gcs("lost mid-read", "lease", "fleet", "ok", "gcs.retry.error"),
    gcs("back again", "lookup", "hit", "ok", "gcs.breaker.closed"),
    gcs("back again", "fetch", "hit", "ok", "gcs.breaker.closed"),
    gcs("back again", "publish", "stored", "ok", "gcs.breaker.closed"),
    gcs("back again", "lease", "fleet", "ok", "leases.shared"),
)
RUN = to_run(CELLS)


class GcsWorld(FailureWorld):
    """Memory and a bucket behind a proxy, through which another daemon reaches it too."""

    place, no_room_words = "gcs", " 429"

    def __init__(self, cloud: Cloud, made: Any) -> None:
        super().__init__(made)
        self.cloud, tell = cloud, self.counts
        self.other = gcs_tier(cloud)
        bucket = open_bucket(
            cloud, patience=WAITS, on_retry=lambda word: tell("gcs", "retry", word, 0.0)
        )
        self.bucket = bucket
        self.tier = GcsTier(bucket, "team/x", recorder=tell)
        self.breaker = Breaker(self.tier, recorder=tell, first_seconds=0.2)
        fleet = GcsLeaseBoard(bucket, "team/x", poll_seconds=0.1)
        self.assemble(self.above(self.breaker), fleet=fleet)

    async def damage(self, fault: str) -> None:
        server, bucket, name = self.cloud.server, self.cloud.bucket, self.cloud.only("/artifacts/")
        if fault == "evicting":
            server.delete(bucket, name)
            return
        payload = self.artifact.payload.size_bytes
        change: dict[str, Callable[[bytes], bytes]] = {
            "truncated": lambda data: data[: payload // 2],
            "bit-flipped": lambda data: data[:5000] + bytes([data[5000] ^ 4]) + data[5001:],
            "wrong size": lambda data: data + b"more",
            "wrong key": lambda data: self._another(),
            "old format": lambda data: b"CSA0" + data[4:],
        }
        assert MAGIC == b"CSA1"
        server.damage(bucket, name, change[fault])

    def _another(self) -> bytes:
        made = self.made.artifact(self.made.record("another"))
        return bytes(made.header.prefix() + b"".join(made.payload.chunks()))

    def disturb(self, fault: str, verb: str) -> None:
        proxy = self.cloud.proxy
        if fault in ("refused", "back again"):
            proxy.refuse()
        elif fault == "slow":
            proxy.fail(seconds=0.05)
        elif fault == "black hole":
            proxy.fail(silent=True)
        elif fault == "full":
            proxy.fail(ops=WRITES, status=429 if verb == "lease" else 403, reason="quotaExceeded")
        elif fault == "read-only":
            proxy.fail(ops=WRITES, status=403, reason="forbidden")
        else:
            assert fault == "lost mid-read"
            op = {"publish": "write", "lease": "stat"}.get(verb, "read")
            proxy.fail(ops=(op,), times=1, cut_after=60)

    def heal(self) -> None:
        self.cloud.proxy.heal()

    async def recover(self) -> None:
        """It refused until the breaker opened."""
        for _ in range(3):
            with pytest.raises(TierError):
                await self.breaker.find(NOBODYS_KEY)
        assert self.breaker.open == ("reads",)
        self.cloud.proxy.accept()
        await self.until(lambda: not self.breaker.open)

    def holds_nothing(self) -> bool:
        return not self.cloud.names("team/x/coldstart/v1/artifacts/")

    def still_there(self, published: Published) -> bool:
        cloud = self.cloud
        kept = [name for name in cloud.names() if "/artifacts/" in name]
        if not any(cloud.server.read(cloud.bucket, name).startswith(b"CSA0") for name in kept):
            return False
        assert self.chain.late_puts == 0 and self.tier.writable  # nor is it tried again and again
        return True

    def other_board(self) -> LeaseBoard:
        """A new one at each call, so that what it says is what the bucket says."""
        return GcsLeaseBoard(self.other.bucket, "team/x")

    async def damage_lease(self, fault: str, fence: int) -> None:
        server, bucket = self.cloud.server, self.cloud.bucket
        name = self.cloud.only("/leases/")
        note = server.about(bucket, name)["metadata"]["coldstart-lease"]
        if fault == "wrong size":
            server.write(bucket, name, b"a body", {"coldstart-lease": note})
        elif fault == "wrong key":
            await self.bucket.delete(name, fence)
            elsewhere = name.replace(self.key, f"cs1-{'1' * 64}")
            for place in (elsewhere, name):
                server.write(bucket, place, b"", {"coldstart-lease": note})
        else:
            bad = note[: len(note) // 2] if fault == "truncated" else note.replace("[", "{")
            server.write(bucket, name, b"", {"coldstart-lease": bad})


@pytest.fixture
async def world(cloud: Cloud, made: Any) -> AsyncIterator[GcsWorld]:
    async with AsyncExitStack() as stack:
        one = GcsWorld(cloud, made)
        stack.push_async_callback(one.close)
        stack.callback(one.heal)  # first of all: closing waits for answers
        yield one


@pytest.mark.parametrize("cell", RUN, ids=str)
async def test_cell(world: GcsWorld, cell: Cell) -> None:
    await check(world, cell)


def test_no_pair_is_missing_and_few_are_not_applicable() -> None:
    assert complete(CELLS, "gcs") and len(RUN) == 49
    lines = table(CELLS)
    assert len(lines) == 2 + 13 and all(line.count("|") == 7 for line in lines)
