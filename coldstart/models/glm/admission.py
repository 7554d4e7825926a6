"""Whether a deployment can fit a device, said with numbers before anything is compiled.

An estimate: weights, replicated copies and the KV pool are exact, and what is left must hold activations, temporaries
and programs, whose need only a compile tells. What the runtime reserves for itself isn't in it.
"""

from __future__ import annotations

import dataclasses

from coldstart.models.glm import counts
from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.layout import Layout


class HbmExceeded(ValueError):
    """A deployment that can't fit; the message lists what it holds."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one device holds, in bytes, item by item."""

    items: dict[str, int]
    hbm_bytes: int

    @property
    def left(self) -> int:
        """For activations, temporaries and programs; negative where not even the items fit."""
        return self.hbm_bytes - sum(self.items.values())

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in self.items.items() if size)
        return f"of {self.hbm_bytes / 1e9:.2f} GB: {listed}; left {self.left / 1e9:.2f} GB"


def budget(
    config: GlmConfig, layout: Layout, pool_bytes: int, hbm_bytes: int = counts.HBM_BYTES
) -> Budget:
    """The items of one device. `pool_bytes` is its share of the KV pool."""
    items = {"weights": sum(counts.weight_bytes(config, layout).values())}
    if layout.replicate_q:
        items["replicated queries"] = counts.query_increase(config, layout)
    if layout.replicate_o_proj:
        items["replicated o_proj"] = counts.o_proj_increase(config, layout)
        items["replicated W_UV"] = counts.w_uv_increase(config, layout)
    items["KV pool"] = pool_bytes
    return Budget(items, hbm_bytes)


def admit(
    config: GlmConfig,
    layout: Layout,
    pool_bytes: int,
    needed_bytes: int,
    hbm_bytes: int = counts.HBM_BYTES,
) -> Budget:
    """The budget, if what it leaves holds `needed_bytes` of activations, temporaries and programs.

    Raises:
        HbmExceeded: it doesn't; the message has every item and, where o_proj is replicated, what that costs.
    """
    found = budget(config, layout, pool_bytes, hbm_bytes)
    if found.left >= needed_bytes:
        return found
    message = f"{config.name} at {layout.name} needs {needed_bytes / 1e9:.2f} GB beside what it holds, {found}"
    if layout.replicate_o_proj:
        saved = found.items["replicated o_proj"] + found.items["replicated W_UV"]
        message += f"; without replicate_o_proj {(found.left + saved) / 1e9:.2f} GB would be left"
    short = needed_bytes - found.left
    if pool_bytes > short:
        message += f"; a KV pool of {(pool_bytes - short) / 1e9:.2f} GB would fit"
    raise HbmExceeded(message)
