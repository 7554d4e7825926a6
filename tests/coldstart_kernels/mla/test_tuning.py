"""Block sizes: aligned, within VMEM, and refused with figures when they aren't."""

from __future__ import annotations

import dataclasses

import pytest

from coldstart_kernels import device
from coldstart_kernels.mla.tuning import (
    TuningKey,
    TuningParams,
    heuristic,
    vmem_budget,
    vmem_needed,
)

KEY = TuningKey("dense", 4096, 8192, 576, 512, 64, 2, "TPU7x")


@pytest.mark.parametrize("branch", ["dense", "sparse"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (64, 2048), (4096, 8192), (257, 513)])
def test_heuristic_is_aligned_and_fits(branch: str, itemsize: int, rows: int, keys: int) -> None:
    key = dataclasses.replace(KEY, branch=branch, itemsize=itemsize, rows=rows, keys=keys)
    params = heuristic(key)
    params.check(key)
    assert params.block_rows % (32 // itemsize) == 0
    assert params.block_kv % 128 == 0
    assert params.block_rows < rows + 32 // itemsize
    assert params.block_kv < keys + 128


def test_wide_rows_shrink_the_blocks() -> None:
    wide = dataclasses.replace(KEY, width=16384, latent_width=16384, unread_rows=1)
    assert heuristic(wide).block_kv < heuristic(KEY).block_kv
    assert vmem_needed(wide, heuristic(wide)) <= vmem_budget(wide)


def test_what_never_fits_is_refused_with_figures() -> None:
    with pytest.raises(ValueError, match=r"need \d+ bytes of VMEM"):
        heuristic(dataclasses.replace(KEY, unread_rows=1 << 20))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (TuningParams(12, 128), "block_rows 12 is not a positive multiple of 16"),
        (TuningParams(0, 128), "block_rows 0"),
        (TuningParams(16, 100), "block_kv 100 is not a positive multiple of 128"),
        (TuningParams(8192, 8192), r"needs \d+ bytes of VMEM"),
    ],
)
def test_given_blocks_are_checked(params: TuningParams, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        params.check(KEY)


def test_an_unknown_device_gets_the_smallest_vmem() -> None:
    assert device.vmem_bytes("TPU v99") == device.vmem_bytes("TPU7x") == 64 << 20
