"""T12 to T14 by the hundred: bits, cuts and payloads that were packed again, in one process that lives through all."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hooked import X, lookups, run

import coldstart
from coldstart import artifact
from coldstart.client import jax_internals
from coldstart.outcomes import Outcome, Reason

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

# Per codec: bits in the prefix (magic, size, header, its hash), bits in the payload, cuts.
PREFIX_FLIPS, BODY_FLIPS, CUTS = 50, 100, 25
REPACKED = 20  # of zstd only: what is raw isn't packed

Spoil = Callable[[Path], None]


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _repack(path: Path, bit: int, *, index_too: bool) -> None:
    """A bit of the executable is other, and it is packed again; lengths and the header's own hash fit (M9).

    With `index_too` the store's index says the same, so that nothing but the digest stands in the way.
    """
    old = artifact.open_file(path)
    raw = bytearray(artifact.decode(old))
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    payload = zstandard.ZstdCompressor(level=3).compress(bytes(raw))
    header = replace(old.header, payload_bytes=len(payload))
    body = header.encode()
    if not index_too:
        path.write_bytes(header.prefix() + payload)
        return
    store = next(folder for folder in path.parents if folder.name == "v1")
    path.unlink()
    tag = hashlib.sha256(body).hexdigest()
    (path.parent / f"{header.digest}-{tag[:16]}.csa").write_bytes(header.prefix() + payload)
    (entry,) = [p for p in (store / "keys").rglob("*") if p.is_file()]
    entry.write_text(
        json.dumps({"digest": header.digest, "header": body.decode(), "header_hash": tag})
    )


def _spoils(codec: str, path: Path) -> Iterator[tuple[str, Spoil]]:
    """What is done to the copies, one after the other; sizes as of the copy at `path`, which all resemble."""
    choose = random.Random(f"rot {codec}")
    found = artifact.open_file(path)
    # Packed again each time, copies differ by some bytes.
    prefix, whole = len(found.header.prefix()), path.stat().st_size - 64
    for bit in choose.sample(range(8 * prefix - 64), PREFIX_FLIPS):
        yield "bit of the prefix", functools.partial(_flip, bit=bit)
    for bit in choose.sample(range(8 * (prefix + 64), 8 * whole), BODY_FLIPS):
        yield "bit of the payload", functools.partial(_flip, bit=bit)
    for size in choose.sample(range(whole), CUTS):
        yield "cut", functools.partial(_cut, size=size)
    for n in range(REPACKED if codec == "zstd" else 0):
        bit = choose.randrange(8 * found.header.payload_bytes)
        yield "packed again", functools.partial(_repack, bit=bit, index_too=n % 2 == 0)


def _only(daemon: Any) -> Path:
    """The one artifact that is stored; bad copies that were put aside are elsewhere."""
    (found,) = [path for path in daemon.artifacts() if "quarantine" not in path.parts]
    return found


def tiny(x: Any) -> Any:
    return x * 2 + 1


@pytest.mark.parametrize(("codec", "transport"), [("zstd", "path"), ("raw", "stream")])
def test_hundreds_of_bad_copies_are_refused_before_the_load_and_repaired(
    daemon: Any,
    compiles: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    codec: str,
    transport: str,
) -> None:
    loads: list[int] = []
    load = jax_internals.load

    def counted(data: bytes, request: Any) -> Any:
        loads.append(len(data))
        return load(data, request)

    monkeypatch.setattr(jax_internals, "load", counted)
    monkeypatch.setattr(artifact, "make", functools.partial(artifact.make, codec=codec))
    if transport == "stream":
        monkeypatch.setenv("COLDSTART_VOLUME_ROOT", str(tmp_path))  # where the daemon's nonce isn't
    assert coldstart.install(daemon.address, strict=True)
    try:
        expected = X * 2 + 1
        np.testing.assert_array_equal(run(tiny), expected)
        assert coldstart.flush()
        path = _only(daemon)
        assert artifact.open_file(path).header.codec == codec
        done: Counter[str] = Counter()
        for kind, spoil in _spoils(codec, path):
            path = _only(daemon)
            spoil(path)
            before = len(compiles), len(loads)
            np.testing.assert_array_equal(run(tiny), expected)
            assert (len(compiles), len(loads)) == (before[0] + 1, before[1]), (kind, spoil)
            np.testing.assert_array_equal(run(tiny), expected)  # repaired: the next one hits
            assert (len(compiles), len(loads)) == (before[0] + 1, before[1] + 1), (kind, spoil)
            done[kind] += 1
        ended = dict(lookups())
    finally:
        coldstart.uninstall()
    print(f"\n{codec} by {transport}: {dict(done)}; lookups {ended}")
    total = sum(done.values())
    assert total == PREFIX_FLIPS + BODY_FLIPS + CUTS + (REPACKED if codec == "zstd" else 0)
    assert ended.pop((Outcome.MISS, Reason.COLD)) == 1
    assert ended.pop((Outcome.HIT, Reason.OK)) == total
    assert {outcome for outcome, _ in ended} == {Outcome.ERROR}
    assert {reason for _, reason in ended} <= {Reason.CORRUPT, Reason.FORMAT, Reason.CODEC}
    assert sum(ended.values()) == total
