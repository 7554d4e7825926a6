"""On a TPU: the compiled kernel against the base path, at a production shape and where it must be exact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moe_operands import operands, relative_error

from coldstart_kernels import moe_streaming


def run(given: dict[str, np.ndarray], threshold: int, start: int = 7) -> np.ndarray:
    call = jax.jit(lambda start, **g: moe_streaming(**g, experts_start=start, threshold=threshold))
    return np.asarray(call(jnp.int32(start), **given))


@pytest.mark.tpu
@pytest.mark.parametrize("tokens", [16, 256])
def test_streaming_equals_the_base_path(tokens: int) -> None:
    given = operands(tokens, 4096, 1024, 64, 10)
    # The specification's bound.
    assert relative_error(run(given, 1024), run(given, 0)) < 0.008
    assert not run(given, 1024, start=1000).any()
