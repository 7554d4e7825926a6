"""Evidence that a dead claim is true: poison, an independent judge, memory, and rules broken on purpose.

- poison: the fragment's place is taken by NaN, huge and other data, at its definition; outputs don't move.
- judge: XLA removes dead code by itself, so its optimized HLO of a participant's program and of the canonical one are
  equal (metadata aside). The canonical module of every participant is the one that a participant with offset zero
  would have compiled, which is shown first.
- memory: arguments, outputs, temporaries and aliases of the two are equal, and so are the ops and their order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import fragment_programs as fp
import identity_corpus as corpus
import jax
import numpy as np
import pytest

from coldstart.client import jax_internals, jax_module
from coldstart.client.confirm import Confirmation
from coldstart.errors import InvalidDescriptor
from coldstart.identity import rules
from coldstart.identity.canonical import canonicalize
from coldstart.identity.liveness import Liveness, analyse
from coldstart.identity.rewrite import Rewrite
from coldstart.identity.rules import dead_constant_start, unread_fragment_offset

CUTS = {"static": fp.static_cut, "dynamic": fp.dynamic_cut}
# The judges compile; these programs cover every way in which demands travel.
JUDGED = ("plain", "layers", "cut_in_scan", "carried", "argument_of_a_function", "in_shard_map")


def arguments(seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(a.shape).astype(a.dtype) for a in fp.ARGUMENTS]


def optimized(lowered: jax.stages.Lowered) -> tuple[str, tuple[int, ...]]:
    compiled = lowered.compile()
    text = re.sub(r", metadata=\{[^}]*\}", "", compiled.as_text())
    text = re.sub(r"(FileNames|FunctionNames|FileLocations|StackFrames)\n(.*\n)*?\n", "", text)
    memory = compiled.memory_analysis()
    sizes = (
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
    )
    return text, sizes


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("program", JUDGED)
def test_judge_and_memory(program: str, cut: str):
    raw = fp.lowered(program, CUTS[cut](5), fp.sparse)
    zero = fp.lowered(program, CUTS[cut](0), fp.sparse)
    assert corpus.identity(raw.compiler_ir()).canonical.rewrites
    assert (
        corpus.identity(raw.compiler_ir()).digest
        == corpus.identity(zero.compiler_ir(), rules_off=[r.name for r in rules.REWRITES]).digest
    )
    assert optimized(raw) == optimized(zero)


@pytest.mark.parametrize("program", JUDGED)
def test_poison(program: str):
    q, kv = arguments()
    expected = np.asarray(jax.jit(fp.PROGRAMS[program](fp.static_cut(3), fp.sparse, True))(q, kv))
    assert np.isfinite(expected).all()
    for value in (np.nan, 3e38, -1.0):
        poisoned = jax.jit(fp.PROGRAMS[program](fp.poison(value), fp.sparse, True))(q, kv)
        np.testing.assert_array_equal(np.asarray(poisoned), expected)
    # The oracle has teeth: where the fragment is read, poison shows.
    dense = np.asarray(jax.jit(fp.PROGRAMS[program](fp.static_cut(3), fp.dense, True))(q, kv))
    poisoned = np.asarray(jax.jit(fp.PROGRAMS[program](fp.poison(np.nan), fp.dense, True))(q, kv))
    assert np.isnan(poisoned).any() and not np.isnan(dense).any()


@pytest.mark.parametrize("program", ["plain", "cut_in_scan", "in_shard_map"])
def test_equal_keys_compute_equal_bits(program: str):
    q, kv = arguments(1)
    left, right = (
        np.asarray(jax.jit(fp.PROGRAMS[program](fp.static_cut(r), fp.sparse, True))(q, kv))
        for r in (1, 13)
    )
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("pair", corpus.MUST_SAME, ids=str)
def test_rewriting_keeps_every_op(pair: corpus.Pair):
    module = pair.left()

    def shape(top):
        return [
            (op.name, len(op.operands), [str(r.type) for r in op.results])
            for op in jax_internals.walk(top)
        ]

    clone = jax_internals.clone(module)
    before = str(module)
    jax_module.apply_rewrites(clone, canonicalize(jax_module.describe(module)).rewrites)
    assert shape(clone) == shape(module)
    assert str(module) == before  # the caller's module is never touched


# --- rules broken on purpose ---------------------------------------------------------------------


@pytest.fixture
def unconfirmed(monkeypatch):
    """Takes the second opinion away: the corpus must catch a broken rule by itself."""
    monkeypatch.setattr(Confirmation, "dead", lambda self, op: None)


@pytest.mark.parametrize("pair", [p for p in corpus.MUST_DIFFER if "dense" in p.name], ids=str)
def test_the_second_opinion_refuses_every_edit_of_a_live_value(pair: corpus.Pair):
    module = pair.right()
    d = jax_module.describe(module)
    claims = [r for rule in rules.REWRITES for r in rule.find(d, all_dead(analyse(d)))]
    assert claims
    for function, op in {(r.function, r.op) for r in claims}:
        edits = [r for r in claims if (r.function, r.op) == (function, op)]
        with pytest.raises(InvalidDescriptor):
            jax_module.apply_rewrites(jax_internals.clone(module), edits)


def same_digest(pair: corpus.Pair, rewriting) -> bool:
    digests = [
        corpus.identity(side(), rewriting=rewriting).digest for side in (pair.left, pair.right)
    ]
    return digests[0] == digests[1]


def caught(rewriting) -> list[str]:
    """The must-differ pairs with fragments that a broken rule would share."""
    pairs = [p for p in corpus.MUST_DIFFER if "plain" in p.name or "live use" in p.name]
    return [p.name for p in pairs if same_digest(p, rewriting)]


def all_dead(live: Liveness) -> Liveness:
    """The mistake: every value counts as dead."""
    return dataclasses.replace(live, value_live=np.zeros_like(live.value_live))


def test_a_broken_fragment_rule_is_caught(unconfirmed):
    def find(d, live) -> Iterator[Rewrite]:
        return unread_fragment_offset.find(d, all_dead(live))

    broken = dataclasses.replace(unread_fragment_offset.RULE, find=find)
    assert not caught(rules.REWRITES)
    assert any("dense static" in name for name in caught((broken,)))


def test_a_broken_constant_rule_is_caught(unconfirmed):
    def find(d, live) -> Iterator[Rewrite]:
        return dead_constant_start.find(d, all_dead(live))

    broken = dataclasses.replace(dead_constant_start.RULE, find=find)
    assert any("dense dynamic" in name for name in caught((broken,)))


def test_liveness_that_forgets_outputs_is_caught(unconfirmed):
    """The fragment is an unread operand and an output (H5)."""

    def find(d, live) -> Iterator[Rewrite]:
        region = d.structure.first_region[d.function_node[d.entry]]
        forgetful = live.value_live.copy()
        forgetful[d.operands_of(int(d.structure.terminator[region]))] = False
        return unread_fragment_offset.find(d, dataclasses.replace(live, value_live=forgetful))

    broken = dataclasses.replace(unread_fragment_offset.RULE, find=find)
    assert any("output" in name for name in caught((broken,)))


def test_a_kernel_rule_that_ignores_aliases_is_caught(monkeypatch):
    from coldstart.client import mosaic

    pair = next(p for p in corpus.MUST_DIFFER if p.name == "kernel aliased")
    assert not same_digest(pair, rules.REWRITES)
    monkeypatch.setattr(mosaic, "_aliased", lambda attribute: set())
    assert same_digest(pair, rules.REWRITES)


def test_a_kernel_rule_that_skips_index_maps_is_caught(monkeypatch):
    from coldstart.client import mosaic

    pair = next(p for p in corpus.MUST_DIFFER if p.name == "index map only")
    assert not same_digest(pair, rules.REWRITES)
    uses = mosaic._uses
    monkeypatch.setattr(mosaic, "_uses", lambda k, maps, types, read: uses(k, (), types, read))
    assert same_digest(pair, rules.REWRITES)


def test_a_kernel_rule_that_skips_semaphores_is_caught(monkeypatch):
    from coldstart.client import mosaic

    pair = next(p for p in corpus.MUST_DIFFER if p.name == "kernel keep-alive")
    assert not same_digest(pair, rules.REWRITES)

    def uses(kernel, maps, types, read):
        for k in range(len(types)):
            if kernel.arguments[kernel.grid + k][1]:
                read[k] = "used"

    monkeypatch.setattr(mosaic, "_uses", uses)
    assert same_digest(pair, rules.REWRITES)


@pytest.mark.parametrize(
    ("rule", "needle"),
    [
        ("locations", "kernel line tpu"),
        ("module-name", "function names"),
        ("symbol-names", "names and order of private functions"),
        ("symbol-order", "order of private functions"),
        ("result-info", "output names"),
        ("kernel-names", "kernel name tpu"),
        ("mesh-axes", "mesh axes matmul u v"),
        ("one-device", "one device elementwise named"),
        ("unread-fragment-offset", "sparse static plain"),
        ("dead-constant-start", "sparse dynamic plain"),
    ],
)
def test_a_rule_that_is_off_does_nothing(rule: str, needle: str):
    """And each rule is needed: without it its pair has two keys."""
    pair = next(p for p in corpus.MUST_SAME if p.name == needle)
    digests = {corpus.identity(side(), rules_off=[rule]).digest for side in (pair.left, pair.right)}
    assert len(digests) == 2


def test_every_rule_is_listed_once_with_its_reason_and_proof():
    names = [rule.name for rule in rules.RULES]
    assert len(set(names)) == len(names) == 10
    for rule in rules.RULES:
        assert rule.version >= 1 and rule.reason and rule.proof
        assert rule.changes_module == (rule in rules.REWRITES)
    assert rules.in_force(["mesh-axes"]).count("@") == 9


def test_reasons_name_the_reader_that_does_not_read():
    found = corpus.identity(
        fp.lowered("plain", fp.static_cut(2), fp.sparse, interpret=False).compiler_ir()
    )
    assert "custom_call never reads operand 0" in found.canonical.reasons[0]
    described = jax_module.describe(fp.lowered("plain", fp.static_cut(2), fp.sparse).compiler_ir())
    reasons = canonicalize(described).reasons
    assert "loop carries it" in reasons[0]
