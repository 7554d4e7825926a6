"""Rows per block: aligned, within VMEM, and refused with figures when they aren't."""

from __future__ import annotations

import dataclasses

import pytest

from coldstart_kernels.moe_routing.tuning import (
    TuningKey,
    TuningParams,
    heuristic,
    vmem_budget,
    vmem_needed,
)

KEY = TuningKey(4096, 512, 10, "TPU7x")


@pytest.mark.parametrize(
    ("tokens", "experts", "rows"),
    [
        (4096, 512, 512),
        (4096, 256, 512),
        (513, 512, 512),
        (33, 512, 40),
        (1, 1, 8),
        (4096, 8192, 256),
    ],
)
def test_blocks_of_512_rows_or_what_fits(tokens: int, experts: int, rows: int) -> None:
    key = dataclasses.replace(KEY, tokens=tokens, experts=experts)
    params = heuristic(key)
    assert params == TuningParams(rows)
    params.check(key)


def test_the_sum_by_hand() -> None:
    # scores 2 + 4 temporaries of 512 x 512 fp32, bias 2 x 8 x 512, two results of 512 x 128 twice.
    assert vmem_needed(KEY, TuningParams(512)) == 6 * 2**20 + 2 * 2**14 + 4 * 2**18
    assert vmem_budget(KEY) == int(0.8 * 2**26)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (12, "block_rows 12 is not a positive multiple of 8"),
        (0, "block_rows 0"),
        (8192, r"needs \d+ bytes of VMEM"),
    ],
)
def test_given_blocks_are_checked(rows: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TuningParams(rows).check(KEY)


def test_what_never_fits_is_refused_with_figures() -> None:
    with pytest.raises(ValueError, match=r"needs \d+ bytes of VMEM"):
        heuristic(dataclasses.replace(KEY, experts=1 << 20))
