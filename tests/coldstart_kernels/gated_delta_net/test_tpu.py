"""On a real TPU: the kernel against the reference, at a production width."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from delta_net_batches import Ragged

from coldstart_kernels import gated_delta_net

pytestmark = pytest.mark.tpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernel_equals_reference(dtype: str) -> None:
    batch = Ragged(
        ((1, 5), (1, 0), (1, 900)), ((70, 0), (300, 7), (65, 64)),
        tokens=512, key_heads=16, group=4, dtype=dtype,
    )  # fmt: skip
    arguments = batch.arguments()
    results = []
    for implementation in ("reference", "pallas"):
        run = functools.partial(
            gated_delta_net, key_heads=batch.key_heads, implementation=implementation
        )
        results.append([np.asarray(part, np.float32) for part in jax.jit(run)(**arguments)])
    for got, wanted in zip(results[1], results[0], strict=True):
        # What the field allows between two orders of summation; interpreted, they differ by 1e-6.
        np.testing.assert_allclose(got, wanted, atol=2e-2)
