"""Liveness by MLIR text: what is dead, what is not, and why the other answer would be wrong."""

from __future__ import annotations

import identity_corpus as corpus
import pytest

from coldstart.client import jax_module
from coldstart.identity import liveness
from coldstart.identity.liveness import analyse

CALL = """
func.func private @pick(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.sine %a : tensor<4xf32>
  return %0, %b : tensor<4xf32>, tensor<4xf32>
}
"""
EFFECT = """
func.func private @noisy(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  "stablehlo.custom_call"(%b) <{call_target_name = "print", has_side_effect = true}> : (tensor<4xf32>) -> ()
  return %a : tensor<4xf32>
}
"""
T = "tensor<4xf32>"
LOOP = """
%z = stablehlo.constant dense<0> : tensor<i32>
%r:3 = stablehlo.while(%i = %z, %x = {x}, %y = {y}) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
 cond {{
  %n = stablehlo.constant dense<3> : tensor<i32>
  %c = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}} do {{
  %one = stablehlo.constant dense<1> : tensor<i32>
  %j = stablehlo.add %i, %one : tensor<i32>
  {body}
}}
"""
BRANCH = """
%k = stablehlo.constant dense<1> : tensor<i32>
%r:2 = "stablehlo.case"(%k) ({{
  {first}
  stablehlo.return %p, %q : tensor<4xf32>, tensor<4xf32>
}}, {{
  stablehlo.return %q, %p : tensor<4xf32>, tensor<4xf32>
}}) : (tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>)
"""
PRINT = '"stablehlo.custom_call"(%q) <{call_target_name = "print", has_side_effect = true}> : (tensor<4xf32>) -> ()'


def dead_slices(body: str, result: str, functions: str = "") -> str:
    """Which of the slices %p and %q of the program are dead, as "p", "q", "pq" or ""."""
    module = corpus.parse(
        f"""module @m {{
          func.func public @main(%arg0: tensor<8xf32>) -> {T} {{
            %p = stablehlo.slice %arg0 [1:5] : (tensor<8xf32>) -> {T}
            %q = stablehlo.slice %arg0 [2:6] : (tensor<8xf32>) -> {T}
            {body}
            return {result} : {T}
          }}
          {functions}
        }}"""
    )
    d = jax_module.describe(module)
    live = analyse(d)
    slices = [n for n in range(d.nodes) if d.op(n) == "stablehlo.slice"][:2]
    return "".join(
        name for name, node in zip("pq", slices, strict=True) if live.dead(d.results_of(node))
    )


CASES = [
    ("used", "%s = stablehlo.add %p, %q : tensor<4xf32>", "%s", "", ""),
    ("one unused", "", "%p", "", "q"),
    ("chain that ends", "%s = stablehlo.sine %q : tensor<4xf32>", "%p", "", "q"),
    (
        "call, first result",
        f"%c:2 = call @pick(%p, %q) : ({T}, {T}) -> ({T}, {T})",
        "%c#0",
        CALL,
        "q",
    ),
    (
        "call, second result",
        f"%c:2 = call @pick(%p, %q) : ({T}, {T}) -> ({T}, {T})",
        "%c#1",
        CALL,
        "p",
    ),
    (
        "called dead and live",
        f"%c:2 = call @pick(%p, %q) : ({T}, {T}) -> ({T}, {T})\n"
        f"%e:2 = call @pick(%q, %p) : ({T}, {T}) -> ({T}, {T})",
        "%c#0",
        CALL,
        "q",
    ),
    ("effect in a function", f"%c = call @noisy(%p, %q) : ({T}, {T}) -> {T}", "%p", EFFECT, ""),
    ("effect, result unused", f"%c = call @noisy(%p, %q) : ({T}, {T}) -> {T}", "%p", EFFECT, ""),
    (
        "carried for itself",
        LOOP.format(x="%p", y="%q", body=f"stablehlo.return %j, %x, %y : tensor<i32>, {T}, {T}"),
        "%r#1",
        "",
        "q",
    ),
    (
        "carried values that trade places",
        LOOP.format(x="%p", y="%q", body=f"stablehlo.return %j, %y, %x : tensor<i32>, {T}, {T}"),
        "%r#1",
        "",
        "",
    ),
    (
        "carried and printed",
        LOOP.format(
            x="%p",
            y="%q",
            body=PRINT.replace("%q", "%y")
            + f"\nstablehlo.return %j, %x, %y : tensor<i32>, {T}, {T}",
        ),
        "%r#1",
        "",
        "",
    ),
    ("branch", BRANCH.format(first=""), "%r#0", "", ""),
    ("branch unused", BRANCH.format(first=""), "%arg1", "", "pq"),
    ("branch unused with an effect", BRANCH.format(first=PRINT), "%p", "", ""),
    (
        "unknown op",
        f'%u = "stablehlo.custom_call"(%q) <{{call_target_name = "what"}}> : ({T}) -> {T}',
        "%p",
        "",
        "",
    ),
    (
        "dead collective",
        f'%u = "stablehlo.collective_permute"(%q) <{{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}}>'
        f" : ({T}) -> {T}",
        "%p",
        "",
        "",
    ),
    (
        "stateful random numbers",
        "%lo = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%hi = stablehlo.reshape %m : (tensor<1xf32>) -> tensor<f32>\n"
        "%sh = stablehlo.constant dense<4> : tensor<1xi64>\n"
        f"%u = stablehlo.rng %lo, %hi, %sh, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> {T}",
        "%p",
        "",
        "",
    ),
    (
        "captured in a reduction",
        "%i = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%u = stablehlo.reduce(%q init: %i) applies stablehlo.add across dimensions = [0] :"
        " (tensor<4xf32>, tensor<f32>) -> tensor<f32>\n"
        f"%b = stablehlo.broadcast_in_dim %u, dims = [] : (tensor<f32>) -> {T}",
        "%b",
        "",
        "p",
    ),
]


@pytest.mark.parametrize(
    ("name", "body", "result", "functions", "dead"), CASES, ids=[c[0] for c in CASES]
)
def test_which_fragments_are_dead(name, body, result, functions, dead):
    if "%arg1" in result:
        body += f"\n%arg1 = stablehlo.slice %arg0 [0:4] : (tensor<8xf32>) -> {T}"
    if "%m" in body:
        body = "%m = stablehlo.slice %q [0:1] : (tensor<4xf32>) -> tensor<1xf32>\n" + body
    assert dead_slices(body, result, functions) == dead


def test_too_many_demands_are_joined(monkeypatch):
    """Coarser, never wrong: with one bit per function the call needs both arguments."""
    body = f"%c:2 = call @pick(%p, %q) : ({T}, {T}) -> ({T}, {T})"
    assert dead_slices(body, "%c#0", CALL) == "q"
    monkeypatch.setattr(liveness, "MAX_RESULT_BITS", 1)
    assert dead_slices(body, "%c#0", CALL) == ""


def test_the_budget_of_steps_joins_too(monkeypatch):
    body = f"%c:2 = call @pick(%p, %q) : ({T}, {T}) -> ({T}, {T})"
    propagate = liveness._Analysis._propagate

    def hasty(self, function, node, roots, returned, budget):
        return propagate(self, function, node, roots, returned, 0 if budget is not None else None)

    monkeypatch.setattr(liveness._Analysis, "_propagate", hasty)
    assert dead_slices(body, "%c#0", CALL) == ""
