"""Tile sizes: what the heuristic finds, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from coldstart_kernels.gated_delta_net import Shape, TuningKey, TuningParams
from coldstart_kernels.gated_delta_net.tuning import (
    decode_vmem,
    heuristic,
    prefill_vmem,
    vmem_budget,
)

WHOLE = Shape(16, 64, 128, 128)
KEY = TuningKey(WHOLE, tokens=4096, window=1, itemsize=2, device_kind="TPU7x")


def test_production_shape_gets_chunks_of_64_and_tiles_of_4() -> None:
    params = heuristic(KEY)
    assert (params.chunk, params.decode_tile) == (64, 4)
    assert params.vmem_limit_bytes == vmem_budget(KEY) == int(0.7 * (64 << 20))
    # Eight states in the ring, two in the prefill launch, and what moves beside them.
    state = 64 * 128 * 128 * 4
    assert 8 * state < decode_vmem(KEY, params) < 11 * state
    assert 2 * state < prefill_vmem(KEY, params) < 5 * state


@pytest.mark.parametrize(("tokens", "chunk"), [(1, 16), (16, 16), (33, 48), (64, 64), (65, 64)])
def test_a_small_batch_gets_a_small_chunk(tokens: int, chunk: int) -> None:
    assert heuristic(dataclasses.replace(KEY, tokens=tokens)).chunk == chunk


def test_tiles_shrink_where_the_state_is_large() -> None:
    twice = dataclasses.replace(KEY, shape=Shape(32, 128, 128, 128))
    assert heuristic(twice).decode_tile == 2
    with pytest.raises(ValueError, match=r"prefill at .* bytes of VMEM"):
        heuristic(dataclasses.replace(KEY, shape=Shape(128, 512, 128, 128)))


@pytest.mark.parametrize(
    ("shape", "params", "words"),
    [
        (Shape(1, 2, 64, 64), TuningParams(64, 4, 1 << 26), "multiples of 128"),
        (Shape(1, 2, 128, 256), TuningParams(64, 4, 1 << 26), "equal head widths"),
        (WHOLE, TuningParams(40, 4, 1 << 26), "chunk 40"),
        (WHOLE, TuningParams(0, 4, 1 << 26), "chunk 0"),
        (WHOLE, TuningParams(64, 0, 1 << 26), "decode_tile 0"),
        (WHOLE, TuningParams(64, 4, 16 << 20), "prefill at .* needs"),
        (WHOLE, TuningParams(64, 8, 46 << 20), "decode at .* needs"),
    ],
)
def test_refusals_name_the_figure(shape: Shape, params: TuningParams, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        params.check(dataclasses.replace(KEY, shape=shape))
