"""Which calls may stream: rules over shapes and types, decided while tracing.

What isn't admitted takes the base path silently. No rule bounds the size: whether it fits is the compiler's to say, and
its refusal is raised, not hidden.
"""

from __future__ import annotations

import dataclasses

TOKEN_MULTIPLE = 16
BLOCK = 512
"""Columns that share an activation scale; also the width of one step through a matmul."""

_FP8 = "float8_e4m3fn"


@dataclasses.dataclass(frozen=True)
class Request:
    """A call, as far as admission looks at it."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    hidden_dtype: str = "bfloat16"
    w1_dtype: str = _FP8
    w2_dtype: str = _FP8
    per_channel_scales: bool = True
    """s1 [experts, 1, 1, 2 * intermediate] and s2 [experts, 1, 1, hidden], both fp32."""
    biased: bool = False
    activation: str = "silu"
    weight_dtype: str | None = None
    """The type in which the caller wants the weights multiplied, if not as they are."""

    def refusal(self, threshold: int) -> str | None:
        """Why this call takes the base path; None if it streams."""
        rules = {
            "streaming is off": threshold > 0,
            "an empty operand": min(self.tokens, self.hidden, self.intermediate, self.experts) > 0,
            "more tokens than the threshold": self.tokens <= threshold,
            f"tokens are no multiple of {TOKEN_MULTIPLE}": self.tokens % TOKEN_MULTIPLE == 0,
            f"hidden is no multiple of {BLOCK}": self.hidden % BLOCK == 0,
            f"intermediate is no multiple of {BLOCK}": self.intermediate % BLOCK == 0,
            "hidden is not bf16": self.hidden_dtype == "bfloat16",
            "weights are not FP8": (self.w1_dtype, self.w2_dtype) == (_FP8, _FP8),
            "scales are not fp32 per output channel": self.per_channel_scales,
            "there are biases": not self.biased,
            "the activation is not SiLU": self.activation == "silu",
            "another weight type is asked for": self.weight_dtype in (None, _FP8),
        }
        return next((reason for reason, met in rules.items() if not met), None)
