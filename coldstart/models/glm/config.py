"""Shapes of the GLM-5 family: plain numbers, no JAX, that parameters, caches and budgets follow from.

`GLM52_FP8` is the model as it is served; `GLM52_TINY` takes the same code path with a few small layers.
"""

from __future__ import annotations

import dataclasses

PRECISIONS = ("fp8", "float32")


@dataclasses.dataclass(frozen=True)
class GlmConfig:
    """A decoder of the family. The defaults are GLM-5.2's."""

    name: str = "glm5.2-fp8"
    vocabulary: int = 154_880
    hidden: int = 6144
    layers: int = 78
    """Decoder layers, without the one that predicts the token after next."""
    dense_layers: int = 3
    """Leading layers with a plain MLP instead of experts."""
    mtp_layers: int = 1
    """Layers that predict the token after next. They are in the checkpoint and not run here."""
    heads: int = 64
    q_rank: int = 2048
    """Width of the compressed query that all heads, and the indexer, are made from."""
    latent: int = 512
    """Width of the compressed key and value: what is cached, and the attended value."""
    nope: int = 192
    rope: int = 64
    value: int = 256
    mlp: int = 12_288
    experts: int = 256
    experts_per_token: int = 8
    expert_mlp: int = 2048
    """Intermediate width of a routed expert, and of the shared one."""
    routed_scale: float = 2.5
    index_heads: int = 32
    index_width: int = 128
    index_rope: int = 64
    """Leading dimensions of an index query or key that are turned by position."""
    index_top: int = 2048
    """Positions that a token attends to."""
    index_offset: int = 3
    """Leading layers with an indexer of their own; after them the last of each `index_period` has one."""
    index_period: int = 4
    norm_epsilon: float = 1e-5
    rope_theta: float = 8e6
    positions: int = 1_048_576
    """Longest sequence that the model was made for."""
    block: int = 128
    """FP8 weights have one fp32 scale per block of this size squared; activations one per so many columns."""
    lanes: int = 128
    """The parts of a cached row are padded to lines of so many bytes."""
    index_row: int = 256
    """Bytes of a cached index key in FP8: the key, one byte of scale, padding."""
    end_tokens: tuple[int, ...] = (154_820, 154_827, 154_829)
    precision: str = "fp8"
    """"fp8": FP8 weights and cache. "float32": all of it in fp32, to compare layouts with."""
    activations: str = "bfloat16"
    """The type between FP8 weights. CPUs don't multiply every shape in bf16, so the tiny model has float32."""

    round_o_proj_input: bool = False
    """Whether the input of o_proj is rounded to FP8 as that of other weights. Scales that follow the values aren't
    linear, so with it a merged exchange, which projects partial values, differs by FP8's own error."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is not one of {PRECISIONS}")
        if self.rope % 2 or self.index_rope % 2 or self.index_rope > self.index_width:
            raise ValueError(f"rope {self.rope} and index_rope {self.index_rope} turn pairs")

    @property
    def quantised(self) -> bool:
        """Whether weights and cache are FP8."""
        return self.precision == "fp8"

    @property
    def width(self) -> int:
        """One row of absorbed keys: latent, then rope."""
        return self.latent + self.rope

    @property
    def head(self) -> int:
        """Width of a head's query before it is taken into the latent space."""
        return self.nope + self.rope

    @property
    def row(self) -> int:
        """One cached row: latent, then rope padded."""
        return self.latent + -(-self.rope // self.lanes) * self.lanes

    @property
    def scale(self) -> float:
        """What scores are multiplied by before the softmax."""
        return float(self.head**-0.5)

    def has_indexer(self, layer: int) -> bool:
        """Whether a layer chooses positions ("full"), or reuses the choice of the nearest earlier one."""
        return layer < self.index_offset or (layer - self.index_offset + 1) % self.index_period == 0

    @property
    def full_layers(self) -> tuple[int, ...]:
        """The layers with an indexer of their own."""
        return tuple(layer for layer in range(self.layers) if self.has_indexer(layer))

    def has_experts(self, layer: int) -> bool:
        """Whether a layer routes to experts."""
        return layer >= self.dense_layers


GLM52_FP8 = GlmConfig()
"""GLM-5.2 as its official FP8 checkpoint is laid out."""

GLM52_TINY = GlmConfig(
    name="glm5.2-tiny",
    vocabulary=512,
    hidden=128,
    layers=6,
    dense_layers=1,
    heads=32,
    q_rank=64,
    latent=64,
    nope=16,
    rope=16,
    value=16,
    mlp=256,
    experts=32,
    experts_per_token=4,
    expert_mlp=128,
    index_heads=16,
    index_width=32,
    index_rope=16,
    index_top=16,
    index_offset=1,
    index_period=2,
    rope_theta=10_000.0,
    positions=512,
    block=8,
    lanes=16,
    index_row=48,
    end_tokens=(),
    activations="float32",
)
"""The same code path in small: full indexers in layers 0, 2, 4, experts in all but layer 0."""
