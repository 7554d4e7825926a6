"""How many experts the ring holds: what that hangs on, what it costs, and the rule."""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device

_VMEM_SHARE = 0.8
"""Part of VMEM the kernel may plan for; the rest is the compiler's (one step's products, spills, semaphores)."""

_MOST_SLOTS = 3
"""One is multiplied, two are on their way."""


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What the ring's size hangs on."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    device_kind: str


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """The ring of one launch."""

    slots: int

    def check(self) -> None:
        """Refuse what is no ring. A ring that doesn't fit is the compiler's to refuse.

        Raises:
            ValueError: naming the slots.
        """
        if not 1 <= self.slots <= _MOST_SLOTS:
            raise ValueError(f"slots {self.slots} are not within 1..{_MOST_SLOTS}")


def expert_bytes(key: TuningKey) -> int:
    """One slot: both weights in FP8, both scales in fp32."""
    return 3 * key.hidden * key.intermediate + 4 * (2 * key.intermediate + key.hidden)


def fixed_bytes(key: TuningKey) -> int:
    """All that is no slot; the terms of the sum at the top of kernel.py."""
    tokens, hidden, intermediate = key.tokens, key.hidden, key.intermediate
    activations = 9 * tokens * hidden + 3 * tokens * intermediate
    scales = 256 * tokens * (hidden // 512 + intermediate // 512)
    coefficients = 4 * tokens * device.round_up(key.experts, device.LANES)
    return activations + scales + coefficients


def vmem_needed(key: TuningKey, params: TuningParams) -> int:
    """Bytes that are planned for: the ring and all beside it."""
    return fixed_bytes(key) + params.slots * expert_bytes(key)


def ring_slots(key: TuningKey, vmem_bytes: int) -> int:
    """As many slots as fit beside the rest: 3 at most, 1 even where none fits."""
    room = int(_VMEM_SHARE * vmem_bytes) - fixed_bytes(key)
    return min(max(room // expert_bytes(key), 1), _MOST_SLOTS)


def heuristic(key: TuningKey) -> TuningParams:
    """The ring for this device's VMEM."""
    return TuningParams(ring_slots(key, device.vmem_bytes(key.device_kind)))
