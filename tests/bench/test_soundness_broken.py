"""Each rule broken on purpose, by a mistake that one could make: the bench finds pairs that share and must not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from coldstart.bench.soundness_judge import Judge, Line, Question
from coldstart.client import jax_internals, kernel_names, mesh_names, normal_form, symbol_names
from coldstart.client.confirm import Confirmation
from coldstart.client.jax_internals import ir
from coldstart.identity import rules
from coldstart.identity.rewrite import Rewrite, Rule
from coldstart.identity.rules import dead_constant_start, unread_fragment_offset

MOST = 400  # pairs that a broken rule may take to be found


def first_wrong(*kinds: str, rewriting: Sequence[Rule] = rules.REWRITES, seed: int = 1) -> Line:
    """The first wrong pair of these kinds. Fails where there is none."""
    judge = Judge(Question(seed, kinds), rewriting=rewriting)
    for number in range(MOST):
        line = judge.pair(number)
        assert not line["failed"], line
        if line["wrong"]:
            return line
    pytest.fail(f"the bench doesn't notice: {MOST} pairs of {', '.join(kinds)}")


def unbroken(line: Line, *kinds: str) -> Line:
    """The same pair under the real rules."""
    return Judge(Question(1, kinds)).pair(line["pair"])


def all_dead(rule: Rule) -> Rule:
    """The mistake: every value counts as dead."""
    find = rule.find
    assert find is not None

    def careless(d: Any, live: Any) -> Iterator[Rewrite]:
        return find(d, dataclasses.replace(live, value_live=np.zeros_like(live.value_live)))

    return dataclasses.replace(rule, find=careless)


@pytest.mark.parametrize(
    "rule", [unread_fragment_offset.RULE, dead_constant_start.RULE], ids=["slice", "start"]
)
def test_liveness_that_takes_everything_for_dead(rule: Rule, monkeypatch: pytest.MonkeyPatch):
    # With the second opinion in force no such edit is made: nothing is wrong, however broken the rule is.
    judge = Judge(Question(1, ("read offset",)), rewriting=(all_dead(rule),))
    assert not any(judge.pair(number)["wrong"] for number in range(8))
    monkeypatch.setattr(Confirmation, "dead", lambda self, op: None)
    line = first_wrong("read offset", rewriting=(all_dead(rule),))
    assert not unbroken(line, "read offset")["wrong"]


def strips_an_attribute_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = normal_form.strip_locations

    def strip(operation: Any) -> None:
        real(operation)

        def visit(op: Any) -> Any:
            if op.name == "stablehlo.reverse":
                op.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([0])
            return ir.WalkResult.ADVANCE

        operation.walk(visit, ir.WalkOrder.PRE_ORDER)

    monkeypatch.setattr(normal_form, "strip_locations", strip)


def takes_every_symbol_for_the_modules_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = normal_form.normal_form

    def normal(clone: Any, **options: Any) -> Any:
        context = clone.context
        data, notes = real(clone, **options)
        with context:
            text = str(ir.Module.parse(data))
        return re.sub(r"@[\w$.]+", "@module", text).encode(), notes

    monkeypatch.setattr(normal_form, "normal_form", normal)


def gives_two_functions_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = symbol_names._rename

    def rename(sequence: Any, functions: Any, free: Any, sites: Any) -> int:
        count = real(sequence, functions, free, sites)
        by_type: dict[str, Any] = {}
        for name in sequence:
            for op in sites[name]:
                signature = str(functions[name].attributes["function_type"])
                op.attributes["callee"] = by_type.setdefault(signature, op.attributes["callee"])
        return count

    monkeypatch.setattr(symbol_names, "_rename", rename)


def takes_calls_for_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    real = symbol_names.normalise

    def normalise(survey: Any, **options: Any) -> list[str]:
        notes = real(survey, **options)
        types = {
            str(ir.StringAttr(op.attributes["sym_name"]).value): str(op.attributes["function_type"])
            for op in survey.top
            if op.name == "func.func"
        }
        alike: dict[tuple[str, str], list[Any]] = {}
        for caller, _, op in survey.calls:
            callee = str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            alike.setdefault((caller, types[callee]), []).append(op)
        for ops in alike.values():
            callees = sorted((op.attributes["callee"] for op in ops), key=str)
            for op, callee in zip(ops, callees, strict=True):
                op.attributes["callee"] = callee
        return notes

    monkeypatch.setattr(symbol_names, "normalise", normalise)


def drops_every_attribute_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    class Everything(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            return True

    monkeypatch.setattr(normal_form, "_FOR_PEOPLE", Everything({"jax.result_info"}))


def drops_the_kernels_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_names, "_normal_body", lambda body, locations, names: "")


def numbers_axes_anew_in_each_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mesh_names._substitute

    def substitute(text: str, names: dict[str, str]) -> Any:
        own = dict.fromkeys(q for q in mesh_names._QUOTED.findall(text) if q in names)
        return real(text, {axis: f"{mesh_names._PREFIX}{k}" for k, axis in enumerate(own)})

    monkeypatch.setattr(mesh_names, "_substitute", substitute)


def takes_any_mesh_for_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    real = normal_form.normal_form
    monkeypatch.setattr(mesh_names, "meshes_of_one", lambda top: frozenset(mesh_names._meshes(top)))
    monkeypatch.setattr(
        normal_form,
        "normal_form",
        lambda clone, one_device, rules_off: real(clone, one_device=True, rules_off=rules_off),
    )


BROKEN: list[tuple[str, Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = [
    ("locations", strips_an_attribute_too, ("dimension",)),
    ("module-name", takes_every_symbol_for_the_modules_name, ("callee", "step order")),
    ("symbol-names", gives_two_functions_one_name, ("callee", "step order")),
    ("symbol-order", takes_calls_for_a_set, ("step order",)),
    ("result-info", drops_every_attribute_of_arguments, ("donation",)),
    ("result-info", drops_every_attribute_of_arguments, ("spread",)),
    ("kernel-names", drops_the_kernels_body, ("kernel body",)),
    ("mesh-axes", numbers_axes_anew_in_each_attribute, ("spread", "constraint")),
    ("one-device", takes_any_mesh_for_one_device, ("spread",)),
]


@pytest.mark.parametrize(
    ("rule", "mistake", "kinds"), BROKEN, ids=[row[1].__name__ for row in BROKEN]
)
def test_a_broken_rule_is_found(
    rule: str,
    mistake: Callable[[pytest.MonkeyPatch], None],
    kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    with monkeypatch.context() as broken:
        mistake(broken)
        line = first_wrong(*kinds)
        assert line["shared"]
    # The pair is a fair one: under the real rules it has two keys.
    again = unbroken(line, *kinds)
    assert not again["shared"] and not again["wrong"]


def test_every_rule_is_broken_here():
    broken = {rule for rule, _, _ in BROKEN} | {rule.name for rule in rules.REWRITES}
    assert broken == {rule.name for rule in rules.RULES}


def test_the_judge_refuses_to_work_under_a_cache(monkeypatch: pytest.MonkeyPatch):
    from coldstart.errors import ColdstartError

    on = dataclasses.replace(jax_internals.stock_cache(), directory="/cache")
    monkeypatch.setattr(jax_internals, "stock_cache", lambda: on)
    with pytest.raises(ColdstartError, match="a cache is on"):
        Judge(Question(1))
