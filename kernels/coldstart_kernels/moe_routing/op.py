"""Router scores to experts: which ones each token goes to, and with what weight.

Softmax scores renormalised over the chosen (Qwen), or sigmoid scores whose correction bias takes part in choosing
only (GLM). Chosen by a stable sort, or by repeated row maximum: the same ids either way.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device
from coldstart_kernels.moe_routing import kernel, reference
from coldstart_kernels.moe_routing.switches import ROUTER_TOPK
from coldstart_kernels.moe_routing.tuning import TuningKey, TuningParams, heuristic

_SCORING = ("softmax", "sigmoid")
_IMPLEMENTATIONS = ("reference", "pallas")


def moe_route(
    logits: jax.Array,  # [tokens, experts]
    *,
    chosen: int,
    scoring: str = "softmax",
    bias: jax.Array | None = None,  # [experts] fp32
    renormalise: bool = True,
    scale: float = 1.0,
    topk: str = "sort",
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> tuple[jax.Array, jax.Array]:
    """Choose experts.

    Args:
        logits: what the router's matmul gave, best in fp32; scores are computed in fp32 in any case.
        chosen: experts per token.
        scoring: "softmax" or "sigmoid".
        bias: added to the scores for choosing; weights come from the scores without it.
        renormalise: divide the chosen scores by their sum.
        scale: multiplies the weights at the end (`routed_scaling_factor`).
        topk: "sort" (the base path) or "rowmax" (the switch `MOE_ROUTER_TOPK`).
        implementation: of "rowmax" only: "reference", "pallas", or None to pick by the default backend.
        tuning: rows per block of the Pallas kernel; the heuristic by default.
        interpret: Pallas only: True (plain HLO, any backend), or `pltpu.InterpretParams`.
        device_kind: whose VMEM the heuristic plans for.

    Returns:
        Weights fp32 and ids int32, [tokens, chosen] each, best first. Equal keys: the lowest id first. Keys that
        are NaN or at most -3e38 tie behind all others. A row of NaN has NaN weights and distinct ids.

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    _check(logits, bias, chosen, scoring, topk)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    tokens, experts = logits.shape
    scores = reference.score(logits, scoring)
    if bias is None:
        bias = jnp.zeros(experts, jnp.float32)
    if topk == "sort":
        picked, ids = reference.choose_by_sort(scores, bias, chosen=chosen)
    elif implementation == "reference":
        picked, ids = reference.choose_by_row_maximum(scores, bias, chosen=chosen)
    else:
        key = TuningKey(tokens, experts, chosen, device_kind)
        params = heuristic(key) if tuning is None else tuning
        params.check(key)
        picked, ids = kernel.choose_by_row_maximum(
            scores, bias, chosen=chosen, params=params, interpret=interpret
        )
    return reference.weigh(picked, renormalise=renormalise, scale=scale), ids


def _check(logits: jax.Array, bias: jax.Array | None, chosen: int, scoring: str, topk: str) -> None:
    shapes = f"logits {logits.shape}, bias {None if bias is None else bias.shape}"
    if scoring not in _SCORING:
        raise ValueError(f"scoring {scoring!r} is not one of {_SCORING}")
    if topk not in ROUTER_TOPK:
        raise ValueError(f"topk {topk!r} is not one of {ROUTER_TOPK}")
    if logits.ndim != 2:
        raise ValueError(f"logits need [tokens, experts]: {shapes}")
    if 0 in logits.shape:
        raise ValueError(f"empty operand: {shapes}")
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(f"logits need a floating type, got {logits.dtype}")
    if not 1 <= chosen <= logits.shape[1]:
        raise ValueError(f"chosen {chosen} is not within the experts: {shapes}")
    if bias is not None:
        if bias.shape != logits.shape[1:]:
            raise ValueError(f"bias needs one value per expert: {shapes}")
        if bias.dtype != jnp.float32:
            raise ValueError(f"bias needs float32, got {bias.dtype}")
