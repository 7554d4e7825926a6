"""A client process of `bench load`: it fills a daemon, asks it as fast as it answers, in step, or sends it bytes.

    python -m coldstart.bench.load_client rates  --address A --seconds 2 --rounds 5
    python -m coldstart.bench.load_client paced  --address A --seconds 3 --rounds 3 --rate 200
    python -m coldstart.bench.load_client upload --address A --seconds 3
    python -m coldstart.bench.load_client hit    --address A --rounds 15

The last line of stdout is JSON. No JAX: what is asked for are records and bytes of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coldstart.bench.calls import (
    PATIENCE_SECONDS,
    Reader,
    artifact_of,
    ending,
    plain_read,
    publish,
    question,
    record_of,
)
from coldstart.bench.progress import note
from coldstart.client.client import CacheClient
from coldstart.identity.key import KeyRecord
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

PROGRAMS = 64
SMALL_BYTES = 10_000
UPLOAD_BYTES = 50 << 20
HIT_BYTES = 8 << 20
IN_FLIGHT = 32

Done = Callable[[], None]  # told of each thing that progress counts


class Asking:
    """Warm lookups and empty calls over one channel, many in flight."""

    def __init__(self, channel: grpc.aio.Channel, records: list[KeyRecord]) -> None:
        self._cache: Any = cache_pb2_grpc.CacheStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)
        # Made once, as a participant makes its records once: what is measured is the daemon.
        self._questions = [question(record, "") for record in records]
        self._ends = [ending("", record, Outcome.HIT, Reason.OK) for record in records]
        self._open: list[tuple[int, str]] = []
        self._next = random.randrange(1 << 62)

    async def empty(self) -> None:
        await self._health.Check(health_pb2.HealthCheckRequest())

    async def lookup(self) -> None:
        self._next += 1
        which, lookup_id = self._next % len(self._questions), f"{self._next:032x}"
        question = pb.LookupRequest()
        question.CopyFrom(self._questions[which])
        question.lookup_id = lookup_id
        reply = await self._cache.Lookup(question)
        if not reply.HasField("hit"):
            raise RuntimeError(f"a warm lookup was answered {reply.WhichOneof('answer')}")
        self._open.append((which, lookup_id))

    async def whole(self) -> None:
        """A lookup and the word how it ended, which real clients send when there is time."""
        await self.lookup()
        await self._finish(self._open.pop())

    async def settle(self) -> None:
        """Finish what was left open, outside of what is timed."""
        open_, self._open = self._open, []
        for first in range(0, len(open_), IN_FLIGHT):
            await asyncio.gather(*map(self._finish, open_[first : first + IN_FLIGHT]))

    async def _finish(self, one: tuple[int, str]) -> None:
        end = pb.FinishRequest()
        end.CopyFrom(self._ends[one[0]])
        end.lookup_id = one[1]
        await self._cache.Finish(end)

    async def rate(self, what: str, seconds: float) -> float:
        """Calls a second, with IN_FLIGHT of them on their way."""
        call, until, done = getattr(self, what), time.monotonic() + seconds, 0

        async def one() -> None:
            nonlocal done
            while time.monotonic() < until:
                await call()
                done += 1

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
        spent = time.monotonic() - began
        await self.settle()
        return done / spent

    async def paced(self, rate: float, seconds: float) -> list[float]:
        """Seconds of each lookup, started in step whether or not earlier ones are back."""
        walls: list[float] = []

        async def one(due: float) -> None:
            await self.lookup()
            walls.append(time.monotonic() - due)  # from when it was due: waiting to be sent counts

        began, tasks = time.monotonic(), []
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
        await self.settle()
        return walls


async def rates(
    address: str, records: list[KeyRecord], seconds: float, rounds: int, done: Done
) -> Any:
    found: dict[str, list[float]] = {"empty": [], "lookup": [], "whole": []}
    async with grpc.aio.insecure_channel(_target(address)) as channel:
        asking = Asking(channel, records)
        for number in range(rounds + 1):
            for what in found:
                calls = await asking.rate(what, seconds if number else seconds / 4)
                done()
                if number:  # the first round warms up
                    found[what].append(calls)
    return {what: statistics.median(values) for what, values in found.items()} | {"rounds": found}


async def paced(
    address: str, records: list[KeyRecord], seconds: float, rounds: int, rate: float, done: Done
) -> Any:
    """Latencies with nothing else going on, and while another process uploads, in turns."""
    walls: dict[str, list[float]] = {"idle": [], "busy": []}
    uploaded = 0
    async with grpc.aio.insecure_channel(_target(address)) as channel:
        asking = Asking(channel, records)
        await asking.paced(rate, seconds / 4)
        for _ in range(rounds):
            walls["idle"] += await asking.paced(rate, seconds)
            done()
            command = [sys.executable, "-m", "coldstart.bench.load_client", "upload"]
            uploader = await asyncio.create_subprocess_exec(
                *command,
                f"--address={address}",
                f"--seconds={seconds}",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert uploader.stdout is not None and uploader.stdin is not None
            await uploader.stdout.readline()  # it is connected and has its bytes
            uploader.stdin.write(b"\n")
            walls["busy"] += await asking.paced(rate, seconds)
            uploaded += json.loads(await uploader.stdout.readline())["uploaded"]
            await uploader.wait()
            done()
    return {
        **{f"{name}_p50": _percentile(values, 0.5) for name, values in walls.items()},
        **{f"{name}_p99": _percentile(values, 0.99) for name, values in walls.items()},
        "calls": len(walls["busy"]),
        "uploaded_bytes": uploaded,
    }


def upload(client: CacheClient, seconds: float) -> int:
    """Publish 50 MB artifacts one after the other. Says when it is ready and starts when it is told."""
    raw = os.urandom(UPLOAD_BYTES)
    print(flush=True)
    sys.stdin.readline()
    until, sent = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        record = record_of(f"upload {uuid.uuid4().hex}")
        publish(client, record, artifact_of(record, raw, codec="raw"))
        sent += len(raw)
    return sent


def hit(address: str, rounds: int, done: Done) -> Any:
    """Seconds of a whole hit by path, and of its parts done plainly, in turns."""
    pattern = random.Random(1).randbytes(HIT_BYTES // 4)
    raw = pattern + bytes(HIT_BYTES // 2) + pattern  # a part of it compresses, as executables do
    record = record_of(f"8 MB {uuid.uuid4().hex}")
    made = artifact_of(record, raw)
    reader = Reader(address)
    publish(reader.client, record, made)
    walls: dict[str, list[float]] = {"hit": [], "plain": [], "call": []}
    for _ in range(rounds + 1):
        seconds, found = reader.hit(record)
        walls["hit"].append(seconds)
        seconds, plain = plain_read(reader.path, made)
        walls["plain"].append(seconds)
        began = time.perf_counter()
        reader.client.hello()
        walls["call"].append(time.perf_counter() - began)
        if not found == plain == raw:
            raise RuntimeError("a hit gave other bytes")
        done()
    medians = {name: statistics.median(values[1:]) for name, values in walls.items()}
    return {**medians, "payload_bytes": made.header.payload_bytes, "raw_bytes": len(raw)}


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _target(address: str) -> str:
    return address.removeprefix("tcp://").replace("unix://", "unix:")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("rates", "paced", "upload", "hit"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--record", type=Path, help="where progress is noted")
    given = parser.parse_args()
    done = partial(note, given.record) if given.record else lambda: None
    client = CacheClient(given.address, holder="bench load")
    client.connect(PATIENCE_SECONDS)
    found: Any
    if given.what == "upload":
        found = {"uploaded": upload(client, given.seconds)}
    elif given.what == "hit":
        found = hit(given.address, given.rounds, done)
    else:
        records = [record_of(f"program {number}") for number in range(PROGRAMS)]
        for record in records:
            publish(client, record, artifact_of(record, os.urandom(SMALL_BYTES)))
        if given.what == "rates":
            found = asyncio.run(rates(given.address, records, given.seconds, given.rounds, done))
        else:
            found = asyncio.run(
                paced(given.address, records, given.seconds, given.rounds, given.rate, done)
            )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
