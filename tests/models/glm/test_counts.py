"""The config's numbers against published sizes, and budgets against the table they are meant to reproduce."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import jax
import pytest

from coldstart.models.glm import counts
from coldstart.models.glm.admission import HbmExceeded, admit, budget
from coldstart.models.glm.config import GLM52_FP8, GLM52_TINY, GlmConfig
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.model import GlmModel

DCP16, DCP8 = Layout(1, 16), Layout(2, 8)
BARE = Layout(1, 16, replicate_q=False)
MERGED = {16: Layout(1, 16, replicate_o_proj=True), 8: Layout(2, 8, replicate_o_proj=True)}
GB = 1e9


def test_layers_with_an_indexer() -> None:
    assert GLM52_FP8.full_layers == (0, 1, 2, *range(6, 75, 4))
    assert len(GLM52_FP8.full_layers) == 21
    assert sum(not GLM52_FP8.has_indexer(layer) for layer in range(78)) == 57
    assert sum(GLM52_FP8.has_experts(layer) for layer in range(78)) == 75
    # The members before 5.2 have an indexer in each layer.
    older = dataclasses.replace(GLM52_FP8, index_period=1)
    assert older.full_layers == tuple(range(78))


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        ("q_a", 12.58),
        ("q_b", 33.55),
        ("kv_a", 3.54),
        ("kv_b", 14.68),
        ("o_proj", 100.66),
    ],
)
def test_one_layer_s_matrices(name: str, megabytes: float) -> None:
    (weight,) = [w for w in counts.matrices(GLM52_FP8) if w.name == name]
    assert weight.bytes / weight.count / 1e6 == pytest.approx(megabytes, abs=0.005)


def test_indexer_and_expert_of_one_layer() -> None:
    sums = {
        group: sum(w.parameters // w.count for w in counts.matrices(GLM52_FP8) if w.group == group)
        for group in ("indexer", "experts")
    }
    assert sums["indexer"] / 1e6 == pytest.approx(9.37, abs=0.01)  # 9.57 MB: one matrix has 2 bytes
    assert sums["experts"] / 1e6 == pytest.approx(37.75, abs=0.005)
    bytes_of_one = [w.bytes // w.count for w in counts.matrices(GLM52_FP8) if w.group == "indexer"]
    assert sum(bytes_of_one) / 1e6 == pytest.approx(9.57, abs=0.005)


def test_checkpoint_and_parameters() -> None:
    weights, scales = counts.checkpoint_bytes(GLM52_FP8)
    assert weights / GB == pytest.approx(755.4, rel=0.002)
    assert scales / GB == pytest.approx(0.18, abs=0.01)
    assert counts.parameters(GLM52_FP8) / 1e9 == pytest.approx(743, abs=0.5)
    assert counts.active_parameters(GLM52_FP8) / 1e9 == pytest.approx(41, abs=1.0)


def test_o_proj_whole_and_what_replicating_it_adds() -> None:
    assert counts.o_proj_bytes(GLM52_FP8, MERGED[16], replicated=True) == 7_851_737_088
    assert counts.o_proj_bytes(GLM52_FP8, MERGED[8], replicated=True) == 3_925_868_544
    assert counts.o_proj_bytes(GLM52_FP8, DCP16, replicated=False) / GB == pytest.approx(
        0.491, abs=5e-4
    )
    assert counts.o_proj_increase(GLM52_FP8, DCP16) / GB == pytest.approx(7.361, abs=5e-4)
    assert counts.o_proj_increase(GLM52_FP8, DCP8) / GB == pytest.approx(3.435, abs=5e-4)
    # With TP8 and DCP8 one group has all heads.
    assert counts.o_proj_bytes(GLM52_FP8, Layout(1, 8), replicated=True) == 7_851_737_088
    assert counts.w_uv_increase(GLM52_FP8, DCP16) / GB == pytest.approx(1.23, abs=0.01)
    assert counts.query_increase(GLM52_FP8, DCP16) / GB == pytest.approx(3.4, abs=0.05)


def test_cached_bytes_of_a_token() -> None:
    assert counts.kv_bytes_per_token(GLM52_FP8) == 55_296
    assert counts.kv_bytes_per_token(GLM52_FP8) // DCP16.dcp == 3456
    assert counts.pool_tokens(GLM52_FP8, DCP16, int(40e9)) / 1e6 == pytest.approx(11.6, abs=0.05)


def test_weights_of_a_device() -> None:
    found = {name: size / GB for name, size in counts.weight_bytes(GLM52_FP8, BARE).items()}
    wanted = {
        "experts": 45.30,
        "shared expert": 0.18,
        "attention": 0.73,
        "down projections": 1.26,
        "indexer": 0.20,
        "embeddings": 0.24,
    }
    for name, size in wanted.items():
        assert found[name] == pytest.approx(size, abs=0.006), name
    assert found["router"] + found["dense"] == pytest.approx(0.27, abs=0.01)
    assert sum(found.values()) == pytest.approx(48.2, abs=0.05)


# What is left by the table of budgets; it counts no W_UV, which is a row of its own there.
@pytest.mark.parametrize(
    ("pool", "plain", "dcp8", "dcp16"),
    [(40, 10.2, 6.8, 2.8), (37, 13.2, 9.8, 5.8), (34, 16.2, 12.8, 8.8)],
)
def test_what_a_budget_leaves(pool: int, plain: float, dcp8: float, dcp16: float) -> None:
    pool_bytes = int(pool * GB)
    assert budget(GLM52_FP8, DCP16, pool_bytes).left / GB == pytest.approx(plain, abs=0.1)
    for layout, wanted in ((MERGED[8], dcp8), (MERGED[16], dcp16)):
        items = budget(GLM52_FP8, layout, pool_bytes).items
        # The table takes DCP16's replicated queries for both.
        items["replicated queries"] = counts.query_increase(GLM52_FP8, DCP16)
        left = counts.HBM_BYTES - sum(items.values()) + items["replicated W_UV"]
        assert left / GB == pytest.approx(wanted, abs=0.1)


def test_admission_refuses_with_numbers() -> None:
    needed = int(4.5 * GB)
    assert admit(GLM52_FP8, DCP16, int(40 * GB), needed).left > needed
    with pytest.raises(HbmExceeded) as refused:
        admit(GLM52_FP8, MERGED[16], int(40 * GB), needed)
    text = str(refused.value)
    for part in (
        "TP16/DCP16/EP16 needs 4.50 GB",
        "of 101.74 GB",
        "replicated o_proj 7.36",
        "replicated W_UV 1.23",
        "KV pool 40.00",
    ):
        assert part in text
    assert "without replicate_o_proj" in text and "would fit" in text
    fitting = float(text.rpartition("a KV pool of ")[2].split(" GB")[0])
    assert admit(GLM52_FP8, MERGED[16], int((fitting - 0.01) * GB), needed).left >= needed
    assert not Layout().replicate_o_proj


@pytest.mark.parametrize("layout", [DCP16, DCP8, *MERGED.values(), BARE, Layout(1, 1)])
@pytest.mark.parametrize("config", [GLM52_FP8, GLM52_TINY])
def test_layouts_that_the_sizes_allow(config: GlmConfig, layout: Layout) -> None:
    layout.check(config)
    assert layout.own_heads(config) * layout.tp == config.heads


def test_layouts_that_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be split over 24 devices"):
        Layout(3, 8).check(GLM52_FP8)
    with pytest.raises(ValueError, match="interleave 3 doesn't divide the page 256"):
        Layout(interleave=3).check(GLM52_FP8)
    with pytest.raises(ValueError, match="with DCP 1 there is only one"):
        Layout(16, 1, replicate_o_proj=True).check(GLM52_FP8)
    with pytest.raises(ValueError, match="precision"):
        dataclasses.replace(GLM52_FP8, precision="int4")


@pytest.mark.parametrize(
    ("dcp", "page", "interleave"), [(1, 8, 4), (8, 8, 4), (16, 4, 1), (4, 6, 2)]
)
def test_each_position_has_one_owner_and_one_place(dcp: int, page: int, interleave: int) -> None:
    layout = Layout(1, dcp, page=page, interleave=interleave)
    seen = set()
    for position in range(3 * layout.virtual_page):
        rank, local = layout.owner(position), layout.local(position)
        offset = position % (page * dcp)
        assert rank == offset % (dcp * interleave) // interleave
        assert layout.position(rank, local) == position
        seen.add((rank, local))
    assert seen == {(rank, local) for rank in range(dcp) for local in range(3 * page)}


def bytes_by_name(layout: Layout) -> Counter[str]:
    """What one device's arguments take, by the parameter's name."""
    model = GlmModel(GLM52_FP8, layout, jax.devices(), pages=4, requests=8, scan=True)
    found: Counter[str] = Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.abstract_params()):
        name = [part.key for part in path if hasattr(part, "key")][-1]
        found[name] += math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    return found


@pytest.mark.parametrize(("dcp", "o_proj", "w_uv"), [(16, 7.36, 1.227), (8, 3.44, 0.573)])
def test_arguments_of_a_device_are_what_the_counts_say(
    dcp: int, o_proj: float, w_uv: float
) -> None:
    plain = Layout(16 // dcp, dcp)
    base = bytes_by_name(plain)
    # kv_b is FP8 in the checkpoint and counted so; W_UK and W_UV are bf16 here, so twice that, and the scales.
    kv_b = 512 * 28_672 * 78 // 16
    groups = counts.weight_bytes(GLM52_FP8, plain)
    wanted = sum(groups.values()) - groups["embeddings"] // 2  # the head is no argument of it
    wanted += counts.query_increase(GLM52_FP8, plain) + kv_b
    assert sum(base.values()) == pytest.approx(wanted, rel=1e-3)
    increase = bytes_by_name(dataclasses.replace(plain, replicate_o_proj=True)) - base
    assert set(increase) == {"o_proj", "w_uv"}
    assert increase["o_proj"] / GB == pytest.approx(o_proj, rel=0.01)
    assert increase["w_uv"] / GB == pytest.approx(w_uv, rel=0.01)
