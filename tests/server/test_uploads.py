"""Publishes that stop half-way: what they hold is bounded, they end, and harm nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from dataclasses import replace

import grpc
import pytest

from coldstart import wire
from coldstart.client.client import CacheClient
from coldstart.errors import InvalidRequest, TierFull
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server import uploads as module
from coldstart.server.publisher import Publication, Published, Publisher
from coldstart.server.uploads import Uploads


def start_of(one, made, upload_id: str, data: bytes = b"", last: bool = False) -> pb.UploadRequest:
    return pb.UploadRequest(
        upload_id=upload_id,
        start=pb.PublishStart(
            lookup_id=one.id, header=made.header.encode(), record=wire.record_to_pb(one.record)
        ),
        data=data,
        last=last,
    )


def test_unfinished_uploads_of_4_gib_evict_nobody(tmp_path, start_daemon, asking, made):
    """Eight announce 4 GiB each and send 1 MiB of it, into a store of 20 GiB with artifacts in it."""
    daemon = start_daemon("--max-artifact=8GiB")
    kept = [asking(daemon.cache, made.record(f"kept{n}")) for n in range(5)]
    for one in kept:
        one.publish(made.artifact(one.record, raw=b"k" * 1000))
    for n in range(8):
        one = asking(daemon.cache, made.record(f"big{n}"))
        big = made.artifact(one.record, raw=b"x", codec="raw")
        header = replace(big.header, payload_bytes=4 << 30)
        request = start_of(one, big, uuid.uuid4().hex, data=bytes(1 << 20))
        request.start.header = header.encode()
        assert not daemon.cache.Upload(request, timeout=20).HasField("published")
    (tier,) = daemon.stats().tiers
    assert tier.bytes < 64 << 20  # not 32 GiB
    assert "evict.ok" not in tier.operations
    for one in kept:
        again = asking(daemon.cache, one.record)
        assert again.lookup().WhichOneof("answer") == "hit"


def test_a_piece_has_a_largest_size(shared_daemon, asking, new_record, made):
    one = asking(shared_daemon.cache, new_record)
    big = made.artifact(new_record, raw=bytes(module.MAX_PIECE_BYTES + 1), codec="raw")
    with pytest.raises(grpc.RpcError) as refused:
        shared_daemon.cache.Upload(
            start_of(one, big, "u", data=bytes(module.MAX_PIECE_BYTES + 1)), timeout=20
        )
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class Slow:
    """A publish that takes everything in and ends when it is let."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.go_on = asyncio.Event()

    async def __call__(self, publication, chunks) -> Published:
        async for chunk in chunks:
            self.taken.append(chunk)
            if chunk == b"refuse":
                raise InvalidRequest("refused")
        await self.go_on.wait()
        return Published(digest=publication.lookup_id)


def publication(made, word: str) -> Publication:
    record = made.record(word)
    return Publication(word, "", made.artifact(record).header, record, planned=False)


async def test_an_id_used_again_is_another_upload(made, monkeypatch):
    """Ends of old uploads are forgotten after a while, and must not take a new one of the same id along."""
    monkeypatch.setattr(module, "MAX_UPLOADS", 8)
    publish = Slow()
    publish.go_on.set()
    uploads = Uploads(publish)
    uploads.begin("again", publication(made, "first"))
    assert (await uploads.feed("again", b"1", last=True)).digest == "first"
    publish.go_on.clear()
    uploads.begin("again", publication(made, "second"))
    for n in range(20):  # push the first one's end out of what is kept
        uploads.begin(f"other{n}", publication(made, "x"))
        with pytest.raises(InvalidRequest):
            await uploads.feed(f"other{n}", b"refuse", last=True)
    publish.go_on.set()
    assert (await uploads.feed("again", b"2", last=True)).digest == "second"
    assert len(uploads) == 0


