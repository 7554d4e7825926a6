"""Shapes of the tiny MLA+MoE decoder: a plain description that every program's shapes follow from.

The layout is the one of large servers in small: multi-head latent attention with an indexer, routed experts with a
shared one, tensor, context and expert parallelism all over the same devices (TP = DCP = EP).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """A decoder. Sizes that are split over the devices must be multiples of their number."""

    name: str = "tiny-moe"
    vocabulary: int = 512
    hidden: int = 128
    layers: int = 4
    dense_layers: int = 1
    """Leading layers with a plain MLP instead of experts."""
    heads: int = 32
    q_rank: int = 64
    """Width of the compressed query that all heads, and the indexer, are made from."""
    latent: int = 128
    """Width of the compressed key and value: what is cached, and the attended value."""
    rope: int = 32
    nope: int = 32
    """Width of a head's query and key without position, before it is taken into the latent space."""
    value: int = 32
    index_heads: int = 4
    index_width: int = 32
    index_top: int = 32
    """Positions that a decode step attends to."""
    mlp: int = 256
    experts: int = 16
    experts_per_token: int = 2
    expert_mlp: int = 64
    routed_scale: float = 1.5
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    slots: int = 8
    """Sequences that the cache has room for."""
    positions: int = 256
    """Positions per sequence."""
    dtype: str = "float32"

    @property
    def width(self) -> int:
        """One row of keys: latent, then rope."""
        return self.latent + self.rope

    @property
    def cache_width(self) -> int:
        """One cached row: latent, rope, then the indexer's key."""
        return self.width + self.index_width

    @property
    def scale(self) -> float:
        """What scores are multiplied by before the softmax."""
        return float((self.nope + self.rope) ** -0.5)

    def check(self, devices: int) -> None:
        """Refuse a number of devices that the sizes can't be split over.

        Raises:
            ValueError: naming the sizes that don't divide.
        """
        split = {
            "vocabulary": self.vocabulary,
            "heads": self.heads,
            "mlp": self.mlp,
            "expert_mlp": self.expert_mlp,
            "experts": self.experts,
            "positions": self.positions,
        }
        uneven = {name: size for name, size in split.items() if size % devices}
        if devices < 1 or uneven:
            raise ValueError(f"{self.name} can't be split over {devices} devices: {uneven}")
        if self.rope % 2:
            raise ValueError(f"rope turns pairs, its width {self.rope} is odd")
        if not 0 < self.index_top <= self.positions:
            raise ValueError(f"index_top {self.index_top} is not within {self.positions} positions")


TINY = Config()
"""The model of the demo plan and the tests."""
