"""Operands of routed experts in FP8, and what they come to in NumPy, one token and one expert at a time."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
BLOCK = 512


def operands(
    tokens: int,
    hidden: int,
    intermediate: int,
    experts: int,
    chosen: int,
    active: int | None = None,
) -> dict[str, np.ndarray]:
    """Tokens that choose among the first `active` experts of `experts`, all local from number 7 on."""
    rng = np.random.default_rng(13)
    among = experts if active is None else active
    choices = np.argsort(rng.random((tokens, among)), axis=1)[:, :chosen]
    # One token chooses each of the active ones in turn, so that none of them stays without.
    choices[:, 0] = np.arange(tokens) % among
    weights = rng.random((tokens, choices.shape[1])).astype(np.float32)
    few = min(
        experts, 4
    )  # numbers are slow to draw: experts beyond the fourth differ by their scales
    w1 = rng.standard_normal((few, hidden, 2 * intermediate), np.float32)
    w2 = rng.standard_normal((few, intermediate, hidden), np.float32)
    pick = np.arange(experts) % few
    s1 = rng.uniform(0.5, 1.5, (experts, 1, 1, 2 * intermediate)) / np.sqrt(hidden)
    s2 = rng.uniform(0.5, 1.5, (experts, 1, 1, hidden)) / np.sqrt(intermediate)
    return {
        "x": rng.standard_normal((tokens, hidden), np.float32).astype(BF16),
        "weights": weights,
        "ids": (choices + 7).astype(np.int32),
        "w1": w1.astype(FP8)[pick],
        "w2": w2.astype(FP8)[pick],
        "s1": s1.astype(np.float32),
        "s2": s2.astype(np.float32),
    }


def by_numpy(given: dict[str, np.ndarray], start: int = 7) -> np.ndarray:
    """In double precision, but for what is a rounding by definition.

    That is: activations to FP8 by blocks of 512, each block's product to bf16, the middle to bf16.
    """
    x, w1, w2 = (given[name].astype(np.float64) for name in ("x", "w1", "w2"))
    s1, s2 = given["s1"][:, 0, 0], given["s2"][:, 0, 0]
    out = np.zeros(x.shape)
    for token, row in enumerate(x):
        for expert, weight in zip(given["ids"][token], given["weights"][token], strict=True):
            if start <= expert < start + len(w1):
                own = expert - start
                gate, up = np.split(multiply(row, w1[own]) * s1[own], 2)
                middle = (gate / (1 + np.exp(-gate)) * up).astype(BF16)
                out[token] += weight * (multiply(middle, w2[own]) * s2[own])
    return out


def multiply(row: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A row in FP8, block by block with scales in bf16, times a weight; each block's product in bf16."""
    blocks = row.astype(np.float64).reshape(-1, BLOCK)
    scales = (np.abs(blocks).max(1) / 448).astype(BF16).astype(np.float64)[:, None]
    scaled = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    quantised = np.clip(scaled, -448, 448).astype(FP8).astype(np.float64)
    products = np.einsum("bk,bkn->bn", quantised, weight.reshape(-1, BLOCK, weight.shape[1]))
    return (products.astype(BF16).astype(np.float64) * scales).sum(0)


def relative_error(actual: np.ndarray, wanted: np.ndarray) -> float:
    """L2 norm of the difference by that of what was wanted."""
    wide = np.asarray(wanted, np.float64)
    return float(np.linalg.norm(np.asarray(actual, np.float64) - wide) / np.linalg.norm(wide))
