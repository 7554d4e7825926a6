"""The extractor and what is done with its answer: completeness, mutations, attribute flips, edits from strangers."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import fragment_programs as fp
import identity_corpus as corpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus_base import parse
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from coldstart.client import jax_internals, jax_module, mosaic
from coldstart.client.jax_internals import ir
from coldstart.client.normal_form import normal_form
from coldstart.errors import InvalidDescriptor
from coldstart.identity.descriptor import COLUMNS
from coldstart.identity.rewrite import Rewrite

pytestmark = pytest.mark.stacks
S = jax.ShapeDtypeStruct


def many_ops() -> Any:
    """A module with 40-odd kinds of ops, regions and attributes."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))

    def f(x: Any, w: Any, p: Any) -> Any:
        def inner(x: Any, w: Any) -> Any:
            y = lax.psum(x @ w, "b")
            y = lax.all_gather(y, "a", tiled=True)
            y = lax.ppermute(y, "a", [(0, 1), (1, 0)])
            return lax.all_to_all(y, "a", 0, 0, tiled=True)

        y = jax.shard_map(
            inner,
            mesh=mesh,
            in_specs=(P("a", "b"), P("b", None)),
            out_specs=P("a"),
            check_vma=False,
        )(x, w)
        y = lax.with_sharding_constraint(y, NamedSharding(mesh, P(None, "b")))
        z = lax.scan(lambda c, i: (c + i, c.sum()), y, jnp.arange(3.0))[0]
        z = lax.cond(p, lambda: z, lambda: lax.sort(z, dimension=0))
        g = z[jnp.array([0, 1])]
        z = z.at[jnp.array([0, 1])].add(1.0)
        return (
            *(z, g, lax.reduce_window(z, 0.0, lax.add, (2, 2), (1, 1), "SAME")),
            lax.conv_general_dilated(z[None, None], jnp.ones((1, 1, 2, 2)), (1, 1), "SAME"),
            *(lax.top_k(z, 2), lax.cumsum(z), lax.pad(z, 0.0, ((1, 1, 0), (0, 0, 0)))),
            *(jax.random.uniform(jax.random.key(0), (3,)), lax.approx_max_k(z, 2), z[0:2, 1:3]),
            lax.dynamic_slice_in_dim(z, 1, 2),
        )

    return corpus.lower(f, S((8, 8), jnp.float32), S((8, 8), jnp.float32), S((), jnp.bool_))


def keys(text: str) -> set[str]:
    """The names in a printed list of `name = value`, at depth 0."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "<[({") - (character in ">])}")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return {
        re.split(r"\s=", part.strip())[0].strip().strip('"')
        for part in [*parts, current]
        if part.strip()
    }


def printed_attributes(op: Any) -> set[str]:
    """The names of properties and attributes in an op's generic print."""
    head = op.get_asm(
        print_generic_op_form=True, enable_debug_info=False, large_elements_limit=4
    ).split("\n")[0]
    found: set[str] = set()
    for opening, closing in (("<{", "}>"), (") {", "}")):
        at = head.find(opening)
        if at < 0:
            continue
        begin = at + len(opening)
        depth, end = 1, begin
        while end < len(head) and depth:
            depth += (head[end] == "{") - (head[end] == "}")
            end += 1
        found |= keys(head[begin : end - 1])
        del closing
    return {name for name in found if re.fullmatch(r"[A-Za-z_][\w.]*", name)}


def test_attributes_hold_all_that_the_generic_print_shows():
    """F1: what breaks silently with a new jaxlib."""
    kinds = set()
    module = many_ops()  # held: ops don't keep their module alive
    for op in jax_internals.walk(module):
        kinds.add(op.name)
        missing = printed_attributes(op) - set(mosaic.names_of(op))
        # A region's opening on the first line is no attribute.
        assert not missing, (op.name, missing)
    assert len(kinds) >= 40


def test_every_op_stands_in_the_descriptor_in_order():
    module = many_ops()
    d = jax_module.describe(module)
    ops = list(jax_internals.walk(module))
    assert [d.op(n) for n in range(d.nodes)] == [op.name for op in ops]
    for n, op in enumerate(ops):
        assert set(d.attributes_of(n)) == set(mosaic.names_of(op))
        assert len(d.operands_of(n)) == len(op.operands)
        types = [d.strings[d.value_type[v]] for v in d.results_of(n)]
        assert types == [str(result.type) for result in op.results]


