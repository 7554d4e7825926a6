"""The decoder against NumPy, and its compiles against the list of programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from coldstart.models import tiny_moe
from coldstart.models.config import TINY, Config
from coldstart.models.layers import init_params
from coldstart.models.programs import demo_programs
from coldstart.models.tiny_moe import TinyMoe

# The demo's config with two layers: one with a plain MLP, one with experts. Half the compile time, no less covered.
SHORT = dataclasses.replace(TINY, layers=2, index_top=8)
# fp32 through a few layers against double precision; logits are of order one.
TOLERANCE = 5e-4

Array = np.ndarray[Any, Any]


class NumpyDecoder:
    """The whole decoder on one host in double precision: no mesh, no splits, one token at a time."""

    def __init__(self, config: Config, params: dict[str, Any]) -> None:
        self.c = config
        self.p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        self.rows: list[list[tuple[Array, Array, Array]]] = [[] for _ in range(config.layers)]

    def norm(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt(np.mean(x**2) + self.c.norm_epsilon) * weight

    def rope(self, x: Array, position: int) -> Array:
        turned = x.copy()
        half = x.shape[-1] // 2
        for i in range(half):
            angle = position * self.c.rope_theta ** (-i / half)
            even, odd = x[..., 2 * i], x[..., 2 * i + 1]
            turned[..., 2 * i] = even * np.cos(angle) - odd * np.sin(angle)
            turned[..., 2 * i + 1] = even * np.sin(angle) + odd * np.cos(angle)
        return turned

    @staticmethod
    def silu(x: Array) -> Array:
        return x / (1 + np.exp(-x))

    def attention(self, x: Array, number: int, position: int, *, sparse: bool) -> Array:
        c, p = self.c, self.p["layers"][number]
        q_c = self.norm(x @ p["q_a"], p["q_norm"])
        q = (q_c @ p["q_b"]).reshape(c.heads, c.nope + c.rope)
        kv = x @ p["kv_a"]
        latent = self.norm(kv[: c.latent], p["kv_norm"])
        rows = self.rows[number]
        rows.append((latent, self.rope(kv[c.latent :], position), x @ p["index_k"]))
        chosen = list(range(len(rows)))
        if sparse and len(rows) > c.index_top:
            index_q = (q_c @ p["index_q"]).reshape(c.index_heads, c.index_width)
            weight = x @ p["index_weight"]
            scores = [weight @ np.maximum(index_q @ row[2], 0) for row in rows]
            chosen = sorted(chosen, key=lambda i: -scores[i])[: c.index_top]
        heads = []
        for h in range(c.heads):
            # Not absorbed: keys and values are unfolded from the latent, head by head.
            q_nope, q_rope = q[h, : c.nope], self.rope(q[h, c.nope :], position)
            scores = np.array(
                [q_nope @ (p["w_uk"][h] @ rows[i][0]) + q_rope @ rows[i][1] for i in chosen]
            )
            scores = scores / np.sqrt(c.nope + c.rope)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            heads.append(
                sum(w * (rows[i][0] @ p["w_uv"][h]) for w, i in zip(weights, chosen, strict=True))
            )
        return np.concatenate(heads) @ p["o_proj"]

    def feed_forward(self, x: Array, number: int) -> Array:
        c, p = self.c, self.p["layers"][number]
        out = (self.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]
        if number < c.dense_layers:
            return out
        scores = 1 / (1 + np.exp(-(x @ p["router"])))
        chosen = np.argsort(-(scores + p["router_bias"]))[: c.experts_per_token]
        for e in chosen:
            hidden = self.silu(x @ p["expert_gate"][e]) * (x @ p["expert_up"][e])
            out = out + scores[e] / scores[chosen].sum() * c.routed_scale * (
                hidden @ p["expert_down"][e]
            )
        return out

    def step(self, token: int, position: int, *, sparse: bool) -> Array:
        x = self.p["embedding"][token]
        for number, p in enumerate(self.p["layers"]):
            x = x + self.attention(
                self.norm(x, p["attention_norm"]), number, position, sparse=sparse
            )
            x = x + self.feed_forward(self.norm(x, p["mlp_norm"]), number)
        return self.norm(x, self.p["norm"]) @ self.p["head"]

    def generate(self, prompt: list[int], steps: int) -> Array:
        """Logits of each step, continuing with this decoder's own choices."""
        for position, token in enumerate(prompt):
            last = self.step(token, position, sparse=False)
        logits = [last]
        for position in range(len(prompt), len(prompt) + steps - 1):
            logits.append(self.step(int(logits[-1].argmax()), position, sparse=True))
        return np.stack(logits)


