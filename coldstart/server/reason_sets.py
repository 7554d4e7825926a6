"""Which reasons a client may give for what."""

from __future__ import annotations

from coldstart.outcomes import Reason

NEGATIVE_REASONS = frozenset(
    (Reason.NEGATIVE_COMPILE, Reason.NEGATIVE_OOM, Reason.NEGATIVE_TIMEOUT, Reason.NEGATIVE_CRASH)
)
# A reader's own trouble with a sound copy: the copy stays for others, this lookup isn't offered it again.
HOST_REASONS = frozenset(
    (
        Reason.CPU_FEATURES,
        Reason.SIGNATURE,  # whom it trusts; what the daemon doesn't is never served
        Reason.CODEC,
        Reason.FORMAT,
        Reason.VERSION,
        Reason.DEVICE_COORDINATES,
        Reason.TIER_DOWN,
        Reason.DEADLINE,
    )
)
REJECT_REASONS = HOST_REASONS | frozenset(
    (
        Reason.CORRUPT,
        Reason.IDENTITY_MISMATCH,
        Reason.KEY_MISMATCH,
        Reason.TARGET_MISMATCH,
        Reason.PARTITIONS,
        Reason.CALLBACKS,
    )
)
