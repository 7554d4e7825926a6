"""Final descriptors that aren't shaped as JAX's are: what ends a region, ops with effects, what stands at the top.

Each program cuts a slice at an offset that somebody may see. Two offsets must be two digests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from coldstart.identity.canonical import canonicalize
from coldstart.identity.descriptor import (
    DescriptorBuilder,
    Effect,
    Fragment,
    GraphDescriptor,
    Read,
)

WHOLE, PIECE = "f32[64]", "f32[8]"


class Views(DescriptorBuilder):
    """A builder that takes texts."""

    def __init__(self) -> None:
        super().__init__("views", final=True)
        self.top, _ = self.node(self.string("views.program"))
        self.top_region, _ = self.open_region(self.top)

    def op(
        self,
        name: str,
        operands: Sequence[int] = (),
        results: Sequence[str] = (),
        effect: Effect = Effect.BY_NAME,
        **attributes: str,
    ) -> tuple[int, int]:
        return self.node(
            self.string(name),
            operands,
            [self.string(text) for text in results],
            [(self.string(key), self.string(attributes[key])) for key in sorted(attributes)],
            effect=effect,
        )

    def slice(
        self, value: int, offset: int, effect: Effect = Effect.BY_NAME, **more: str
    ) -> tuple[int, int]:
        return self.op(
            "stablehlo.slice",
            [value],
            [PIECE],
            effect,
            limit_indices=f"array<i64: {offset + 8}>",
            start_indices=f"array<i64: {offset}>",
            strides="array<i64: 1>",
            **more,
        )

    def begin(self, name: str, arguments: int = 1, effect: Effect = Effect.BY_NAME) -> int:
        """A function; returns its first argument. `end` closes it."""
        node, _ = self.op("views.function", effect=effect)
        self.region, first = self.open_region(node, [self.string(WHOLE)] * arguments)
        self.index = self.function(node, name, public=name == "main")
        return first

    def end(self, *returned: int, by: str = "func.return") -> int:
        if by:
            self.op(by, returned)
        self.close_region(self.region)
        return self.index

    def finish(self, inputs: int = 1) -> GraphDescriptor:
        self.close_region(self.top_region)
        for _ in range(inputs):
            self.input()
        return self.build()


Program = Callable[[int], GraphDescriptor]


def ends(by: str) -> Program:
    """main hands out its slice in its own way."""

    def program(offset: int) -> GraphDescriptor:
        b = Views()
        _, cut = b.slice(b.begin("main"), offset)
        b.end(*([cut] if by else []), by=by)
        return b.finish()

    return program


def block(effect: Effect, by: str) -> Program:
    """A region of an op hands out a slice."""

    def program(offset: int) -> GraphDescriptor:
        b = Views()
        whole = b.begin("main")
        node, result = b.op("views.block", [], [PIECE], effect)
        region, _ = b.open_region(node)
        _, cut = b.slice(whole, offset)
        if by:
            b.op(by, [cut], effect=Effect.PURE)
        b.close_region(region)
        b.end(result)
        return b.finish()

    return program


def ends_in_call(offset: int) -> GraphDescriptor:
    """A region ends in a call of a function that cuts."""
    b = Views()
    whole = b.begin("main")
    node, result = b.op("views.block", [], [PIECE], Effect.PURE)
    region, _ = b.open_region(node)
    call, _ = b.op("views.call", [whole], [PIECE])
    b.close_region(region)
    b.end(result)
    _, cut = b.slice(b.begin("cut"), offset)
    b.call(call, b.end(cut))
    return b.finish()


def noisy_slice(offset: int) -> GraphDescriptor:
    """A slice that does more than slicing, whatever it is called."""
    b = Views()
    whole = b.begin("main")
    b.slice(whole, offset, Effect.EFFECT)
    b.end(whole)
    return b.finish()


def slice_that_calls(offset: int) -> GraphDescriptor:
    """It is named as a slice, but calls a function that prints."""
    b = Views()
    whole = b.begin("main")
    call, _ = b.slice(whole, offset)
    b.end(whole)
    x = b.begin("print")
    b.op("views.print", [x])
    b.call(call, b.end(x))
    return b.finish()


def noisy_constant(offset: int) -> GraphDescriptor:
    b = Views()
    whole = b.begin("main")
    _, start = b.op(
        "stablehlo.constant",
        [],
        ["tensor<i32>"],
        Effect.EFFECT,
        value=f"dense<{offset}> : tensor<i32>",
    )
    b.op("stablehlo.dynamic_slice", [whole, start], [PIECE])
    b.end(whole)
    return b.finish()


def at_the_top(offset: int) -> GraphDescriptor:
    """What stands beside the functions is seen by all of them."""
    b = Views()
    _, table = b.op("views.table", [], [WHOLE], Effect.PURE)
    _, cut = b.slice(table, offset)
    b.begin("main")
    b.end(cut)
    return b.finish()


def outside(effect: Effect, nodes: bool) -> Program:
    """A piece is handed to a function that does more than is written down."""

    def program(offset: int) -> GraphDescriptor:
        b = Views()
        whole = b.begin("main")
        _, cut = b.slice(whole, offset)
        call, _ = b.op("views.call", [cut])
        b.end(whole)
        b.begin("outside", effect=effect)
        b.call(call, b.end(by="func.return" if nodes else ""))
        return b.finish()

    return program


SEEN: dict[str, Program] = {
    "returned": ends("func.return"),
    "returned by a name of its own": ends("views.yield"),
    "the last op is the result": ends(""),
    "yielded by a pure op": block(Effect.PURE, "views.yield"),
    "the last op of a pure op's region": block(Effect.PURE, ""),
    "the last op of an effect's region": block(Effect.EFFECT, ""),
    "the last op of an unknown op's region": block(Effect.BY_NAME, ""),
    "a region ends in a call": ends_in_call,
    "a slice with an effect": noisy_slice,
    "a slice that calls": slice_that_calls,
    "a constant with an effect": noisy_constant,
    "at the top": at_the_top,
    "handed to a function with an effect": outside(Effect.EFFECT, nodes=True),
    "handed to a function without nodes": outside(Effect.BY_NAME, nodes=False),
}


@pytest.mark.parametrize("what", SEEN)
def test_who_sees_an_offset_keeps_it(what: str) -> None:
    one, other = (canonicalize(SEEN[what](offset)) for offset in (8, 16))
    assert not one.rewrites and not other.rewrites
    assert one.digest != other.digest


def test_nobody_sees_it() -> None:
    """The same shapes, and nobody there: so the tests above could fail."""

    def program(offset: int) -> GraphDescriptor:
        b = Views()
        whole = b.begin("main")
        b.slice(whole, offset)
        node, _ = b.op("views.block", [], [PIECE], Effect.PURE)
        region, _ = b.open_region(node)
        b.slice(whole, offset)
        b.close_region(region)
        _, cut = b.slice(whole, offset)
        call, _ = b.op("views.call", [cut])
        b.end(whole)
        b.begin("inside")
        b.call(call, b.end())
        return b.finish()

    one, other = (canonicalize(program(offset)) for offset in (8, 16))
    assert len(one.rewrites) == len(other.rewrites) == 6  # start and limit of each
    assert one.digest == other.digest


def test_a_view_handed_to_outside_code_stays() -> None:
    def program(offset: int, nodes: bool) -> GraphDescriptor:
        b = Views()
        whole = b.begin("main")
        call, _ = b.op("views.call", [whole])
        b.end()
        b.begin("outside")
        b.call(call, b.end(by="func.return" if nodes else ""))
        b.fragment(Fragment(0, "q", offset, (64,), (1,)))
        return b.finish()

    assert canonicalize(program(8, nodes=True)).rewrites
    assert not canonicalize(program(8, nodes=False)).rewrites


def test_an_unread_operand_of_what_ends_a_function() -> None:
    """What an emitter says of an operand holds there too."""

    def program(offset: int, state: Read) -> GraphDescriptor:
        b = Views()
        _, cut = b.slice(b.begin("main"), offset)
        node, _ = b.op("views.attend", [cut], [PIECE])
        b.read(node, 0, state)
        b.end(by="")
        return b.finish()

    assert len(canonicalize(program(8, Read.UNREAD)).rewrites) == 2
    assert not canonicalize(program(8, Read.READ)).rewrites
