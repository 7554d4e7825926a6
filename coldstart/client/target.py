"""What a program is compiled for: `target_of(devices)`.

Restricted to attributes that a described topology and a live client both have, so that a warm-up machine
without the accelerator and a pod with it agree. Never device ids, never process numbers.

- cpu: an executable may be bound to other devices of the same count (shown for permuted lists too), so partition
  and replica counts suffice; the topology fingerprint differs per process and stays out.
- tpu: a one-device executable checks its own chip's coordinates, so every device's coordinates and core count, in
  order, with the topology's fingerprint (it moves with wrap, host bounds, slices and chip configuration).
- gpu: as JAX does: fingerprint, no device assignment.

That a live TPU gives the same target as a description of it can't be shown without one.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from coldstart.client import jax_internals

MAX_WORDS = 1000  # of what options are said to be
_BUILD = re.compile(r"(cl/\d+)")
_BUILT_ON = re.compile(r"\((\d{9,11})\)")


def compiler_build(platform_version: str) -> str:
    """The compiler's build out of `platform_version`, whose prefix differs between stacks.

    "PJRT C API\\nTFRT TPU7x\\nBuilt on Jun 17 2026 11:08:48 (1781719728) cl/933746096" is
    "cl/933746096 1781719728"; a text without a change list is kept whole.
    """
    build = _BUILD.search(platform_version)
    stamp = _BUILT_ON.search(platform_version)
    if build is None:
        return platform_version
    return f"{build[1]} {stamp[1]}" if stamp else build[1]


def target_of(devices: Sequence[Any], *, partitions: int, replicas: int) -> str:
    """The target component: one line of JSON with sorted names.

    Args:
        devices: in the order of the device assignment, live or described.
    """
    first = devices[0]
    platform = str(first.platform)
    target: dict[str, Any] = {
        "platform": platform,
        "device_kind": str(first.device_kind),
        "partitions": partitions,
        "replicas": replicas,
        "compiler": compiler_build(str(first.client.platform_version)),
        "runtime": jax_internals.jaxlib_build(),
    }
    if platform != "cpu":
        target["topology"] = f"{jax_internals.topology_fingerprint(devices):#018x}"
        if platform != "gpu":
            target["devices"] = [_place(device) for device in devices]
    return json.dumps(target, sort_keys=True)


def _place(device: Any) -> list[int]:
    """Coordinates, core and slice of one device; nothing that is numbered per process."""
    coords = getattr(device, "coords", None)
    if (
        coords is None
    ):  # an accelerator without coordinates: its id is all there is, so nothing is shared across
        return [-1, int(device.id)]
    return [
        *map(int, coords),
        int(device.core_on_chip),
        int(getattr(device, "slice_index", None) or 0),
    ]


# --- libtpu's flags ------------------------------------------------------------------------------

_VARIABLE = "LIBTPU_INIT_ARGS"

# Proven neutral: dropped from the key. JAX itself appends the first on TPU machines and not on others; executables
# with true, false and absent came out byte-identical on two stacks.
NEUTRAL_FLAGS = frozenset({"--xla_tpu_use_enhanced_launch_barrier"})
NEUTRAL_FLAG_PREFIXES = ("--xla_jf_dump_",)


@functools.cache
def _flags_at_install() -> str:
    return os.environ.get(_VARIABLE, "")


def note_flags() -> None:
    """Remember libtpu's flags as they are now: call once, before libtpu loads."""
    _flags_at_install()


def flags_changed() -> bool:
    """True when libtpu's flags changed since `note_flags`: the environment then doesn't say what runs (H9)."""
    return os.environ.get(_VARIABLE, "") != _flags_at_install()


def options_in_words(options: Any) -> str:
    """What compile options were set by, for people: XLA_FLAGS as the environment has it and options by name.

    The options themselves are a message of some hundred fields, of which only the hash is kept.
    """
    flags = [
        token
        for token in os.environ.get("XLA_FLAGS", "").split()
        if token.lstrip("-").partition("=")[0] not in jax_internals.NEUTRAL_DEBUG_OPTIONS
    ]
    named = [
        f"{name}={value}"
        for name, value in options.env_option_overrides
        if name not in jax_internals.NEUTRAL_OVERRIDES
    ]
    words = [f"XLA_FLAGS {' '.join(flags)}" if flags else "", " ".join(named)]
    return "; ".join(filter(None, words))[:MAX_WORDS]


def flags_of(platform: str) -> str:
    """The flags component: libtpu's flags in order, exact duplicates and neutral ones out; "" elsewhere.

    jaxlib's XLA_FLAGS are not here: they are parsed into the compile options, which say what is in force.
    """
    if platform != "tpu":
        return ""
    kept: list[str] = []
    for token in _flags_at_install().split():
        name = token.partition("=")[0]
        if name in NEUTRAL_FLAGS or name.startswith(NEUTRAL_FLAG_PREFIXES) or token in kept:
            continue
        kept.append(token)
    return " ".join(kept)
