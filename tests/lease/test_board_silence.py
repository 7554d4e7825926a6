"""The board in a bucket, when somebody else has just found the bucket silent."""

from __future__ import annotations

import asyncio
import time

import pytest
from gcs_server import Cloud, open_bucket

from coldstart.errors import BreakerOpen


async def test_who_gives_up_in_silence_spares_the_next_one(cloud: Cloud) -> None:
    """A chain waits for less than a deadline, and the leases in the same bucket are asked for next."""
    from coldstart.lease.gcs import GcsLeaseBoard  # needs the extra

    bucket = open_bucket(cloud, patience={"call_seconds": 10.0})
    board = GcsLeaseBoard(bucket, "team/x")
    assert await bucket.stat("nothing") is None
    cloud.proxy.fail(silent=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):  # as long as a slow answer takes: that is no silence
            await bucket.stat("nothing")
    assert not bucket.failing
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.2):
            await bucket.stat("nothing")
    assert bucket.failing
    began = time.monotonic()
    with pytest.raises(BreakerOpen):
        await board.acquire("key", "me", 10.0, 0.0)
    assert time.monotonic() - began < 2.0
    cloud.proxy.heal()
    await board.close()
    await bucket.close()
