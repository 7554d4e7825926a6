"""What the numbers of a config come to: parameters, bytes of a checkpoint, bytes per device. Pure, no JAX.

One table, `matrices`, lists each kind of weight with its shape, its type and how a deployment splits it; everything
else sums over it. A gigabyte here is 1e9 bytes.
"""

from __future__ import annotations

import dataclasses
import math

from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.layout import Layout

HBM_BYTES = int(94.75 * 2**30)
"""What the compiler gives one TPU7x device."""

_BYTES = {"fp8": 1, "bf16": 2, "fp32": 4}
SCALE_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Weight:
    """A kind of weight: one shape, in so many copies."""

    group: str
    """What it is reported under."""
    name: str
    shape: tuple[int, ...]
    count: int
    """How many there are in the model: layers, times experts where it has them."""
    type: str
    """Its type in the FP8 checkpoint."""
    split: str
    """"tp", "experts", "queries" or "whole": what a deployment does with it."""

    @property
    def parameters(self) -> int:
        """All copies."""
        return math.prod(self.shape) * self.count

    @property
    def bytes(self) -> int:
        """All copies, without scales."""
        return self.parameters * _BYTES[self.type]

    def scales(self, block: int) -> int:
        """Block scales of all copies."""
        if self.type != "fp8":
            return 0
        return math.prod(-(-size // block) for size in self.shape) * self.count


def matrices(config: GlmConfig, *, mtp: bool = False) -> list[Weight]:
    """Every weight of the model; with `mtp` those of the layer that predicts the token after next too."""
    c = config
    extra = c.mtp_layers if mtp else 0
    layers = c.layers + extra
    full = len(c.full_layers) + extra
    routed = c.layers - c.dense_layers + extra
    h, e = c.hidden, c.expert_mlp

    def of(
        group: str, split: str, count: int, type: str, **shapes: tuple[int, ...]
    ) -> list[Weight]:
        return [Weight(group, name, shape, count, type, split) for name, shape in shapes.items()]

    return [
        *of("embeddings", "tp", 1, "bf16", embedding=(c.vocabulary, h), head=(h, c.vocabulary)),
        *of("down projections", "whole", layers, "fp8", q_a=(h, c.q_rank), kv_a=(h, c.width)),
        *of("attention", "queries", layers, "fp8", q_b=(c.q_rank, c.heads * c.head)),
        *of("attention", "tp", layers, "fp8", kv_b=(c.latent, c.heads * (c.nope + c.value))),
        *of("attention", "tp", layers, "fp8", o_proj=(c.heads * c.value, h)),
        *of("indexer", "whole", full, "fp8", index_q=(c.q_rank, c.index_heads * c.index_width)),
        *of("indexer", "whole", full, "fp8", index_k=(h, c.index_width)),
        *of("indexer", "whole", full, "bf16", index_weight=(h, c.index_heads)),
        *of("indexer", "whole", full, "bf16", index_norm=(2, c.index_width)),
        *of("dense", "tp", c.dense_layers, "fp8", gate=(h, c.mlp), up=(h, c.mlp), down=(c.mlp, h)),
        *of("router", "whole", routed, "bf16", router=(h, c.experts)),
        *of("router", "whole", routed, "fp32", correction=(c.experts,)),
        *of("shared expert", "tp", routed, "fp8", gate=(h, e), up=(h, e), down=(e, h)),
        *of("experts", "experts", routed * c.experts, "fp8", gate=(h, e), up=(h, e), down=(e, h)),
        *of("norms", "whole", layers, "bf16", input=(h,), output=(h,), q=(c.q_rank,)),
        *of("norms", "whole", layers, "bf16", kv=(c.latent,)),
        *of("norms", "whole", 1, "bf16", last=(h,)),
        # The extra layer joins the last hidden state with the next token's embedding.
        *of("mtp", "whole", extra, "bf16", eh_proj=(2 * h, h), enorm=(h,), hnorm=(h,), last=(h,)),
    ]


def parameters(config: GlmConfig, *, mtp: bool = False) -> int:
    """All parameters; scales are none."""
    return sum(weight.parameters for weight in matrices(config, mtp=mtp))


def active_parameters(config: GlmConfig) -> int:
    """What one token meets: its chosen experts, and a row of the embedding."""
    total = 0
    for weight in matrices(config):
        if weight.group == "experts":
            total += weight.parameters // config.experts * config.experts_per_token
        elif weight.name != "embedding":
            total += weight.parameters
    return total


def checkpoint_bytes(config: GlmConfig, *, mtp: bool = True) -> tuple[int, int]:
    """Bytes of the FP8 checkpoint: weights, and their scales."""
    weights = matrices(config, mtp=mtp)
    scales = sum(weight.scales(config.block) for weight in weights)
    return sum(weight.bytes for weight in weights), scales * SCALE_BYTES


# --- per device --------------------------------------------------------------------------------------


def o_proj_bytes(config: GlmConfig, layout: Layout, *, replicated: bool) -> int:
    """o_proj of one device in FP8: all rows of its head group, or its own share. Without scales."""
    whole = config.heads * config.value * config.hidden * config.layers
    return whole // layout.model if replicated else whole // layout.tp


def o_proj_increase(config: GlmConfig, layout: Layout) -> int:
    """What replicating o_proj within a head group adds to one device."""
    merged = o_proj_bytes(config, layout, replicated=True)
    return merged - o_proj_bytes(config, layout, replicated=False)


def w_uv_increase(config: GlmConfig, layout: Layout) -> int:
    """What the merged exchange adds beside o_proj: W_UV of all heads of the group, in bf16."""
    whole = config.heads * config.latent * config.value * config.layers * 2
    return whole // layout.model - whole // layout.tp


def query_increase(config: GlmConfig, layout: Layout) -> int:
    """What query replication adds to one device: q_b in FP8 and W_UK in bf16 of all heads of its group."""
    q_b = config.q_rank * config.heads * config.head * config.layers
    w_uk = config.heads * config.nope * config.latent * config.layers * 2
    return sum(whole // layout.model - whole // layout.tp for whole in (q_b, w_uk))


def weight_bytes(config: GlmConfig, layout: Layout) -> dict[str, int]:
    """Weights of one device by group, everything split over all devices that can be (no replication)."""
    found: dict[str, int] = {}
    for weight in matrices(config):
        share = 1 if weight.split == "whole" else layout.tp
        found[weight.group] = found.get(weight.group, 0) + weight.bytes // share
    return found


def kv_bytes_per_token(config: GlmConfig) -> int:
    """Cached bytes of one token in all layers, over all devices of a group."""
    if not config.quantised:
        index = config.index_width * 4
        return config.row * 4 * config.layers + index * len(config.full_layers)
    return config.row * config.layers + config.index_row * len(config.full_layers)


def pool_tokens(config: GlmConfig, layout: Layout, pool_bytes: int) -> int:
    """Tokens that a pool of so many bytes on each device holds, in whole pages."""
    per_page = kv_bytes_per_token(config) * layout.page
    return pool_bytes // per_page * layout.page * layout.dcp