def test_inputs_say_what_is_donated():
    module = corpus.lower(
        lambda x, y: (x + 1, y), S((4,), jnp.float32), S((8,), jnp.float32), donate_argnums=0
    )
    d = jax_module.describe(module)
    donated = [
        a >= 0 or bool(b) for a, b in zip(d.input_alias_output, d.input_donated, strict=True)
    ]
    assert donated == [True, False]


def other_value(attribute: Any) -> Any:
    """Another attribute of the same kind and type, or None where none is at hand."""
    text = str(attribute)
    for isa, edit in (
        (ir.BoolAttr, lambda: "false" if text == "true" else "true"),
        (ir.IntegerAttr, lambda: re.sub(r"^-?\d+", lambda m: str(int(m[0]) + 1), text)),
        (ir.StringAttr, lambda: text[:-1] + 'x"'),
        (
            ir.DenseI64ArrayAttr,
            lambda: re.sub(r"(?<= )(-?\d+)(?=[,>])", lambda m: str(int(m[1]) + 1), text),
        ),
    ):
        if isinstance(attribute, isa):
            changed = edit()
            return None if changed == text else ir.Attribute.parse(changed)
    if isinstance(attribute, ir.DenseElementsAttr):
        changed = re.sub(r"(?<=dense<)-?\d+(?=>)", lambda m: str(int(m[0]) + 1), text, count=1)
        return None if changed == text else ir.Attribute.parse(changed)
    return None


# Attributes that a rule takes out, by (op, attribute): flipping them may leave the key.
BY_RULE = {
    ("builtin.module", "sym_name"),
    ("func.func", "sym_name"),
    ("stablehlo.custom_call", "kernel_name"),
}


@pytest.mark.parametrize(
    "build",
    [
        many_ops,
        lambda: fp.lowered("with_grid", fp.static_cut(1), fp.dense, interpret=False).compiler_ir(),
    ],
    ids=["many", "kernel"],
)
def test_a_flipped_attribute_moves_the_key(build):
    module = build()
    ops = list(jax_internals.walk(module))
    base = normal_form(jax_internals.clone(module), one_device=False)[0]
    flipped, skipped = 0, 0
    for n, op in enumerate(ops):
        for name, attribute in mosaic.names_of(op).items():
            clone = jax_internals.clone(module)
            with module.context:
                new = other_value(attribute)
                if new is None:
                    continue
                target = list(jax_internals.walk(clone))[n]
                target.attributes[name] = new
            try:
                data = normal_form(clone, one_device=False)[0]
            except (ValueError, ir.MLIRError):
                skipped += 1  # not a legal program
                continue
            if (op.name, name) not in BY_RULE:
                flipped += 1
                assert data != base, (op.name, name, str(attribute), str(new))
    assert flipped >= (40 if len(ops) > 100 else 5), (flipped, skipped)


@pytest.mark.parametrize("column_name", COLUMNS)
def test_an_extractor_that_forgets_a_column_never_makes_equal_keys(column_name, monkeypatch):
    """The key hashes the module; a blind descriptor may cost rewrites, or be refused, and no more (H1)."""
    pairs = [
        p
        for p in corpus.MUST_DIFFER
        if p.name
        in ("dense static plain", "rank in arithmetic", "constant: late element", "donation")
    ]
    describe = jax_module.describe

    def forgetful(module: Any) -> Any:
        d = describe(module)
        return dataclasses.replace(d, **{column_name: np.zeros_like(getattr(d, column_name))})

    monkeypatch.setattr(jax_module, "describe", forgetful)
    for pair in pairs:
        try:
            left, right = corpus.identity(pair.left()), corpus.identity(pair.right())
        except InvalidDescriptor:
            continue  # such a program is not rewritten
        assert left.digest != right.digest


def plain_module() -> Any:
    return fp.lowered("plain", fp.static_cut(2), fp.dense).compiler_ir()


