"""Block sizes: aligned, within VMEM, and refused with figures when they aren't."""

from __future__ import annotations

import dataclasses

import pytest

from coldstart_kernels.grouped_matmul.tuning import (
    TuningKey,
    TuningParams,
    heuristic,
    vmem_budget,
    vmem_needed,
)

KEY = TuningKey(4096, 16, 6144, 4096, 2, 2, 0, "TPU7x")
FP8 = dataclasses.replace(KEY, itemsize=1, step=128)


@pytest.mark.parametrize("key", [KEY, FP8, dataclasses.replace(KEY, itemsize=4, out_itemsize=4)])
@pytest.mark.parametrize(
    ("rows", "experts", "k", "n"),
    [
        (4096, 16, 6144, 4096),
        (512, 64, 4096, 2048),
        (1, 1, 128, 128),
        (9, 4, 384, 40),
        (70, 3, 65536, 513),
    ],
)
def test_heuristic_is_aligned_and_fits(
    key: TuningKey, rows: int, experts: int, k: int, n: int
) -> None:
    key = dataclasses.replace(key, rows=rows, experts=experts, k=k, n=n)
    params = heuristic(key)
    params.check(key)
    assert k % params.block_k == 0
    assert params.block_rows < rows + key.row_multiple


def test_production_shapes_read_each_weight_once() -> None:
    for key in (KEY, FP8):
        assert heuristic(key) == TuningParams(256, 6144, 512)
    few = dataclasses.replace(KEY, rows=1024)
    assert heuristic(few).block_rows == 128


def test_long_contractions_are_cut_at_a_divisor() -> None:
    long = dataclasses.replace(KEY, k=3 * 65536, n=512)
    params = heuristic(long)
    assert params.block_k < long.k and long.k % params.block_k == 0
    assert vmem_needed(long, params) <= vmem_budget(long)


def test_the_sum_by_hand() -> None:
    # x, weights and result twice; accumulator and two temporaries in fp32.
    assert vmem_needed(KEY, TuningParams(256, 6144, 512)) == (
        2 * (256 * 6144 * 2 + 6144 * 512 * 2 + 256 * 512 * 2) + 3 * 256 * 512 * 4
    )
    # FP8 halves x and weights and adds 48 scales: padded to 128 lanes with x, to whole sublanes with the weights.
    assert vmem_needed(FP8, TuningParams(256, 6144, 512)) == (
        2 * (256 * 6144 + 6144 * 512 + 256 * 512 * 2 + 256 * 128 * 4 + 48 * 512 * 4)
        + 3 * 256 * 512 * 4
    )


@pytest.mark.parametrize(
    ("key", "params", "words"),
    [
        (KEY, TuningParams(8, 6144, 512), "block_rows 8 is not a positive multiple of 16"),
        (FP8, TuningParams(16, 6144, 512), "block_rows 16 is not a positive multiple of 32"),
        (KEY, TuningParams(16, 4096, 512), "block_k 4096 does not divide k 6144"),
        (KEY, TuningParams(16, 96, 512), "block_k 96 is neither k nor a multiple of 128"),
        (dataclasses.replace(FP8, step=512), TuningParams(32, 768, 512), "multiple of 512"),
        (KEY, TuningParams(16, 6144, 100), "block_n 100 is neither n 4096"),
        (KEY, TuningParams(16, 6144, 4096), r"needs \d+ bytes of VMEM"),
    ],
)
def test_given_blocks_are_checked(key: TuningKey, params: TuningParams, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        params.check(key)


def test_what_never_fits_is_refused_with_figures() -> None:
    with pytest.raises(ValueError, match=r"need \d+ bytes of VMEM"):
        heuristic(dataclasses.replace(KEY, k=(1 << 20) + 1))
