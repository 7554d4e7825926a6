"""What must hold before any byte of an artifact reaches a loader. Pure.

Each gate has its own reason, so that a refusal says what was wrong. The order is from the bytes outwards:
format, header hash and digest are checked by `artifact`, the rest here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from coldstart.artifact import CODECS, Header
from coldstart.errors import ArtifactMismatch
from coldstart.outcomes import Reason


@dataclass(frozen=True, slots=True)
class Expected:
    """What the loading side knows of the program by itself."""

    key: str
    module_digest: str
    target: str
    platform: str
    partitions: int
    replicas: int
    callbacks: int


def check(header: Header, expected: Expected, host_features: Collection[str]) -> None:
    """Pass silently, or say which gate refuses.

    Raises:
        ArtifactMismatch: with a `reason` of `outcomes.Reason`.
    """
    gates: tuple[tuple[Reason, str, object, object], ...] = (
        (Reason.KEY_MISMATCH, "key", header.key, expected.key),
        (Reason.IDENTITY_MISMATCH, "module digest", header.module_digest, expected.module_digest),
        (Reason.TARGET_MISMATCH, "platform", header.platform, expected.platform),
        (Reason.TARGET_MISMATCH, "target", header.target, expected.target),
        (Reason.PARTITIONS, "partitions", header.partitions, expected.partitions),
        (Reason.PARTITIONS, "replicas", header.replicas, expected.replicas),
        (Reason.CALLBACKS, "host callbacks", header.callbacks, expected.callbacks),
    )
    for reason, what, found, wanted in gates:
        if found != wanted:
            raise ArtifactMismatch(
                f"artifact of {header.program_name or header.key} has {what} {found}, wanted {wanted}",
                reason=reason,
            )
    if header.codec not in CODECS:
        raise ArtifactMismatch(
            f"artifact codec {header.codec!r} is unknown here; known: {', '.join(CODECS)}",
            reason=Reason.CODEC,
        )
    missing = sorted(set(header.cpu_features) - set(host_features))
    if missing:
        raise ArtifactMismatch(
            f"artifact may use {', '.join(missing[:6])}, which this host lacks",
            reason=Reason.CPU_FEATURES,
        )
