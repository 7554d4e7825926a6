"""Participants of one Ironwood slice, by full key: the MLA pieces of each, for a described `tpu7x:2x2x2`.

A runtime with a process per chip gives each its own chip as the first one, at the same coordinates. Only lowered here
and identified as the hook would; what the keys stand for is compiled in `test_ironwood.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import topologies

from coldstart.client import jax_internals, jax_module
from coldstart.client.identify import Identity, identify
from coldstart.identity import account
from coldstart.identity.canonical import canonicalize
from coldstart.models.config import TINY
from coldstart.models.participant import PieceShape, attention_piece

pytestmark = [pytest.mark.long, pytest.mark.stacks]

PARTICIPANTS = 16
SHAPE = PieceShape(8, 128, layers=2)


@pytest.fixture(scope="module")
def chips() -> list[Any]:
    pytest.importorskip("libtpu")
    return list(topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices)


def identity_of(lowered: Any) -> Identity:
    request = jax_internals.capture(lowered)
    rewrites = canonicalize(jax_module.describe(request.computation)).rewrites
    return identify(request, rewrites=rewrites)


def keys(branch: str, place: Callable[[int], Any], ranks: int = PARTICIPANTS) -> list[Identity]:
    return [
        identity_of(
            attention_piece(
                rank, PARTICIPANTS, TINY, SHAPE, branch=branch, device=place(rank)
            ).lower()
        )
        for rank in range(ranks)
    ]


def test_each_sees_its_own_chip_first(chips: list[Any]) -> None:
    sparse = keys("sparse", lambda rank: chips[0])
    assert len({one.key for one in sparse}) == 1
    assert sum("unread-fragment-offset" in note for note in sparse[5].record.notes) > 0
    assert len({one.key for one in keys("dense", lambda rank: chips[0])}) == PARTICIPANTS


def test_chips_of_one_topology_stay_apart_and_the_reason_is_said(chips: list[Any]) -> None:
    """A TPU executable checks the coordinates of its own chip."""
    apart = keys("sparse", lambda rank: chips[rank], ranks=8)
    assert len({one.key for one in apart}) == 8
    assert len({one.record["program"].value for one in apart}) == 1
    sides = [account.side_account(one.key, record=one.record) for one in apart[:2]]
    assert account.account(*sides, None)["notes"][0].startswith("device-coordinates")


def _from_another_place(rank: int, branch: str) -> Callable[..., Any]:
    """The kernel and the function around it from a file, a line and under names of the participant's own."""
    read = "q_ref[...] * 2" if branch == "dense" else "kv_ref[...] * 2"
    source = (
        "import jax\nfrom jax.experimental import pallas as pl\n" + "\n" * rank +
        f"def kernel_{rank}(q_ref, kv_ref, o_ref):\n    o_ref[...] = {read} + kv_ref[...]\n"
        f"def step_{rank}(q, kv):\n"
        f"    fragment = jax.lax.slice(q, ({rank} * 8, 0), ({rank} * 8 + 8, 128))\n"
        f"    call = pl.pallas_call(kernel_{rank}, out_shape=jax.ShapeDtypeStruct(kv.shape, kv.dtype))\n"
        "    return call(fragment, kv)\n"
    )  # fmt: skip
    space: dict[str, Any] = {}
    exec(compile(source, f"/checkout-{rank}/serving/attention.py", "exec"), space)
    found: Callable[..., Any] = space[f"step_{rank}"]
    return found


@pytest.mark.parametrize(("branch", "count"), [("sparse", 1), ("dense", PARTICIPANTS)])
def test_file_line_and_names_of_each_participant(chips: list[Any], branch: str, count: int) -> None:
    here = jax.sharding.SingleDeviceSharding(chips[0])
    arguments = [
        jax.ShapeDtypeStruct(shape, np.float32, sharding=here) for shape in ((128, 128), (8, 128))
    ]
    found = {
        identity_of(jax.jit(_from_another_place(rank, branch)).lower(*arguments)).key
        for rank in range(PARTICIPANTS)
    }
    assert len(found) == count
