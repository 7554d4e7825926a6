"""The corpus: pairs of programs that must share a key, and pairs that must not. Other tests share this table.

A pair is made of two functions that lower a program. `identity` is what the cache computes of one: rewrites decided on
the descriptor, applied to a clone, normal form of the result. Flags, options and targets are other components of the
key and have their own tests; here only the `program` component speaks.
"""

from __future__ import annotations

from typing import Any

import fragment_programs as fp
from corpus_base import Identity, Pair, X, identity, lower, parse
from corpus_differences import constants, differences, kernel_case
from corpus_names import names

__all__ = [
    "MUST_DIFFER",
    "MUST_SAME",
    "Identity",
    "Pair",
    "X",
    "identity",
    "kernel_case",
    "lower",
    "parse",
]

# --- fragments -----------------------------------------------------------------------------------

_TPU = (
    "plain",
    "layers",
    "argument_of_a_function",
    "cut_in_scan",
    "with_grid",
    "with_prefetch",
    "carried",
)


def _fragments(kernel: Any) -> list[Pair]:
    pairs = []

    def add(label: str, program: str, left: Any, right: Any, interpret: bool) -> None:
        def side(cut: Any) -> Any:
            return lambda: fp.lowered(program, cut, kernel, interpret=interpret).compiler_ir()

        pairs.append(Pair(f"{kernel.__name__} {label} {program}", side(left), side(right)))

    for program in fp.PROGRAMS:
        add("static", program, fp.static_cut(1), fp.static_cut(13), True)
        add("dynamic", program, fp.dynamic_cut(2), fp.dynamic_cut(7), True)
    add("first", "plain", fp.static_cut(0), fp.static_cut(3), True)
    add("strided", "plain", fp.strided_cut(1), fp.strided_cut(4), True)
    for program in _TPU:
        add("tpu static", program, fp.static_cut(1), fp.static_cut(13), False)
        add("tpu dynamic", program, fp.dynamic_cut(2), fp.dynamic_cut(7), False)
    return pairs


MUST_SAME: list[Pair] = _fragments(fp.sparse) + names()
MUST_DIFFER: list[Pair] = _fragments(fp.dense) + constants() + differences()
