"""Head counts and widths of a gated delta net, as one value."""

from __future__ import annotations

import dataclasses

CONV_TAPS = 4
HISTORY = CONV_TAPS - 1
"""Inputs before a token that its convolution reads: what the conv state holds."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Heads of one device's share; channels are the columns [Q | K | V] in this order."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        """Value heads that share a key head."""
        return self.value_heads // self.key_heads

    @property
    def keys(self) -> int:
        """Channels of Q, and of K."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)
