"""The ring: how many slots, by the table of the specification and by its formula."""

from __future__ import annotations

import pytest

from coldstart_kernels.moe_streaming import TuningKey, TuningParams, ring_slots
from coldstart_kernels.moe_streaming.tuning import (
    expert_bytes,
    fixed_bytes,
    heuristic,
    vmem_needed,
)

TABLE = [
    # tokens, hidden, intermediate, experts, MiB of VMEM, slots
    ((256, 4096, 1024, 64), 128, 3),
    ((256, 4096, 1024, 64), 64, 3),
    ((256, 4096, 1024, 64), 48, 2),
    ((256, 4096, 1024, 64), 32, 1),
    ((256, 4096, 2048, 64), 64, 1),
    ((1024, 4096, 1024, 64), 64, 1),
    ((256, 4096, 1024, 8192), 64, 2),
    ((16, 512, 512, 4), 64, 3),
]


@pytest.mark.parametrize(("sizes", "mebibytes", "slots"), TABLE)
def test_the_table(sizes: tuple[int, int, int, int], mebibytes: int, slots: int) -> None:
    assert ring_slots(TuningKey(*sizes, "TPU7x"), mebibytes << 20) == slots


def test_the_formula_by_hand() -> None:
    key = TuningKey(256, 4096, 1024, 64, "TPU7x")
    assert expert_bytes(key) == 3 * 4096 * 1024 + 4 * (2 * 1024 + 4096) == 12_607_488
    assert fixed_bytes(key) == (
        9 * 256 * 4096 + 3 * 256 * 1024 + 256 * 256 * (8 + 2) + 4 * 256 * 128 * 1
    )
    assert vmem_needed(key, TuningParams(3)) == fixed_bytes(key) + 3 * 12_607_488 == 48_832_512
    # 129 experts need a second group of 128 lanes for their coefficients.
    more = TuningKey(256, 4096, 1024, 129, "TPU7x")
    assert fixed_bytes(more) - fixed_bytes(key) == 4 * 256 * 128


def test_at_least_one_slot_even_where_none_fits() -> None:
    assert ring_slots(TuningKey(4096, 8192, 8192, 64, "TPU7x"), 16 << 20) == 1


def test_the_heuristic_plans_for_the_device() -> None:
    key = TuningKey(256, 4096, 2048, 64, "TPU7x")
    assert heuristic(key) == TuningParams(1)
    assert heuristic(TuningKey(256, 4096, 2048, 64, "TPU v6 lite")) == TuningParams(3)


@pytest.mark.parametrize("slots", [0, 4, -1])
def test_what_is_no_ring_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match=rf"slots {slots} are not within 1..3"):
        TuningParams(slots).check()
