"""Descriptors: what is refused, how fast, what travels; and a runtime that emits them by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coldstart import wire
from coldstart.errors import InvalidDescriptor
from coldstart.identity.canonical import apply, canonicalize, digest_of
from coldstart.identity.descriptor import (
    COLUMNS,
    DescriptorBuilder,
    Effect,
    Fragment,
    GraphDescriptor,
    Limits,
    Read,
    column,
)
from coldstart.identity.liveness import analyse
from coldstart.identity.rewrite import FRAGMENT_OFFSET, Rewrite
from coldstart.wire_descriptor import (
    descriptor_from_pb,
    descriptor_to_pb,
)


def attention(
    offset: int = 8,
    *,
    sparse: bool = True,
    effect: Effect = Effect.BY_NAME,
    stride: int = 1,
    end: str = "func.return",
    end_effect: Effect = Effect.BY_NAME,
    **row: object,
) -> GraphDescriptor:
    """A runtime whose inputs are views and whose custom op declares its read set."""
    b = DescriptorBuilder("hand", "attention", final=True)
    s = b.string
    program, _ = b.node(s("program"))
    top, _ = b.open_region(program)
    function_node, _ = b.node(s("function"))
    main = b.function(function_node, "main", public=True)
    body, arguments = b.open_region(function_node, [s("f32[8,64]"), s("f32[128,64]")])
    b.input(**row)
    b.input()
    b.fragment(Fragment(0, "q", offset, (8, 64), (64, stride)))
    node, result = b.node(
        s("attention"),
        [arguments, arguments + 1],
        [s("f32[8,64]")],
        [(s("top_k"), s("16"))],
        effect=effect,
    )
    b.read(node, 0, Read.UNREAD if sparse else Read.READ, "the sparse branch reads kv only")
    b.read(node, 1, Read.READ, "")
    b.node(s(end), [result], effect=end_effect)
    b.close_region(body)
    b.close_region(top)
    return b.build(entry=main)


def test_sparse_views_share_one_identity_and_dense_ones_dont():
    offsets = range(0, 16 * 512, 512)
    assert len({canonicalize(attention(o)).digest for o in offsets}) == 1
    assert len({canonicalize(attention(o, sparse=False)).digest for o in offsets}) == 16
    assert (
        len({canonicalize(attention(o), ["unread-fragment-offset"]).digest for o in offsets}) == 16
    )


@pytest.mark.parametrize(
    "options",
    [
        {"effect": Effect.EFFECT},
        {"stride": -1},
        {"alias_output": 0},
        {"donated": True},
    ],
    ids=str,
)
def test_a_view_that_may_matter_keeps_its_offset(options):
    assert not canonicalize(attention(**options)).rewrites


@pytest.mark.parametrize("effect", list(Effect), ids=str)
@pytest.mark.parametrize("end", ["func.return", "return", "stablehlo.tanh"])
def test_what_ends_a_function_hands_out_its_results(end, effect):
    """Whatever an emitter calls it and says of it: else a dense fragment would count as dead."""
    d = attention(sparse=False, end=end, end_effect=effect)
    assert not canonicalize(d).rewrites and analyse(d).value_live.all()


def test_a_pure_kernel_still_has_its_read_set():
    assert canonicalize(attention(effect=Effect.PURE)).rewrites


def test_a_call_with_an_effect_of_its_own_needs_all_that_it_hands_over():
    """Its function ignores the argument, and nobody uses the result; the call itself does something with both."""

    def called(effect: Effect) -> tuple[bool, bool]:
        b = DescriptorBuilder("hand", final=True)
        s = b.string
        program, _ = b.node(s("program"))
        top, _ = b.open_region(program)
        main, _ = b.node(s("function"))
        b.function(main, "main", public=True)
        body, x = b.open_region(main, [s("f32")])
        b.input()
        call, _ = b.node(s("call"), [x], [s("f32")], effect=effect)
        b.node(s("func.return"))
        b.close_region(body)
        inner, _ = b.node(s("function"))
        b.call(call, b.function(inner, "inner", public=False))
        region, _ = b.open_region(inner, [s("f32")])
        _, made = b.node(s("stablehlo.constant"), [], [s("f32")])
        b.node(s("func.return"), [made])
        b.close_region(region)
        b.close_region(top)
        live = analyse(b.build())
        return bool(live.value_live[x]), bool(live.value_live[made])

    assert called(Effect.BY_NAME) == (False, False)
    assert called(Effect.EFFECT) == (True, True)


def test_the_digest_covers_every_column():
    """Change any number or text of a final descriptor: its digest moves, or it is refused."""
    d = attention()
    base = digest_of(d)
    for name in COLUMNS:
        values = getattr(d, name)
        for i in range(len(values)):
            changed = values.copy()
            changed[i] = changed[i] + 1 if changed[i] <= 0 else changed[i] - 1
            try:
                other = dataclasses.replace(d, **{name: column(changed)})
            except InvalidDescriptor:
                continue
            if name == "read_reason":
                assert digest_of(other) == base
            else:
                assert digest_of(other) != base, (name, i)
    assert digest_of(dataclasses.replace(d, framework="other")) != base
    assert digest_of(dataclasses.replace(d, program_name="other")) == base
    moved = dataclasses.replace(d.fragments[0], buffer="k")
    assert digest_of(dataclasses.replace(d, fragments=(moved,))) != base
    strings = ("", *reversed(d.strings[1:]))
    renumber = {d.strings.index(text): i for i, text in enumerate(strings)}
    texts = ("value_type", "value_sharding", "node_op", "attribute_name", "attribute_value")
    texts += ("function_name", "read_reason")
    shuffled = {n: column([renumber[int(i)] for i in getattr(d, n)]) for n in texts}
    assert digest_of(dataclasses.replace(d, strings=strings, **shuffled)) == base


def test_the_wire_keeps_everything():
    d = attention(24)
    message = descriptor_to_pb(d)
    back = descriptor_from_pb(type(message).FromString(message.SerializeToString()))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(back, name), getattr(d, name))
    assert (back.fragments, back.final, back.framework) == (d.fragments, True, "hand")
    assert canonicalize(back) == canonicalize(d)
    rewrite = canonicalize(d).rewrites[0]
    assert wire.rewrite_from_pb(wire.rewrite_to_pb(rewrite)) == rewrite


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_hostile_messages_are_refused_or_harmless(data):
    message = descriptor_to_pb(attention())
    blob = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = type(message).FromString(bytes(blob))
    except Exception as exc:  # protobuf's own refusal, whatever its class is called
        assert type(exc).__name__ == "DecodeError"
        return
    with contextlib.suppress(InvalidDescriptor):
        canonicalize(descriptor_from_pb(parsed))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COLUMNS), st.integers(0, 40), st.integers(-1, 2**31 - 1))
def test_hostile_numbers_are_refused_or_harmless(name, at, value):
    d = attention()
    values = getattr(d, name).copy()
    if not len(values):
        return
    values[at % len(values)] = value
    with contextlib.suppress(InvalidDescriptor):
        canonicalize(dataclasses.replace(d, **{name: column(values)}))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"entry": 1},
        {"entry": -1},
        {"strings": ("x",)},
        {"limits": Limits(nodes=2)},
        {"limits": Limits(text_bytes=3)},
        {"fragments": (Fragment(7, "q", 0, (), ()),)},
        {"fragments": (Fragment(0, "q", 0, (1,), ()),)},
        {"fragments": (Fragment(0, "q", 0, (-1,), (1,)),)},
        {"fragments": (Fragment(0, "q", -1, (1,), (1,)),)},
    ],
    ids=str,
)
def test_what_breaks_a_rule_is_refused(change):
    with pytest.raises(InvalidDescriptor):
        dataclasses.replace(attention(), **change)


def test_numbers_that_do_not_fit_are_refused():
    for values in ([2**31], [-2], [[1]]):
        with pytest.raises(InvalidDescriptor):
            column(values)


def nested(depth: int) -> GraphDescriptor:
    b = DescriptorBuilder("hand")
    s = b.string
    program, _ = b.node(s("program"))
    top, _ = b.open_region(program)
    function_node, _ = b.node(s("function"))
    main = b.function(function_node, "main", public=True)
    regions = [b.open_region(function_node)[0]]
    for _ in range(depth):
        node, _ = b.node(s("stablehlo.case"))
        regions.append(b.open_region(node)[0])
    for region in reversed(regions):
        b.close_region(region)
    b.close_region(top)
    return b.build(entry=main)


def test_deep_nesting_is_refused():
    canonicalize(nested(60))
    with pytest.raises(InvalidDescriptor, match="deeper"):
        nested(5_000)


def calls(graph: list[list[int]]) -> GraphDescriptor:
    """Functions that call each other, one argument and one result each; function 0 is the entry."""
    b = DescriptorBuilder("hand")
    s = b.string
    program, _ = b.node(s("program"))
    top, _ = b.open_region(program)
    pending = []
    for f, callees in enumerate(graph):
        function_node, _ = b.node(s("function"))
        b.function(function_node, f"f{f}", public=f == 0)
        region, value = b.open_region(function_node, [s("f32")])
        for callee in callees:
            node, value = b.node(s("func.call"), [value], [s("f32")])
            pending.append((node, callee))
        b.node(s("func.return"), [value])
        b.close_region(region)
    b.close_region(top)
    for node, callee in pending:
        b.call(node, callee)
    b.input()
    return b.build(entry=0)


def test_a_call_graph_with_two_to_the_fifty_paths_is_no_more_work_than_its_calls():
    depth = 50
    d = calls([[f + 1, f + 1] for f in range(depth)] + [[]])
    begin = time.process_time()
    canonicalize(d)
    assert time.process_time() - begin < 30  # 2^50 call sites would take years


@pytest.mark.parametrize("graph", [[[0]], [[1], [2], [0]], [[1, 2], [2], [1]]], ids=str)
def test_recursion_is_refused(graph):
    with pytest.raises(InvalidDescriptor, match="cycle"):
        canonicalize(calls(graph))


def test_rewrites_that_name_nothing_are_refused():
    d = attention()
    for rewrite in (
        Rewrite("r", "nobody", 0, "top_k", "1", ""),
        Rewrite("r", "main", 99, "top_k", "1", ""),
        Rewrite("r", "main", 0, "nothing", "1", ""),
        Rewrite("r", "main", -1, "top_k", "1", ""),
        Rewrite("r", "main", 1, FRAGMENT_OFFSET, "0", ""),  # an input without a fragment
        Rewrite("r", "main", -1, FRAGMENT_OFFSET, "0", ""),
        Rewrite("r", "nobody", 0, FRAGMENT_OFFSET, "0", ""),
        *(
            Rewrite("r", "main", 0, FRAGMENT_OFFSET, value, "")
            for value in ("", "x", "-1", "1.5", "0x1", " 0", "0\n", "\u0660", "9" * 5000)
        ),
    ):
        with pytest.raises(InvalidDescriptor):
            apply(d, [rewrite])
    assert apply(d, [Rewrite("r", "main", 0, "top_k", "1", "")]).attributes_of(2) == {"top_k": "1"}
    assert apply(d, [Rewrite("r", "main", 0, FRAGMENT_OFFSET, "24", "")]).fragments[0].offset == 24


def test_a_hundred_thousand_nodes_are_compact():
    b = DescriptorBuilder("hand")
    s = b.string
    program, _ = b.node(s("program"))
    top, _ = b.open_region(program)
    function_node, _ = b.node(s("function"))
    main = b.function(function_node, "main", public=True)
    region, value = b.open_region(function_node, [s("tensor<8xf32>")])
    b.input()
    names = [s(f"stablehlo.{n}") for n in ("sine", "cosine", "tanh")]
    for k in range(100_000):
        _, value = b.node(names[k % 3], [value], [s("tensor<8xf32>")])
    b.node(s("func.return"), [value])
    b.close_region(region)
    b.close_region(top)
    d = b.build(entry=main)
    assert len(descriptor_to_pb(d).SerializeToString()) < 20 * 100_000
    assert not canonicalize(d).rewrites


def test_the_final_digest_covers_every_column() -> None:
    """A column that the digest forgets would let two final descriptors that differ in it share an artifact."""
    from coldstart.identity import canonical, descriptor

    covered = {*canonical._TEXT_COLUMNS, *canonical._NUMBER_COLUMNS}
    assert covered | {"read_reason"} == set(descriptor.COLUMNS)  # reasons are words for people
