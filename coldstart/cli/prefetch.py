"""`coldstart lookup --prefetch FILE`: bring what a list of keys names to this host's disk, before anybody needs it.

The daemon fills its faster tiers with whatever it hands out, so everything is fetched from it once, several at a time,
the artifacts that save the most compile seconds first; the bytes themselves are dropped here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TextIO

import click

from coldstart import wire
from coldstart.client.client import CacheClient
from coldstart.client.host import cpu_features
from coldstart.errors import ColdstartError
from coldstart.identity.key import is_key
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.wire import KeyState

AT_ONCE = 8
KEYS_A_CALL = 200
CALL_SECONDS = 60.0
IDLE_SECONDS = 15.0
MOST_SECONDS = 600.0
MOST_BYTES = 4 << 30


@dataclass(slots=True)
class Prefetched:
    """What came of it. Keys are counted once."""

    keys: int
    present: int = 0
    fetched: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0  # saved by what was fetched

    @property
    def complete(self) -> bool:
        return self.fetched == self.keys


def read_keys(file: TextIO) -> list[str]:
    """One key a line, each once; what follows `#` is for people. Raises UsageError for anything else."""
    keys = dict.fromkeys(filter(None, (line.partition("#")[0].strip() for line in file)))
    for key in keys:
        if not is_key(key):
            raise click.UsageError(f"{key[:80]!r} is not a key; write one a line")
    if not keys:
        raise click.UsageError("no keys in there; write one a line")
    return list(keys)


def prefetch(
    client: CacheClient, keys: Sequence[str], say: Callable[[Prefetched, str], None]
) -> Prefetched:
    """Fetch what there is; `say` is told after each, with words about it."""
    began = time.monotonic()
    done = Prefetched(len(keys))
    present = sorted(_present(client, keys), key=lambda answer: -answer.compile_seconds)
    done.present = len(present)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(_fetch, client, answer): answer for answer in present}
        for future in as_completed(waiting):
            answer = waiting[future]
            done.seconds = time.monotonic() - began
            try:
                size = future.result()
            except ColdstartError as exc:
                done.failed += 1
                say(done, f"{answer.key[:16]}: {exc}")
                continue
            done.fetched += 1
            done.bytes += size
            done.compile_seconds += answer.compile_seconds
            say(done, f"{answer.key[:16]} {size} bytes, saves {answer.compile_seconds:.3g} s")
    done.seconds = time.monotonic() - began
    return done


def show(done: Prefetched, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
        return
    click.echo(
        f"{done.fetched} of {done.keys} keys fetched, {done.keys - done.present} not stored, {done.failed} failed: "
        f"{done.bytes} bytes in {done.seconds:.3g} s, which save {done.compile_seconds:.3g} compile seconds"
    )


def _present(client: CacheClient, keys: Sequence[str]) -> Iterator[pb.KeyAnswer]:
    host = pb.Host(cpu_features=cpu_features())
    for start in range(0, len(keys), KEYS_A_CALL):
        request = pb.BatchRequest(keys=keys[start : start + KEYS_A_CALL], host=host)
        for answer in client.batch(request, CALL_SECONDS).answers:
            if wire.key_state_from_pb(answer.state) is KeyState.PRESENT:
                yield answer


def _fetch(client: CacheClient, answer: pb.KeyAnswer) -> int:
    request = pb.FetchRequest(
        lookup_id=f"prefetch-{uuid.uuid4().hex}", key=answer.key, digest=answer.digest
    )
    return len(
        client.fetch(request, IDLE_SECONDS, most_bytes=MOST_BYTES, most_seconds=MOST_SECONDS)
    )