@pytest.fixture(scope="module")
def model() -> TinyMoe:
    return TinyMoe(SHORT, jax.devices()[:16])


@pytest.fixture(scope="module")
def params(model: TinyMoe) -> Any:
    return model.params(seed=1)


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.integers(0, SHORT.vocabulary, length).tolist() for length in lengths]


@pytest.mark.stacks
def test_generation_equals_numpy(model: TinyMoe, params: Any) -> None:
    # Short and long against the 8 positions that a decode step attends to, one filling its bucket.
    prompts = prompts_of(1, 16, 5)
    made = model.generate(params, prompts, steps=7)
    for number, prompt in enumerate(prompts):
        wanted = NumpyDecoder(SHORT, init_params(SHORT, seed=1)).generate(prompt, 7)
        np.testing.assert_allclose(made.logits[:, number], wanted, atol=TOLERANCE)
        assert made.tokens[number] == wanted.argmax(-1).tolist()


def test_decode_continues_what_prefill_would_have_said(model: TinyMoe, params: Any) -> None:
    """Below `index_top` positions sparse attention is dense: two programs, one answer."""
    (prompt,) = prompts_of(6)
    made = model.generate(params, [prompt], steps=2)
    longer = model.generate(params, [prompt + made.tokens[0][:1]], steps=1)
    np.testing.assert_allclose(made.logits[1], longer.logits[0], atol=TOLERANCE)


def test_sequences_do_not_see_each_other(model: TinyMoe, params: Any) -> None:
    first, second, other = prompts_of(5, 9, 12)
    pair = model.generate(params, [first, second], steps=3)
    changed = model.generate(params, [first, other], steps=3)
    assert pair.logits[:, 0].tobytes() == changed.logits[:, 0].tobytes()
    assert pair.logits[:, 1].tobytes() != changed.logits[:, 1].tobytes()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The text of every module that JAX hands to its compiler, cached or not."""
    from jax._src import compiler

    jax.clear_caches()
    seen: list[str] = []
    stock = compiler.compile_or_get_cached

    def watched(backend: Any, computation: Any, *rest: Any, **named: Any) -> Any:
        seen.append(computation.operation.get_asm(enable_debug_info=False))
        return stock(backend, computation, *rest, **named)

    monkeypatch.setattr(compiler, "compile_or_get_cached", watched)
    yield seen


@pytest.mark.stacks
def test_generation_compiles_the_listed_programs_and_nothing_else(compiles: list[str]) -> None:
    model = TinyMoe(SHORT, jax.devices()[:16])
    model.generate(model.params(), prompts_of(3, 20), steps=4)
    listed = {(p.name, *p.bucket.values()): p for p in demo_programs(16, SHORT)}
    wanted = [("tiny-moe.prefill", 16), ("tiny-moe.prefill", 32), ("tiny-moe.decode", 2)]
    lowered = [listed[key].lower(jax.devices()) for key in wanted]
    assert compiles == [one.compiler_ir().operation.get_asm() for one in lowered]
    # Other prompts and lengths in the same buckets: nothing more.
    compiles.clear()
    model.generate(model.params(seed=2), prompts_of(20, 7), steps=4)
    assert compiles == []


def test_demo_programs_are_named_apart_and_cover_every_bucket() -> None:
    programs = demo_programs(16)
    names = {(program.name, *program.bucket.items()) for program in programs}
    assert len(names) == len(programs) == 8
    assert {p.bucket["tokens"] for p in programs if "tokens" in p.bucket} == set(
        tiny_moe.PREFILL_TOKENS
    )
    with pytest.raises(ValueError, match="spans 16 devices, got 2"):
        programs[0].lower(jax.devices()[:2])


def test_parameters_come_from_the_seed_alone() -> None:
    once, again, other = (init_params(SHORT, seed) for seed in (1, 1, 2))
    leaves = [jax.tree.leaves(tree) for tree in (once, again, other)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(leaves[0], leaves[1], strict=True))
    assert any(a.tobytes() != b.tobytes() for a, b in zip(leaves[0], leaves[2], strict=True))


def test_what_does_not_fit_is_refused(model: TinyMoe, params: Any) -> None:
    with pytest.raises(ValueError, match="9 fits none of the buckets"):
        model.generate(params, prompts_of(*[1] * 9), steps=1)
    with pytest.raises(ValueError, match="129 fits none of the buckets"):
        model.generate(params, prompts_of(129), steps=1)
    with pytest.raises(ValueError, match="exceed 256 positions"):
        model.generate(params, prompts_of(120), steps=137)
    with pytest.raises(ValueError, match="can't be split over 3 devices"):
        TinyMoe(SHORT, jax.devices()[:3])