async def test_a_client_that_stops_waiting_ends_no_publish_and_may_ask_again(made):
    """A slow disk may take longer for an artifact than a client gives a call."""
    publish = Slow()
    uploads = Uploads(publish)
    uploads.begin("u", publication(made, "slow"))
    for _ in range(2):
        waiting = asyncio.ensure_future(uploads.feed("u", b"", last=True))
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    publish.go_on.set()
    assert (await uploads.feed("u", b"", last=True)).digest == "slow"
    assert len(uploads) == 0


def test_a_disk_slower_than_a_call_may_be_gets_it_stored(tmp_path, start_daemon, asking, made):
    """Its sync takes three times as long as the client waits for a call."""
    patch = tmp_path / "slow"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "import os, time\n"
        "sync = os.fsync\n"
        "def slow(fd):\n"
        "    time.sleep(3.0 if os.fstat(fd).st_size > 1_000_000 else 0)\n"
        "    sync(fd)\n"
        "os.fsync = slow\n"
    )
    daemon = start_daemon(environ={"PYTHONPATH": str(patch)})
    one = asking(daemon.cache, made.record("large"))
    large = made.artifact(one.record, raw=os.urandom(5 << 20), codec="raw")
    lease = one.lookup().lease.lease_id
    start = start_of(one, large, "").start
    start.lease_id = lease
    client = CacheClient(daemon.address, holder="test")
    began = time.monotonic()
    assert client.publish(start, large.payload.chunks(), 1.0).digest == large.header.digest
    assert time.monotonic() - began > 2
    client.close()
    assert asking(daemon.cache, one.record).lookup().WhichOneof("answer") == "hit"
    assert daemon.stats().leases == 0


async def test_uploads_are_bounded(made):
    uploads = Uploads(Slow())
    for n in range(module.MAX_UPLOADS):
        uploads.begin(str(n), publication(made, "x"))
    with pytest.raises(TierFull):
        uploads.begin("one more", publication(made, "x"))
    with pytest.raises(InvalidRequest):
        uploads.begin("x" * (module.MAX_ID_CHARS + 1), publication(made, "x"))
    # Nobody takes more ahead than so much of any of them.
    stuck = asyncio.Event()

    async def never(publication, chunks) -> Published:
        await stuck.wait()
        raise AssertionError

    one = Uploads(never)
    one.begin("u", publication(made, "x"))
    for _ in range(module.CHUNKS_AHEAD):
        assert await one.feed("u", bytes(10), last=False) is None
    feeding = asyncio.ensure_future(one.feed("u", bytes(10), last=False))
    done, _ = await asyncio.wait({feeding}, timeout=0.2)
    assert not done
    feeding.cancel()
    for each in (uploads, one):
        each.close()
    with contextlib.suppress(asyncio.CancelledError):
        await feeding


async def test_a_publish_that_falls_silent_ends_and_leaves_nothing(
    tmp_path, made, monkeypatch
) -> None:
    """Also one that came as a stream: its client may be stopped, and its connection stay open."""
    from coldstart.config import DaemonConfig
    from coldstart.lease.board import MemoryLeaseBoard
    from coldstart.server.holdings import Holdings, OperationCounts
    from coldstart.server.lookups import Lookups
    from coldstart.server.tally import Tally
    from coldstart.store.disk import DiskTier

    monkeypatch.setattr(Publisher, "idle_seconds", 0.05)
    disk = DiskTier(tmp_path / "store")
    config = DaemonConfig(listen=("unix:///x",), store=("disk:///x",))
    board = MemoryLeaseBoard()
    lookups = Lookups(config, Holdings(disk, disk, OperationCounts()), board, Tally())
    one = made.artifact(made.record("silent"), raw=bytes(1000), codec="raw")

    async def half():
        yield bytes(500)
        await asyncio.Event().wait()

    silent = Publication("l", "", one.header, made.record("silent"), planned=True)
    with pytest.raises(InvalidRequest, match="silent for"):
        await lookups.publish(silent, half())
    assert [p for p in (tmp_path / "store" / "v1" / "tmp").iterdir() if p.suffix == ".spool"] == []
    await board.close()
    await disk.close()
