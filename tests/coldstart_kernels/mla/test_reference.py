"""The reference against NumPy loops, and the words of refusal."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coldstart_kernels import mla_attention

LATENT, WIDTH, SCALE = 16, 24, 0.2


def operands(tokens: int, own: int, heads: int, sequences: int, positions: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [
        rng.standard_normal((tokens, own, WIDTH)).astype(np.float32),
        rng.standard_normal((tokens, heads, WIDTH)).astype(np.float32),
        rng.standard_normal((sequences, positions, WIDTH)).astype(np.float32),
        rng.integers(0, positions + 1, tokens).astype(np.int32),
    ]


def by_loops(
    q: np.ndarray, cache: np.ndarray, limits: np.ndarray, indices: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """One token, one head, one key list at a time, in double precision."""
    tokens, heads, _ = q.shape
    out = np.zeros((tokens, heads, LATENT))
    lse = np.full((tokens, heads), float(np.finfo(np.float32).min))
    for t in range(tokens):
        rows = cache[t // (tokens // cache.shape[0])].astype(np.float64)
        listed = range(limits[t]) if indices is None else indices[t]
        chosen = [int(p) for p in listed if 0 <= p < limits[t]]
        if not chosen:
            continue
        for h in range(heads):
            scores = rows[chosen] @ q[t, h].astype(np.float64) * SCALE
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ rows[chosen][:, :LATENT] / weights.sum()
            lse[t, h] = scores.max() + np.log(weights.sum())
    return out, lse


@pytest.mark.parametrize(
    "shape",
    [
        (6, 2, 8, 2, 11),
        pytest.param((5, 1, 4, 1, 7), marks=pytest.mark.long),
        pytest.param((3, 4, 4, 3, 1), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("branch", ["dense", "sparse"])
def test_reference_equals_loops(branch: str, shape: tuple[int, int, int, int, int]) -> None:
    fragment, replicated, cache, limits = operands(*shape)
    limits[0] = 0
    indices = None
    if branch == "sparse":
        indices = np.random.default_rng(4).integers(-1, shape[4], (shape[0], 6)).astype(np.int32)
    attend = functools.partial(
        mla_attention, branch=branch, latent_width=LATENT, scale=SCALE, implementation="reference"
    )
    arguments = [fragment, replicated, cache, limits, *([] if indices is None else [indices])]
    out, lse = jax.jit(attend)(*arguments)
    q = fragment if branch == "dense" else replicated
    wanted_out, wanted_lse = by_loops(q, cache, limits, indices)
    # fp32 sums of 24 products against double precision.
    np.testing.assert_allclose(out, wanted_out, atol=1e-5)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5)


def test_disjoint_pieces_merge_by_their_log_sum_exp() -> None:
    fragment, replicated, cache, limits = map(jnp.asarray, operands(4, 2, 8, 1, 12))
    limits = jnp.full_like(limits, 12)
    options = {
        "branch": "sparse",
        "latent_width": LATENT,
        "scale": SCALE,
        "implementation": "reference",
    }
    positions = np.arange(12, dtype=np.int32)
    whole = np.broadcast_to(positions, (4, 12))
    pieces = [np.where(whole % 3 == r, whole, -1) for r in range(3)]
    pieces.append(np.full((4, 12), -1, np.int32))  # a rank that owns no key counts for nothing

    @jax.jit
    def attend(indices: np.ndarray) -> tuple[jax.Array, jax.Array]:
        return mla_attention(fragment, replicated, cache, limits, jnp.asarray(indices), **options)

    parts = [attend(piece) for piece in pieces]
    lse = np.stack([p[1] for p in parts])
    weights = np.exp(lse - lse.max(0))
    weights /= weights.sum(0)
    merged = sum(w[..., None] * np.asarray(p[0]) for w, p in zip(weights, parts, strict=True))
    np.testing.assert_allclose(merged, attend(whole)[0], atol=1e-5)


def broken(**changes: object) -> tuple[list[object], dict[str, object]]:
    names = ["q_fragment", "q_replicated", "cache", "limits"]
    arguments = dict(zip(names, map(jnp.asarray, operands(6, 2, 8, 2, 11)), strict=True))
    options: dict[str, object] = {"branch": "dense", "latent_width": LATENT, "scale": SCALE}
    indices = changes.pop("indices", None)
    arguments.update({k: v for k, v in changes.items() if k in names})
    options.update({k: v for k, v in changes.items() if k not in names})
    return [*arguments.values(), indices], options


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"branch": "both"}, "branch 'both'"),
        ({"implementation": "cuda"}, "implementation 'cuda'"),
        ({"latent_width": WIDTH + 1}, "latent_width 25"),
        ({"limits": jnp.zeros(5, jnp.int32)}, r"differ in tokens.*limits \(5,\)"),
        ({"limits": jnp.zeros(6, jnp.float32)}, "int32, got float32"),
        ({"cache": jnp.zeros((2, 11, 23))}, r"differ in width.*cache \(2, 11, 23\)"),
        ({"cache": jnp.zeros((4, 11, WIDTH))}, r"don't divide the tokens.*cache \(4, 11, 24\)"),
        ({"cache": jnp.zeros((2, 0, WIDTH))}, "empty operand"),
        ({"cache": jnp.zeros((2, 11, WIDTH), jnp.bfloat16)}, "one type"),
        ({"q_replicated": jnp.zeros((6, 7, WIDTH))}, r"own heads.*\(6, 7, 24\)"),
        ({"q_replicated": jnp.zeros((6, 8))}, "three dimensions"),
        ({"indices": jnp.zeros((6, 3), jnp.int32)}, "takes no indices"),
        ({"branch": "sparse"}, "needs indices"),
        ({"branch": "sparse", "indices": jnp.zeros((6, 3))}, "int32, got float32"),
        ({"branch": "sparse", "indices": jnp.zeros((6, 0), jnp.int32)}, "empty operand"),
    ],
)
def test_refusals_print_the_shapes(changes: dict[str, object], words: str) -> None:
    arguments, options = broken(**changes)
    with pytest.raises(ValueError, match=words):
        mla_attention(*arguments, **options)
