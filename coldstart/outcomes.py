"""The closed sets: how a lookup ends (`Outcome`) and why (`Reason`).

One lookup is one compile request of one client; it ends with exactly one outcome and one reason and is
counted once, at its end. New reasons are added here, in cache.proto, in the docs and on the dashboard
together; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Outcome(StrEnum):
    """How a lookup ended. Never merged: a miss is known, an error and a timeout are not."""

    HIT = "hit"  # an artifact was loaded, at once or after waiting for somebody's compile
    MISS = "miss"  # certain: nobody has it; this client compiled
    ERROR = "error"  # something broke on the way; this client compiled
    TIMEOUT = "timeout"  # silence; this client compiled
    REFUSED = "refused"  # not shared on purpose; this client compiled


class Reason(StrEnum):
    """Why it ended so. Grouped by the outcomes they go with."""

    # hit
    OK = "ok"
    WAITED = "waited"
    # miss
    COLD = "cold"
    EVICTED = "evicted"
    # error, found by the checks before a load
    CORRUPT = "corrupt"
    IDENTITY_MISMATCH = "identity-mismatch"
    GROUP_MISMATCH = "group-mismatch"
    SIGNATURE = "signature"
    KEY_MISMATCH = "key-mismatch"
    TARGET_MISMATCH = "target-mismatch"
    PARTITIONS = "partitions"
    CPU_FEATURES = "cpu-features"
    CODEC = "codec"
    FORMAT = "format"
    # refused: cannot or may not be shared
    CALLBACKS = "callbacks"
    POINTER = "pointer"
    LATE_FLAGS = "late-flags"
    PGLE = "pgle"
    DEVICE_COORDINATES = "device-coordinates"
    UNSHAREABLE = "unshareable"
    TOO_SMALL = "too-small"
    TOO_LARGE = "too-large"
    QUOTA = "quota"
    ROLE = "role"
    NEGATIVE_COMPILE = "negative-compile"
    NEGATIVE_OOM = "negative-oom"
    NEGATIVE_TIMEOUT = "negative-timeout"
    NEGATIVE_CRASH = "negative-crash"
    MODE_OBSERVE = "mode-observe"
    DISABLED = "disabled"
    VERSION = "version"
    # error or timeout of the service
    TIER_DOWN = "tier-down"
    BREAKER_OPEN = "breaker-open"
    DEADLINE = "deadline"
    LEASE_LOST = "lease-lost"
    DAEMON_ABSENT = "daemon-absent"


# How a lookup ended for which the service could not be asked in full, whoever compiled then.
TROUBLE: Mapping[Reason, Outcome] = MappingProxyType(
    {
        Reason.TIER_DOWN: Outcome.ERROR,
        Reason.BREAKER_OPEN: Outcome.ERROR,
        Reason.DEADLINE: Outcome.TIMEOUT,
    }
)
