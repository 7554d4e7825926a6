"""Module dumps on disk: text of a lowered module → its descriptor and the digest of its canonical module.

What `coldstart explain FILE FILE` reads: `lowered.as_text()`, or a recording. No daemon: the client library holds the
same rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart.client import jax_internals, jax_module, normal_form
from coldstart.client.jax_internals import ir
from coldstart.errors import InvalidDescriptor, InvalidRequest
from coldstart.identity.canonical import canonicalize
from coldstart.identity.descriptor import GraphDescriptor

ELIDED = "__elided__"


@dataclass(frozen=True, slots=True)
class Dump:
    """One module, read."""

    descriptor: GraphDescriptor
    program_digest: str  # of the canonical module: a key's program component
    notes: tuple[str, ...]  # what was left out of the hash, or why nothing was rewritten


def read(path: Path, rules_off: Iterable[str] = ()) -> Dump:
    """Raises InvalidRequest for a file that is no module's text, InvalidDescriptor for one that can't be described."""
    try:
        text = path.read_text()
    except OSError as exc:
        raise InvalidRequest(f"{path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(
            f"{path} is not text; dump a module with lowered.as_text(), not its bytecode"
        ) from exc
    if ELIDED in text:
        raise InvalidRequest(
            f"{path} leaves out large constants ({ELIDED}), so it does not say which program it is; "
            "print it without a limit on elements"
        )
    if not text.strip():
        raise InvalidRequest(f"{path} is empty; dump a module with lowered.as_text()")
    try:
        module = jax_internals.parse_module(text)
    except ValueError as exc:
        raise InvalidRequest(f"{path} is not the text of a module: {exc}") from exc
    off = tuple(rules_off)
    try:
        descriptor = jax_module.describe(module)
    except InvalidDescriptor as exc:
        raise InvalidDescriptor(f"{path} can't be described: {exc}") from exc
    clone, notes = jax_internals.clone(module), []
    try:
        jax_module.apply_rewrites(clone, canonicalize(descriptor, off).rewrites)
    except InvalidDescriptor as exc:
        clone = jax_internals.clone(module)
        notes.append(f"not rewritten, the module refuses it: {exc}")
    hashed, left_out = normal_form.normal_form(
        jax_internals.clone(clone), one_device=_devices(module) == 1, rules_off=off
    )
    notes.extend(f"left out: {note}" for note in left_out)
    return Dump(descriptor, hashlib.sha256(hashed).hexdigest(), tuple(notes))


def _devices(module: Any) -> int:
    """Partitions times replicas, as the module says."""
    counted = 1
    for name in ("mhlo.num_partitions", "mhlo.num_replicas"):
        if name in module.operation.attributes:
            counted *= int(ir.IntegerAttr(module.operation.attributes[name]).value)
    return counted
