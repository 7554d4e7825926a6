"""Serving's shapes, compiled by libtpu for one device of a described tpu7x; no TPU is needed.

64 heads of which 4 are own, rows of 576 with 512 latent, lists of 2048, 32 decoding sequences or 4096 tokens of a
prefill, pages of 1024 positions. What takes more than 5 s here is long.
"""

from __future__ import annotations

import re

import jax
import production_shapes
import pytest
from production_shapes import DECODE, HEADS, LATENT, LIST, OWN, PREFILL, WIDTH, Step

from coldstart_kernels import device
from coldstart_kernels.mla import PagedKey
from coldstart_kernels.mla.paged_tuning import heuristic, vmem_needed

pytestmark = pytest.mark.stacks
pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")


@pytest.fixture(scope="module")
def described() -> jax.Device:
    return production_shapes.described_device()


def used_vmem(compiled: jax.stages.Compiled) -> int:
    """What the compiler gave the kernel, from the compiled text."""
    call = next(line for line in compiled.as_text().splitlines() if "tpu_custom_call" in line)
    found = re.search(r'"used_scoped_memory_configs":\[\{[^}]*"size":"(\d+)"', call)
    assert found is not None, "the compiled text doesn't say what the kernel uses"
    return int(found[1])


def sum_of(step: Step, branch: str) -> int:
    """The sum at the top of paged_kernel.py, for what the op chooses."""
    dense = branch == "dense"
    key = PagedKey(
        branch, OWN if dense else HEADS, HEADS if dense else OWN, WIDTH, LATENT, step.tokens,
        step.sequences, step.page, 0 if dense else LIST, 2, 1, "TPU7x",
    )  # fmt: skip
    return vmem_needed(key, heuristic(key))


@pytest.mark.parametrize(
    ("step", "branch"),
    [
        (DECODE, "sparse"),
        pytest.param(DECODE, "dense", marks=pytest.mark.long),
        pytest.param(PREFILL, "dense", marks=pytest.mark.long),
        pytest.param(PREFILL, "sparse", marks=pytest.mark.long),
    ],
)
def test_attention_compiles_within_vmem_and_without_a_gathered_copy(
    described: jax.Device, step: Step, branch: str
) -> None:
    lowered = production_shapes.lower_attention(described, step, branch)
    assert lowered.as_text().count("@tpu_custom_call") == 1
    compiled = lowered.compile()
    used = used_vmem(compiled)
    # Seen with libtpu 0.0.42.1: 4.9 MB of a sum of 3.4 (sparse), 2.8 of 4.3 and 5.6 of 9.2 (dense).
    assert used <= 2 * sum_of(step, branch) <= device.kernel_vmem_bytes("TPU7x")
    gathered = step.tokens * LIST * WIDTH * 2
    # 0.65 GB seen for the prefill: a copy of q in the kernel's layout, log-sum-exps, index lists. The cache, 0.3 GB
    # here, isn't among it.
    assert compiled.memory_analysis().temp_size_in_bytes < max(gathered / 10, 64 << 20)


@pytest.mark.long
@pytest.mark.parametrize("step", [DECODE, PREFILL])
def test_indexer_compiles_within_vmem_and_in_bounded_memory(
    described: jax.Device, step: Step
) -> None:
    compiled = production_shapes.lower_indexer(described, step).compile()
    assert used_vmem(compiled) <= device.kernel_vmem_bytes("TPU7x")
    # Runs of 256 MiB of scores, sorted with their columns. All at once would be 1.1 GB and its sort.
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * (256 << 20)
