"""Structured attributes, flipped one fact at a time: the key moves (F1, mutation of what is hashed).

Beside the plain values that `test_jax_module.py` flips: every integer and every axis name inside of shardings, meshes,
dimension numbers, replica groups and handles. What MLIR or a verifier refuses is no program and doesn't count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import corpus_names
import jax
import jax.numpy as jnp
import pytest
from corpus_base import F32, S, lower
from jax import lax

from coldstart.client import jax_internals, mosaic
from coldstart.client.jax_internals import ir
from coldstart.client.normal_form import normal_form

pytestmark = pytest.mark.stacks

_INTEGER = re.compile(r"(?<![\w.\"])\d+(?![\w.\"])")
_NAME = re.compile(r'"([xyz])"')
# A symbol's own print, and types written out: other tests' matter.
_LEFT_OUT = (ir.FlatSymbolRefAttr, ir.StringAttr, ir.TypeAttr, ir.BoolAttr, ir.FloatAttr)


def other_texts(text: str) -> Iterator[str]:
    """The attribute's print with one integer changed, or two axis names changed places."""
    for match in _INTEGER.finditer(text):
        for step in (1, -1):
            yield text[: match.start()] + str(int(match[0]) + step) + text[match.end() :]
    for match in _NAME.finditer(text):
        for name in "xy":
            if name != match[1]:
                yield text[: match.start(1)] + name + text[match.end(1) :]
    if '"x"' in text and '"y"' in text:
        yield _NAME.sub(lambda m: f'"{dict(x="y", y="x").get(m[1], m[1])}"', text)


def gathers(x: Any, index: Any) -> Any:
    taken = jnp.take_along_axis(x, index, axis=0)
    dots = lax.dot_general(x, taken, (((1,), (1,)), ((), ())))
    windows = lax.conv_general_dilated(
        x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME", rhs_dilation=(2, 1)
    )
    return dots, windows, lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID")


PROGRAMS: dict[str, Callable[[], Any]] = {
    **{
        kind: (lambda kind=kind: corpus_names.meshed(kind, "x", "y"))
        for kind in corpus_names.MESHED
    },
    "dimension numbers": lambda: lower(gathers, S((8, 8), F32), S((8, 8), jnp.int32)),
}


def form(clone: Any) -> bytes:
    # Texts of result_info hold numbers, too; that rule takes them out by its own right.
    return normal_form(clone, one_device=False, rules_off=["result-info"])[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_flipped_fact_moves_the_key(program: str) -> None:
    module = PROGRAMS[program]()
    base = form(jax_internals.clone(module))
    flipped: Counter[str] = Counter()
    for n, op in enumerate(list(jax_internals.walk(module))):
        for name, attribute in mosaic.names_of(op).items():
            if isinstance(attribute, _LEFT_OUT):
                continue
            for text in other_texts(str(attribute)):
                data = _form_with(module, n, name, text, attribute)
                if data is not None:
                    flipped[name] += 1
                    assert data != base, (op.name, name, str(attribute), text)
    needed = {"dimension numbers": 15, "collectives": 10}.get(program, 4)
    assert sum(flipped.values()) >= needed, flipped
    if program != "dimension numbers":
        assert flipped["mesh"] >= 1, flipped
    if program == "constraint":
        assert flipped["sharding"] + flipped["sdy.sharding"] + flipped["arg_attrs"] >= 2, flipped


def _form_with(module: Any, n: int, name: str, text: str, attribute: Any) -> bytes | None:
    """The normal form of the module with op n's attribute so; None where that is no program, or no change."""
    with module.context:
        try:
            new = ir.Attribute.parse(text)
        except ir.MLIRError:
            return None
        if new == attribute:
            return None
        clone = jax_internals.clone(module)
        list(jax_internals.walk(clone))[n].attributes[name] = new
        try:
            if not clone.operation.verify():
                return None
        except ir.MLIRError:
            return None
    return form(clone)


def test_the_flipper_flips() -> None:
    assert list(other_texts('#sdy.sharding<@mesh, [{"x"}, {}]>')) == [
        '#sdy.sharding<@mesh, [{"y"}, {}]>'
    ]
    assert "array<i64: 2, 2>" in set(other_texts("array<i64: 1, 2>"))
    assert jax.devices()[15]  # the meshed programs need sixteen
