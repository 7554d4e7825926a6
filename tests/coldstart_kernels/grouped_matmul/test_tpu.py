"""On a TPU: the compiled kernel against the reference at production shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coldstart_kernels import grouped_matmul


@pytest.mark.tpu
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("experts", "k", "n"), [(16, 2048, 6144), (64, 4096, 2048)])
def test_kernel_equals_reference(experts: int, k: int, n: int, fp8: bool) -> None:
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((640, k)), jnp.bfloat16)
    weights = jnp.asarray(rng.standard_normal((experts, k, n)) / k**0.5, jnp.bfloat16)
    scales = None
    if fp8:
        weights = (weights * 64).astype(jnp.float8_e4m3fn)
        scales = jnp.full((experts, k // 128, n // 128), 1 / 64, jnp.float32)
    sizes = rng.multinomial(600, np.ones(experts) / experts).astype(np.int32)

    def multiply(implementation: str) -> np.ndarray:
        out = jax.jit(
            lambda *a: grouped_matmul(*a, weight_scales=scales, implementation=implementation)
        )(x, weights, sizes)
        return np.asarray(out[:600], np.float64)

    wanted = multiply("reference")
    # Two roundings to bf16, 2**-9 each, of sums in another order.
    assert np.linalg.norm(multiply("pallas") - wanted) < 5e-3 * np.linalg.norm(wanted)
