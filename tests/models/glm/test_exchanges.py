"""Which devices talk to which: the mesh's order, and the groups of each exchange as lowered and as compiled."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import jax
import pytest

from coldstart.models.glm.config import GLM52_TINY
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.model import GlmModel, mesh_of

ALL = tuple(range(16))
HOSTS = (ALL[:8], ALL[8:])  # one plane of 2x2 chips each
LAYERS, FULL = 3, 2  # layers, and those with an indexer

Groups = tuple[tuple[int, ...], ...]


def layout_of(model: int, dcp: int, **switches: Any) -> Layout:
    return Layout(model, dcp, page=64 // dcp, **switches)


def lowered(layout: Layout, devices: list[Any]) -> jax.stages.Lowered:
    config = dataclasses.replace(GLM52_TINY, layers=LAYERS)
    return GlmModel(config, layout, devices, pages=20, requests=8).lower_backbone(16)


def expected(layout: Layout) -> Counter[tuple[str, Groups]]:
    """The exchanges of a step: kind and groups, each with how often it occurs."""
    group = (ALL,) if layout.dcp == 16 else HOSTS
    gathers = LAYERS + FULL + (0 if layout.replicate_q else LAYERS)  # LSE, scores, queries
    found = {("all-gather", group): gathers, ("all-reduce", (ALL,)): 1 + 2 * LAYERS}
    if not layout.replicate_o_proj:
        found["reduce-scatter", group] = LAYERS
    return Counter(found)


CASES = [
    layout_of(1, 16),
    layout_of(2, 8),
    layout_of(2, 8, replicate_q=False),
    layout_of(1, 16, replicate_o_proj=True),
    layout_of(2, 8, replicate_o_proj=True),
]


def in_lowered(text: str, layout: Layout) -> Counter[tuple[str, Groups]]:
    """Exchanges of a module in StableHLO, which has groups as numbers (JAX 0.10) or as axes of the mesh."""
    pattern = (
        r'"stablehlo\.(all_gather|all_reduce|reduce_scatter)".*?replica_groups = '
        r"(dense<.*?>|#stablehlo\.replica_group_mesh_axes<.*?\]>)"
    )

    def groups(written: str) -> Groups:
        if written.startswith("dense"):
            return groups_of(written)
        whole = '"model"' in written or layout.model == 1
        assert '"dcp"' in written
        return (ALL,) if whole else HOSTS

    return Counter(
        (kind.replace("_", "-"), groups(written)) for kind, written in re.findall(pattern, text)
    )


def in_compiled(text: str) -> Counter[tuple[str, Groups]]:
    """Exchanges of a compiled module: each instruction, not its uses."""
    pattern = (
        r"= \S+ (all-gather|all-reduce|reduce-scatter)(?:-start)?\(.*?replica_groups=(\{\{.*?\}\})"
    )
    return Counter((kind, groups_of(dense)) for kind, dense in re.findall(pattern, text))


def groups_of(dense: str) -> Groups:
    rows = re.findall(r"[\[{]([\d, ]+)[\]}]", dense)
    return tuple(tuple(int(number) for number in row.split(",")) for row in rows)


@pytest.mark.stacks
@pytest.mark.parametrize("layout", CASES)
def test_lowered_exchanges(layout: Layout) -> None:
    assert in_lowered(lowered(layout, jax.devices()).as_text(), layout) == expected(layout)


def test_the_mesh_is_in_ascending_order() -> None:
    """JAX's own helper follows rings; groups must be hosts here, and kernels count by place."""
    shuffled = [jax.devices()[(5 * n + 3) % 16] for n in range(16)]
    mesh = mesh_of(layout_of(2, 8), shuffled)
    assert [[device.id for device in row] for row in mesh.devices] == [list(h) for h in HOSTS]
    with pytest.raises(ValueError, match="TP16/DCP8/EP16 spans 16 devices, got 15"):
        mesh_of(layout_of(2, 8), shuffled[1:])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layout", CASES)
def test_compiled_exchanges_of_an_ironwood_slice(layout: Layout) -> None:
    pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")
    from jax.experimental import topologies

    devices = list(topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices)
    text = lowered(layout, devices).compile().as_text()
    assert in_compiled(text) == expected(layout)
