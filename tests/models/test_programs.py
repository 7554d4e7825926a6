"""The listed programs lower for a TPU that is only described, with the kernel as a Mosaic call."""

from __future__ import annotations

import jax
import pytest

from coldstart.models.config import TINY
from coldstart.models.programs import demo_programs, participant_programs

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def described() -> list[jax.Device]:
    pytest.importorskip("libtpu", reason="needs libtpu to lower for a described TPU")
    from jax.experimental import topologies

    return list(topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices)


@pytest.mark.parametrize("number", [0, -1])
def test_decoder_lowers_for_a_described_mesh(described: list[jax.Device], number: int) -> None:
    program = demo_programs(16)[number]
    text = program.lower(described).as_text()
    assert "mhlo.num_partitions = 16" in text
    assert text.count("@tpu_custom_call") == TINY.layers
    assert "@tpu_custom_call" not in program.lower(jax.devices()).as_text()


def test_piece_lowers_and_compiles_for_one_described_device(described: list[jax.Device]) -> None:
    program = participant_programs(3, 16)[0]
    lowered = program.lower(described)
    assert "mhlo.num_partitions = 1 " in lowered.as_text()
    assert "mla_sparse" in lowered.compile().as_text()
