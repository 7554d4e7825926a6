"""A participant's own backbone: equal over the ranks but for one literal that the sparse branch never reads."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import pytest

from coldstart.models.glm.config import GLM52_TINY
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.participant import Participant, participant_programs

CONFIG = dataclasses.replace(GLM52_TINY, layers=1)
DCP16, DCP8 = Layout(1, 16, page=4), Layout(2, 8, page=8)


def participant(rank: int, layout: Layout = DCP16, *, fixed: bool = False) -> Participant:
    return Participant(CONFIG, layout, rank, pages=8, fixed=fixed)


def text_of(rank: int, layout: Layout = DCP16, *, fixed: bool = False) -> str:
    return participant(rank, layout, fixed=fixed).lower(16, 8, jax.devices()[0]).as_text()


def test_ranks_differ_in_the_fragment_s_offset_and_in_nothing_else() -> None:
    first, third = text_of(0), text_of(3)
    assert "num_partitions = 1 " in first
    lines = [
        pair
        for pair in zip(first.splitlines(), third.splitlines(), strict=True)
        if len(set(pair)) > 1
    ]
    assert len(lines) == CONFIG.layers
    for mine, other in lines:  # 2 own heads of 32: rank 3 begins at head 6
        assert re.search(r"stablehlo.slice .*\[0:16, 0:2, 0:80\]", mine)
        assert mine.replace("0:2,", "6:8,") == other
    # The corrected rule: all hand over the same fragment, and the programs are one.
    assert text_of(3, fixed=True) == first


def test_programs_and_what_is_refused() -> None:
    (program,) = participant_programs(participant(5), [(16, 8)])
    assert program.name == "glm5.2-tiny.backbone" and program.devices == 1
    assert program.bucket == {"tokens": 16, "requests": 8}
    with pytest.raises(ValueError, match="participant 16 of 16 doesn't exist"):
        participant(16)
    with pytest.raises(ValueError, match="no fragment to slice"):
        participant(0, dataclasses.replace(DCP16, replicate_q=False))


@pytest.fixture(scope="module")
def chip() -> Any:
    pytest.importorskip("libtpu", reason="needs libtpu to lower for a described TPU")
    from jax.experimental import topologies

    return topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices[0]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", [DCP16, DCP8])
def test_all_participants_share_a_key_on_a_described_chip(chip: Any, layout: Layout) -> None:
    """Each sees its own chip first. Without rewrites there are as many keys as fragments."""
    from coldstart.client import jax_internals, jax_module
    from coldstart.client.identify import identify
    from coldstart.identity.canonical import canonicalize

    def keys(rank: int, *, fixed: bool) -> tuple[str, str]:
        lowered = participant(rank, layout, fixed=fixed).lower(16, 8, chip)
        request = jax_internals.capture(lowered)
        rewrites = canonicalize(jax_module.describe(request.computation)).rewrites
        return identify(request).key, identify(request, rewrites=rewrites).key

    found = [keys(rank, fixed=False) for rank in range(layout.tp)]
    assert len({raw for raw, _ in found}) == layout.dcp
    assert len({canonical for _, canonical in found}) == 1
    assert keys(7, fixed=True) == (found[0][0], found[0][1])
