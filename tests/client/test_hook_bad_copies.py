"""Stored copies that must not be loaded: never loaded, compiled once more, good again for the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hooked import lookups, run

import coldstart
from coldstart import artifact, wire
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

pytestmark = pytest.mark.stacks


def _only(daemon: Any) -> Path:
    assert coldstart.flush()
    (found,) = daemon.artifacts()
    return found


def _rewrite(path: Path, **changes: Any) -> None:
    """A sound artifact whose header says something else; its own hashes fit."""
    old = artifact.open_file(path)
    header = replace(old.header, **changes)
    payload = b"".join(old.payload.chunks())
    path.write_bytes(header.prefix() + payload)


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


# What the disk sees by itself (size, header) it puts aside, or heals its index; a payload bit is seen by the loading
# side only. The gates have tests of their own.
SPOILED: dict[str, tuple[Callable[[Path], object], set[Reason]]] = {
    "payload bit": (lambda p: _flip(p, -9), {Reason.CORRUPT}),
    "header bit": (lambda p: _flip(p, 40), {Reason.CORRUPT}),
    "magic": (lambda p: _flip(p, 0), {Reason.FORMAT}),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-100]), {Reason.CORRUPT}),
    "empty": (lambda p: p.write_bytes(b""), {Reason.CORRUPT}),
    "a folder": (lambda p: (p.unlink(), p.mkdir(), (p / "x").touch()), {Reason.CORRUPT}),
    "gone": (lambda p: p.unlink(), {Reason.CORRUPT}),
    "other partitions": (lambda p: _rewrite(p, partitions=8), {Reason.CORRUPT}),
    "other callbacks": (lambda p: _rewrite(p, callbacks=2), {Reason.CORRUPT}),
    "other module": (lambda p: _rewrite(p, module_digest="0" * 64), {Reason.CORRUPT}),
    "other codec": (lambda p: _rewrite(p, codec="lz9"), {Reason.CORRUPT}),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_bad_copy_is_never_loaded_and_is_repaired(
    hook: Any, daemon: Any, compiles: list[str], how: str
) -> None:
    """T12, T14, T16 and more: refused before the loader, compiled once, good again for the next one."""
    first = run()
    path = _only(daemon)
    spoil, reasons = SPOILED[how]
    spoil(path)
    second = run()
    np.testing.assert_array_equal(first[0], second[0])
    assert compiles == ["jit_program"] * 2
    (ended,) = set(lookups()) - {(Outcome.MISS, Reason.COLD)}
    assert ended[1] in reasons
    assert ended[0] is Outcome.ERROR
    third = run()
    np.testing.assert_array_equal(first[0], third[0])
    assert compiles == ["jit_program"] * 2
    assert lookups()[Outcome.HIT, Reason.OK] == 1


def test_code_for_another_cpu_is_not_loaded_and_both_variants_live_side_by_side(
    hook: Any, daemon: Any, compiles: list[str]
) -> None:
    """T13: an artifact that needs an instruction set which this host lacks."""
    run()
    path = _only(daemon)
    foreign = tuple(sorted({*artifact.open_file(path).header.cpu_features, "avx9000"}))
    client = daemon.client()
    old = artifact.open_file(path)
    record = client.record(old.header.key).record
    assert wire.record_from_pb(record).program_name == "jit_program"
    header = replace(old.header, cpu_features=foreign)
    start = pb.PublishStart(lookup_id="x", header=header.encode(), record=record)
    payload = b"".join(old.payload.chunks())
    path.unlink()  # this host's own variant is gone, the foreign one stays
    reply = client.publish(start, [payload], 10)
    client.close()
    assert not reply.adopted
    run()
    assert compiles == ["jit_program"] * 2
    run()
    assert compiles == ["jit_program"] * 2
