"""On a TPU: the compiled kernel against the stable sort, bit for bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from coldstart_kernels import moe_permute, moe_route


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("experts", "chosen", "scoring"), [(256, 8, "sigmoid"), (512, 10, "softmax")]
)
def test_rowmax_equals_sort(experts: int, chosen: int, scoring: str) -> None:
    logits = np.random.default_rng(1).standard_normal((4096, experts)).astype(np.float32)

    def route(topk: str) -> list[bytes]:
        found = jax.jit(lambda x: moe_route(x, chosen=chosen, scoring=scoring, topk=topk))(logits)
        return [np.asarray(part).tobytes() for part in found]

    assert route("rowmax") == route("sort")


@pytest.mark.tpu
@pytest.mark.parametrize("local", [16, 64, 511, 512])
def test_packed_equals_base(local: int) -> None:
    ids = np.random.default_rng(1).integers(0, 512, (4096, 10)).astype(np.int32)

    def permute(packed: bool) -> list[bytes]:
        found = jax.jit(lambda i: moe_permute(i, local_experts=local, packed=packed))(ids)
        return [np.asarray(part).tobytes() for part in found]

    assert permute(True) == permute(False)
