"""The same on described Ironwood chips: lowered and compiled ahead of time for `tpu7x:2x2x2`, no TPU needed."""

from __future__ import annotations

from typing import Any

import fragment_programs as fp
import identity_corpus as corpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from coldstart.client import jax_internals, mosaic

pytestmark = [pytest.mark.long, pytest.mark.stacks]


@pytest.fixture(scope="module")
def one_chip() -> Mesh:
    pytest.importorskip("libtpu")
    devices = topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices
    return Mesh(np.array(devices[:1]), ("x",))


def abstract(mesh: Mesh, *shapes: tuple[tuple[int, ...], Any]) -> list[Any]:
    sharding = NamedSharding(mesh, P())
    return [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in shapes]


def kernel_reasons(module: Any) -> list[str]:
    with module.context:
        reads = [mosaic.read_set(op) for op in jax_internals.walk(module) if mosaic.is_kernel(op)]
    return [reason for read in reads for reason in read.reasons]


@pytest.mark.parametrize("program", ["plain", "cut_in_scan", "with_prefetch"])
def test_sparse_shares_and_dense_does_not(one_chip, program):
    arguments = abstract(one_chip, *((a.shape, a.dtype) for a in fp.ARGUMENTS))

    def lowered(rank: int, kernel: Any) -> Any:
        return jax.jit(fp.PROGRAMS[program](fp.static_cut(rank), kernel, False)).lower(*arguments)

    def digests(kernel: Any) -> set[str]:
        return {corpus.identity(lowered(r, kernel).compiler_ir()).digest for r in (0, 1, 5)}

    assert len(digests(fp.sparse)) == 1
    assert len(digests(fp.dense)) == 3
    raw, canonical = (lowered(r, fp.sparse).compile().memory_analysis() for r in (5, 0))
    assert raw.temp_size_in_bytes == canonical.temp_size_in_bytes
    assert raw.argument_size_in_bytes == canonical.argument_size_in_bytes


def test_group_offset_of_megablox_is_read(one_chip):
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    arguments = abstract(
        one_chip, ((512, 256), jnp.float32), ((4, 256, 256), jnp.float32), ((8,), jnp.int32)
    )

    def digest(offset: int) -> str:
        def f(a: Any, b: Any, sizes: Any) -> Any:
            return gmm(a, b, sizes, jnp.float32, group_offset=jnp.int32(offset))

        with jax.set_mesh(one_chip):
            return corpus.identity(jax.jit(f).lower(*arguments).compiler_ir()).digest

    assert digest(0) != digest(16)
    assert digest(4) != digest(16)


def test_a_kernel_of_two_functions_reads_everything(one_chip):
    from jax.experimental.pallas import tpu_sc as plsc

    def unread(a: Any, b: Any, o: Any) -> None:
        pass

    def read(a: Any, b: Any, o: Any) -> None:
        pltpu.sync_copy(a, o)

    arguments = abstract(one_chip, ((160, 128), jnp.float32), ((32, 128), jnp.float32))

    def module(rank: int) -> Any:
        with jax.set_mesh(one_chip):
            kernel = pl.kernel(
                [unread, read],
                out_type=jax.ShapeDtypeStruct((32, 128), jnp.float32),
                mesh=[
                    plsc.ScalarSubcoreMesh(axis_name="c"),
                    plsc.VectorSubcoreMesh(core_axis_name="c", subcore_axis_name="s"),
                ],
            )
            f = lambda q, b: kernel(jax.lax.slice(q, (rank, 0), (rank + 32, 128)), b)  # noqa: E731
            return jax.jit(f).lower(*arguments).compiler_ir()

    first, second = module(1), module(2)
    assert all(reason.startswith("counts as read") for reason in kernel_reasons(first))
    assert corpus.identity(first).digest != corpus.identity(second).digest
