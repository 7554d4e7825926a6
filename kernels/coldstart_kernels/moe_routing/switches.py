"""The three opt-in features of routed experts, and how an environment names them.

They are independent and off by default. Nothing here reads the environment by itself: a program's text must
not depend on a variable that nobody passed, so whoever builds the program reads the switches and hands them on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

ROUTER_TOPK = ("sort", "rowmax")


@dataclasses.dataclass(frozen=True)
class MoeSwitches:
    """What is on. The defaults are the base path."""

    packed_sort: bool = False
    """`MOE_PACKED_SORT=0|1`: order rows by one packed sort (`moe_permute(packed=True)`)."""
    router_topk: str = "sort"
    """`MOE_ROUTER_TOPK=sort|rowmax`: how `moe_route` chooses."""
    dense_expert_threshold: int = 0
    """`MOE_DENSE_EXPERT_THRESHOLD`: up to how many tokens `moe_streaming` streams experts; 0 is never."""

    def __post_init__(self) -> None:
        if self.router_topk not in ROUTER_TOPK:
            raise ValueError(
                f"MOE_ROUTER_TOPK {self.router_topk!r} is not one of {ROUTER_TOPK}: use 'sort'"
            )
        check_threshold(self.dense_expert_threshold)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> MoeSwitches:
        """The switches that an environment sets; what it doesn't name stays off.

        Raises:
            ValueError: naming the variable, its value and one that would work.
        """
        packed = environment.get("MOE_PACKED_SORT", "0")
        if packed not in ("0", "1"):
            raise ValueError(f"MOE_PACKED_SORT {packed!r} is not 0 or 1: use '0'")
        threshold = environment.get("MOE_DENSE_EXPERT_THRESHOLD", "0")
        if not re.fullmatch("[0-9]+", threshold):
            raise ValueError(
                f"MOE_DENSE_EXPERT_THRESHOLD {threshold!r} is not a whole number of tokens, "
                "0 or more: use '0'"
            )
        return cls(
            packed_sort=packed == "1",
            router_topk=environment.get("MOE_ROUTER_TOPK", "sort"),
            dense_expert_threshold=int(threshold),
        )


def check_threshold(threshold: int) -> None:
    """Refuse what is no number of tokens.

    Raises:
        ValueError: negative, fractional, text, or a bool, which Python counts as a number.
    """
    if not isinstance(threshold, int) or isinstance(threshold, bool) or threshold < 0:
        raise ValueError(
            f"MOE_DENSE_EXPERT_THRESHOLD {threshold!r} is not a whole number of tokens, "
            "0 or more: use 0"
        )