@pytest.mark.parametrize(
    "rewrite",
    [
        Rewrite("r", "main", 0, "start_indices", "array<i64: 0, 0>", ""),
        Rewrite("r", "main", 0, "strides", "array<i64: 2, 1>", ""),
        Rewrite("r", "main", 0, "start_indices", "no attribute", ""),
        Rewrite("r", "main", 100_000, "value", "dense<0> : tensor<i32>", ""),
        Rewrite("r", "nobody", 0, "value", "dense<0> : tensor<i32>", ""),
        Rewrite("r", "main", 1, "value", "dense<1> : tensor<i32>", ""),
        Rewrite("r", "main", 1, "value", "dense<0.0> : tensor<f32>", ""),
        Rewrite("r", "main", 1, "custom", "unit", ""),
    ],
    ids=lambda r: f"{r.function} {r.op} {r.attribute} {r.value}",
)
def test_edits_that_no_rule_makes_are_refused(rewrite):
    """Whoever sent them: a daemon can't make a client compile something else."""
    clone = jax_internals.clone(plain_module())
    with pytest.raises(InvalidDescriptor):
        jax_module.apply_rewrites(clone, [rewrite])


def test_both_halves_of_a_slice_are_needed():
    legal = [
        Rewrite("r", "main", 0, "start_indices", "array<i64: 0, 0>", ""),
        Rewrite("r", "main", 0, "limit_indices", f"array<i64: 8, {fp.COLUMNS}>", ""),
    ]
    unread = fp.lowered("plain", fp.static_cut(2), fp.sparse).compiler_ir()
    assert jax_module.apply_rewrites(jax_internals.clone(unread), legal) == tuple(legal)
    wrong = dataclasses.replace(legal[1], value=f"array<i64: 9, {fp.COLUMNS}>")
    with pytest.raises(InvalidDescriptor):
        jax_module.apply_rewrites(jax_internals.clone(unread), [legal[0], wrong])
    with pytest.raises(InvalidDescriptor, match="returns a value"):  # a legal edit of a live slice
        jax_module.apply_rewrites(jax_internals.clone(plain_module()), legal)


def test_programs_without_candidates_are_known_at_once():
    assert jax_module.may_rewrite(plain_module())
    assert not jax_module.may_rewrite(corpus.lower(lambda x: jnp.sin(x) * 2, corpus.X))
    assert not jax_module.may_rewrite(corpus.lower(lambda x: x[0:3], corpus.X))


def test_functions_named_by_attributes_count_as_called():
    """F12: a comparator is reached only through called_computations."""
    d = jax_module.describe(
        corpus.lower(lambda x: lax.approx_max_k(x, 4), corpus.X, platform="tpu")
    )
    mentioned = {d.strings[d.function_name[f]] for f in d.reference_function}
    assert mentioned


def test_large_constants_are_told_apart_by_every_byte():
    for pair in corpus.MUST_DIFFER:
        if pair.name.startswith("constant:"):
            left, right = (jax_module.describe(side()) for side in (pair.left, pair.right))
            texts = [
                [d.strings[v] for v in d.attribute_value.tolist()]
                + [d.strings[v] for v in d.value_type]
                for d in (left, right)
            ]
            assert texts[0] != texts[1], pair.name


def test_an_edit_that_is_refused_leaves_the_others_standing():
    """What one value's confirmation can't see through costs that edit alone."""
    mixed = parse(MIXED)
    both = [
        Rewrite("r", "main", op, attribute, value, "")
        for op in (0, 1)
        for attribute, value in (
            ("start_indices", "array<i64: 0>"),
            ("limit_indices", "array<i64: 8>"),
        )
    ]
    made = jax_module.apply_rewrites(mixed, both)
    assert [rewrite.op for rewrite in made] == [0, 0]  # op 1 is returned
    assert str(mixed).count("[0:8]") == 1 and str(mixed).count("[16:24]") == 1


MIXED = """
module {
  func.func public @main(%q: tensor<64xf32>) -> tensor<8xf32> {
    %dead = stablehlo.slice %q [16:24] : (tensor<64xf32>) -> tensor<8xf32>
    %live = stablehlo.slice %q [16:24] : (tensor<64xf32>) -> tensor<8xf32>
    %unused = stablehlo.tanh %dead : tensor<8xf32>
    return %live : tensor<8xf32>
  }
}
"""
