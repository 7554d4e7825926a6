"""Every gate refuses with its own reason; a header that fits passes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from coldstart.artifact import Header
from coldstart.client import gates
from coldstart.errors import ArtifactMismatch
from coldstart.outcomes import Reason

EXPECTED = gates.Expected(
    key="cs1-" + "a" * 64,
    module_digest="b" * 64,
    target='{"platform": "cpu"}',
    platform="cpu",
    partitions=4,
    replicas=1,
    callbacks=2,
)
HEADER = Header(
    **{field.name: getattr(EXPECTED, field.name) for field in fields(EXPECTED)},
    digest="c" * 64,
    payload_bytes=1,
    raw_bytes=1,
    codec="zstd",
    cpu_features=("arch:x", "avx2"),
)
HOST = {"arch:x", "avx2", "fma"}

WRONG: dict[str, tuple[dict[str, Any], Reason]] = {
    "key": ({"key": "cs1-" + "d" * 64}, Reason.KEY_MISMATCH),
    "module digest": ({"module_digest": "d" * 64}, Reason.IDENTITY_MISMATCH),
    "target": ({"target": "{}"}, Reason.TARGET_MISMATCH),
    "platform": ({"platform": "tpu"}, Reason.TARGET_MISMATCH),
    "partitions": ({"partitions": 8}, Reason.PARTITIONS),  # M5: the process would abort
    "replicas": ({"replicas": 2}, Reason.PARTITIONS),
    "callbacks": ({"callbacks": 1}, Reason.CALLBACKS),  # H8: the first run would crash
    "codec": ({"codec": "lz9"}, Reason.CODEC),
    "one feature too many": ({"cpu_features": ("amx_tile", "arch:x")}, Reason.CPU_FEATURES),
    "another architecture": ({"cpu_features": ("arch:y",)}, Reason.CPU_FEATURES),
}


def test_a_fitting_header_passes() -> None:
    gates.check(HEADER, EXPECTED, HOST)
    gates.check(replace(HEADER, cpu_features=()), EXPECTED, ())


@pytest.mark.parametrize("gate", WRONG)
def test_each_gate_says_its_reason(gate: str) -> None:
    changes, reason = WRONG[gate]
    with pytest.raises(ArtifactMismatch) as refused:
        gates.check(replace(HEADER, **changes), EXPECTED, HOST)
    assert refused.value.reason == reason


def test_every_expectation_has_a_gate() -> None:
    """A field of Expected that nothing checks would be a gate left open."""
    assert {field.name for field in fields(EXPECTED)} == {
        name for changes, _ in WRONG.values() for name in changes
    } - {"codec", "cpu_features"}
