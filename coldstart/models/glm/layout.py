"""How a deployment lays the model over devices: the mesh, who owns which heads and which positions. Plain numbers.

The mesh has two axes, `model` and `dcp`; together they are the tensor and the expert parallelism (TP = EP = model x
dcp). Heads go over both, model first, so a head group is the `dcp` devices with one model index. Within a group the KV
cache is split by position, and each group keeps a copy of its own.

Positions: a *virtual page* covers page x dcp tokens. Within it, runs of `interleave` positions go round the devices of
a group. A device's own positions of a sequence, in order, are its *local* positions: page after page.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from coldstart.models.glm.config import GlmConfig

MODEL, DCP = "model", "dcp"
ALL = (MODEL, DCP)
"""Both axes: what heads, experts and the vocabulary go over."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A deployment."""

    model: int = 1
    """Head groups."""
    dcp: int = 16
    """Devices of a head group: decode context parallelism."""
    page: int = 256
    """Rows of one device in a page."""
    interleave: int = 4
    """Consecutive positions on one device."""
    replicate_q: bool = True
    """Each device makes the queries of its whole head group, instead of gathering them."""
    replicate_o_proj: bool = False
    """Each device holds o_proj of its whole head group: one exchange instead of two."""

    @property
    def tp(self) -> int:
        """Devices."""
        return self.model * self.dcp

    @property
    def name(self) -> str:
        """As deployments are called: TP16/DCP8/EP16."""
        return f"TP{self.tp}/DCP{self.dcp}/EP{self.tp}"

    @property
    def virtual_page(self) -> int:
        """Positions that one entry of a page table covers."""
        return self.page * self.dcp

    def group_heads(self, config: GlmConfig) -> int:
        """Heads that the devices of a group attend with together."""
        return config.heads // self.model

    def own_heads(self, config: GlmConfig) -> int:
        """Heads whose outputs end on one device."""
        return config.heads // self.tp

    def pages_for(self, positions: int) -> int:
        """Entries of a page table that holds so many positions."""
        return -(-positions // self.virtual_page)

    def owner(self, position: Any) -> Any:
        """The device of the group that caches a position; for numbers and arrays."""
        return position % (self.dcp * self.interleave) // self.interleave

    def local(self, position: Any) -> Any:
        """A position's place among its owner's positions of that sequence."""
        offset = position % self.virtual_page
        turn = self.dcp * self.interleave
        slot = offset // turn * self.interleave + offset % self.interleave
        return position // self.virtual_page * self.page + slot

    def position(self, rank: Any, local: Any) -> Any:
        """The other way round: which position the owner `rank` keeps at a local place."""
        slot = local % self.page
        turn = self.dcp * self.interleave
        offset = slot // self.interleave * turn + rank * self.interleave + slot % self.interleave
        return local // self.page * self.virtual_page + offset

    def check(self, config: GlmConfig) -> None:
        """Refuse a layout that the sizes of a model can't be split over.

        Raises:
            ValueError: naming the sizes that don't divide, or the setting.
        """
        c, tp = config, self.tp
        if self.model < 1 or self.dcp < 1:
            raise ValueError(f"{self.model} x {self.dcp} devices are no mesh")
        if self.interleave < 1 or self.page < 1 or self.page % self.interleave:
            raise ValueError(f"interleave {self.interleave} doesn't divide the page {self.page}")
        if c.quantised and self.page % 4:
            raise ValueError(f"page {self.page} is no multiple of 4: FP8 rows share words by fours")
        sizes = {"vocabulary": c.vocabulary, "heads": c.heads, "experts": c.experts}
        # Blocks of a scale stay whole where a quantised dimension is split.
        block = c.block if c.quantised else 1
        sizes |= {"mlp": c.mlp // block, "expert_mlp": c.expert_mlp // block}
        sizes |= {
            "o_proj rows": c.heads * c.value // block,
            "q_b columns": c.heads * c.head // block,
        }
        uneven = {name: size for name, size in sizes.items() if size % tp}
        if uneven:
            raise ValueError(f"{c.name} can't be split over {tp} devices: {uneven}")
        if self.replicate_o_proj and self.dcp == 1:
            raise ValueError("replicate_o_proj merges two exchanges; with DCP 1 there is only one")
