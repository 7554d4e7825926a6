"""Equal programs on all ranks: what rank r slices out of the query at r * own heads, where nobody reads the slice.

At production shapes for a described tpu7x, lowered and identified as the hook would. Shown here: equal over ranks in
sparse, by the rule (everybody passes the first slice) and by canonicalization; different in dense; outputs unchanged; a
really different program has another key. That rank b takes rank a's artifact from a daemon, and nobody another's, is
shown with processes in tests/e2e/test_sharing.py.
"""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np
import paged_latents
import production_shapes
import pytest
from paged_latents import Batch
from production_shapes import DECODE, HEADS, OWN

from coldstart.client import jax_internals, jax_module
from coldstart.client.identify import identify
from coldstart.identity.canonical import canonicalize
from coldstart_kernels import mla_attention

pytestmark = pytest.mark.stacks
RANKS = range(0, HEADS // OWN, 5)  # 0, 5, 10, 15 of 16


def start_of(rank: int, branch: str, replicated: bool) -> int:
    """The rule: in the sparse branch with a replicated query, all ranks pass the same slice."""
    return 0 if branch == "sparse" and replicated else rank * OWN


@pytest.fixture(scope="module")
def described() -> jax.Device:
    pytest.importorskip("libtpu", reason="needs libtpu to describe a TPU")
    return production_shapes.described_device()


def digest(device: jax.Device, branch: str, start: int) -> str:
    lowered = production_shapes.lower_attention(device, DECODE, branch, start=start)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def key(device: jax.Device, branch: str, start: int, **changes: Any) -> str:
    lowered = production_shapes.lower_attention(device, DECODE, branch, start=start, **changes)
    request = jax_internals.capture(lowered)
    rewrites = canonicalize(jax_module.describe(request.computation)).rewrites
    return str(identify(request, rewrites=rewrites).key)


def test_text_is_equal_in_sparse_by_the_rule_and_different_in_dense(described: jax.Device) -> None:
    for branch, replicated, wanted in [("sparse", True, 1), ("sparse", False, 4)]:
        starts = [start_of(rank, branch, replicated) for rank in RANKS]
        assert len({digest(described, branch, start) for start in starts}) == wanted
    starts = [start_of(rank, "dense", True) for rank in RANKS]
    assert len({digest(described, "dense", start) for start in starts}) == len(RANKS)


def test_keys_are_equal_in_sparse_without_the_rule_and_different_in_dense(
    described: jax.Device,
) -> None:
    """The kernel that copies from HBM by itself is still one whose unread operand is seen to be unread."""
    sparse = {key(described, "sparse", rank * OWN) for rank in RANKS}
    assert len(sparse) == 1
    assert len({key(described, "dense", rank * OWN) for rank in RANKS}) == len(RANKS)
    # A really different program: another number inside the kernel.
    assert key(described, "sparse", OWN, scale=0.125) not in sparse


@pytest.mark.long
@pytest.mark.parametrize("branch", ["sparse", "dense"])
def test_outputs_are_those_without_the_rule(branch: str) -> None:
    batch = Batch()
    made = paged_latents.operands(batch)
    lists = [paged_latents.index_lists(batch, 24)] if branch == "sparse" else []

    def run(start: int) -> list[np.ndarray]:
        @jax.jit
        def attend(q: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
            fragment = jax.lax.slice_in_dim(q, start, start + 2, axis=1)
            return mla_attention(
                fragment, q, *rest, branch=branch, latent_width=batch.latent, scale=0.2,
                implementation="pallas", interpret=True,
            )  # fmt: skip

        return [np.asarray(a, np.float32) for a in attend(made.q, made.cache, made.limits, *lists)]

    for rank in range(2):
        ruled, plain = run(0 if branch == "sparse" else rank * 2), run(rank * 2)
        assert [a.tobytes() for a in ruled] == [a.tobytes() for a in plain]
    if branch == "dense":  # and there the slice matters
        assert run(0)[0].tobytes() != run(2)[0].tobytes()
