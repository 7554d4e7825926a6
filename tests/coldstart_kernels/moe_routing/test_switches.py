"""The switches: off by default, independent, refused with a value that would work."""

from __future__ import annotations

import dataclasses

import pytest

from coldstart_kernels.moe_routing import MoeSwitches

ON = {
    "MOE_PACKED_SORT": ("1", "packed_sort", True),
    "MOE_ROUTER_TOPK": ("rowmax", "router_topk", "rowmax"),
    "MOE_DENSE_EXPERT_THRESHOLD": ("256", "dense_expert_threshold", 256),
}


def test_off_by_default() -> None:
    assert MoeSwitches.read({}) == MoeSwitches(False, "sort", 0)
    assert MoeSwitches.read({"MOE_PACKED_SORT": "0", "MOE_ROUTER_TOPK": "sort"}) == MoeSwitches()


@pytest.mark.parametrize("variable", ON)
def test_each_moves_its_own_field_only(variable: str) -> None:
    text, field, value = ON[variable]
    assert MoeSwitches.read({variable: text}) == dataclasses.replace(
        MoeSwitches(), **{field: value}
    )


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MOE_PACKED_SORT", "yes"),
        ("MOE_PACKED_SORT", ""),
        ("MOE_ROUTER_TOPK", "Sort"),
        ("MOE_DENSE_EXPERT_THRESHOLD", "-1"),
        ("MOE_DENSE_EXPERT_THRESHOLD", "16.5"),
        ("MOE_DENSE_EXPERT_THRESHOLD", "many"),
        ("MOE_DENSE_EXPERT_THRESHOLD", ""),
        ("MOE_DENSE_EXPERT_THRESHOLD", "1_024"),
        ("MOE_DENSE_EXPERT_THRESHOLD", "0x10"),
    ],
)
def test_refusals_name_the_variable_and_a_value_that_works(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"{variable} '{text}' is not .*: use '\w+'"):
        MoeSwitches.read({variable: text})


@pytest.mark.parametrize("threshold", [-1, 16.5, "256", True, None])
def test_a_threshold_in_code_is_checked_too(threshold: object) -> None:
    with pytest.raises(ValueError, match="MOE_DENSE_EXPERT_THRESHOLD"):
        MoeSwitches(dense_expert_threshold=threshold)
