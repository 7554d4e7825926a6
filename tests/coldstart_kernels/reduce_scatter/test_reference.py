"""The reference against NumPy's sum, and the words of refusal."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scattered_sums import scattered, whole_numbers

from coldstart_kernels import reduce_scatter
from coldstart_kernels.reduce_scatter import Hypercube, TuningKey, TuningParams, check_order
from coldstart_kernels.reduce_scatter.tuning import heuristic, vmem_budget, vmem_needed

KEY = TuningKey(devices=8, tokens=4096, hidden=4096, itemsize=2, device_kind="TPU7x")


def test_reference_equals_the_sum() -> None:
    partial = whole_numbers(8, 24, 5)
    np.testing.assert_array_equal(scattered(partial, 8, None), partial.sum(axis=0))


@pytest.mark.parametrize(
    ("tokens", "micro_batches"), [(4096, 8), (2048, 4), (256, 2), (64, 1), (16384, 8)]
)
def test_more_tokens_get_more_micro_batches(tokens: int, micro_batches: int) -> None:
    key = dataclasses.replace(KEY, tokens=tokens)
    params = heuristic(key)
    assert params.micro_batches == micro_batches
    assert vmem_needed(key, params) <= vmem_budget(key) == int(0.7 * (64 << 20))


def test_a_micro_batch_is_cut_smaller_where_vmem_is_short() -> None:
    assert heuristic(dataclasses.replace(KEY, tokens=32768)).micro_batches == 16


def test_hidden_4096_has_no_three_slices() -> None:
    """Over 8 chips the last columns would be dropped in silence."""
    eight = dataclasses.replace(KEY, devices=16)
    with pytest.raises(ValueError, match=r"hidden 4096 .* 8 micro-batches of 3 .* 16 columns"):
        heuristic(eight)
    with pytest.raises(ValueError, match="1 micro-batches of 3"):
        TuningParams(1, 1 << 26).check(eight)
    assert heuristic(dataclasses.replace(eight, hidden=6144)).micro_batches == 8


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (TuningParams(0, 1 << 26), "0 micro-batches"),
        (TuningParams(3, 1 << 26), "hidden 4096 doesn't divide into 3"),
        (TuningParams(32, 1 << 26), "slices of 64 columns.* multiple of 128"),
        (TuningParams(1, 1 << 26), "bytes of VMEM"),
    ],
)
def test_refusals_name_the_figure(params: TuningParams, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        params.check(KEY)


@pytest.mark.parametrize("devices", [1, 2, 3, 6, 12])
def test_no_hypercube_is_refused(devices: int) -> None:
    with pytest.raises(ValueError, match=f"^{devices} devices"):
        Hypercube(devices).check()


@pytest.mark.parametrize("devices", [4, 8, 16, 64])
def test_slices_take_turns_on_the_dimensions(devices: int) -> None:
    cube = Hypercube(devices)
    every = list(range(cube.dimensions))
    for here in every:
        assert sorted(cube.dimension(here, step) for step in every) == every
        assert sorted(cube.dimension(part, here) for part in every) == every


@dataclasses.dataclass(frozen=True)
class Device:
    coords: tuple[int, int, int]
    core_on_chip: int


def test_devices_out_of_order_are_refused() -> None:
    chips = [(x, y, 0) for y in range(2) for x in range(2)]
    devices = [Device(chip, core) for chip in chips for core in range(2)]
    check_order(devices)
    with pytest.raises(ValueError, match=r"devices 0 and 1 .* core 0 and 1 of one chip"):
        check_order([devices[1], devices[0], *devices[2:]])
    ring = [*devices[:4], *devices[6:], *devices[4:6]]
    with pytest.raises(ValueError, match="not along one axis"):
        check_order(ring)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "words"),
    [
        ((12, 4), jnp.float32, {}, r"\(12, 4\): 8 devices don't divide"),
        ((0, 4), jnp.float32, {}, r"\(0, 4\) is not"),
        ((8, 2, 2), jnp.float32, {}, r"\(8, 2, 2\) is not"),
        ((8, 4), jnp.int32, {}, "got int32"),
        ((8, 4), jnp.float32, {"implementation": "cuda"}, "implementation 'cuda'"),
        ((8, 4), jnp.float32, {"implementation": "pallas"}, "slices of 2 columns"),
    ],
)
def test_refusals_print_the_shapes(
    shape: tuple[int, ...], dtype: type, options: dict, words: str
) -> None:
    mesh = jax.make_mesh((8,), ("d",), devices=jax.devices()[:8])
    whole = jax.sharding.PartitionSpec()

    def own(partial: jax.Array) -> jax.Array:
        return reduce_scatter(partial, axis="d", **options)

    run = jax.shard_map(own, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(run, jax.ShapeDtypeStruct(shape, dtype))
