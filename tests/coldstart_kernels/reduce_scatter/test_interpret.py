"""The exchange over simulated devices: exact on whole numbers, and no race found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scattered_sums
from scattered_sums import races_found, scattered, whole_numbers


def exact(devices: int, tokens: int, hidden: int, micro_batches: int) -> None:
    partial = whole_numbers(devices, tokens, hidden)
    np.testing.assert_array_equal(scattered(partial, devices, micro_batches), partial.sum(axis=0))
    assert races_found() is False


def test_two_chips_with_buffers_used_twice() -> None:
    """Three micro-batches: the third waits for the credit of the first. Rows are padded to a tile."""
    exact(devices=4, tokens=20, hidden=384, micro_batches=3)


def test_four_chips() -> None:
    exact(devices=8, tokens=64, hidden=512, micro_batches=2)


@pytest.mark.long
def test_four_chips_with_buffers_used_twice() -> None:
    exact(devices=8, tokens=128, hidden=1280, micro_batches=5)


def in_own_process(*figures: int) -> dict:
    program = Path(scattered_sums.__file__)
    flags = "--xla_force_host_platform_device_count=32"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(program), *map(str, figures)],
        env=environment, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_eight_chips() -> None:
    assert in_own_process(16, 128, 384, 1) == {"devices": 16, "wrong": 0, "races": False}


@pytest.mark.long
@pytest.mark.timeout(240)
def test_eight_chips_with_buffers_used_twice() -> None:
    assert in_own_process(16, 128, 1152, 3) == {"devices": 16, "wrong": 0, "races": False}


@pytest.mark.long
def test_bf16_is_rounded_once_a_hop() -> None:
    rng = np.random.default_rng(3)
    partial = rng.standard_normal((8, 128, 512)).astype(jnp.bfloat16)
    wanted = partial.astype(np.float64).sum(axis=0)
    out = scattered(partial, 8, 2)
    assert out.dtype == jnp.bfloat16 and races_found() is False
    # Three additions to sums below 16, each rounded to 8 bits: at most half of 2**-4 a time.
    assert abs(wanted).max() < 15
    np.testing.assert_allclose(out.astype(np.float64), wanted, atol=3 / 32)
