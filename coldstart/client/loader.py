"""Loader: from a hit to an executable. Every gate stands between the bytes and the runtime (I3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart import artifact
from coldstart.artifact import Artifact, BytesPayload, Header
from coldstart.client import gates, host, jax_internals, volume
from coldstart.client.jax_internals import CompileRequest
from coldstart.client.lookup import Lookup
from coldstart.errors import ArtifactError
from coldstart.outcomes import Reason
from coldstart.rpc.v1 import cache_pb2 as pb


@dataclass(frozen=True, slots=True)
class Present:
    """Instead of an executable: the program is stored, and nothing here can or wants to load it."""

    key: str
    digest: str
    compile_seconds: float


class BadCopy(Exception):
    """A stored copy that must not be loaded."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DeviceFull(Exception):
    """The device has no room for the executable: not the artifact's fault."""


def take(
    lookup: Lookup,
    request: CompileRequest,
    hit: pb.Hit,
    *,
    root: Path | None,
    fetch: Callable[[pb.FetchRequest, Header], bytes],
    check: Callable[[Header], object] = lambda header: None,
) -> Any:
    """The executable of a hit, or `Present`. Adds what it cost to `lookup.seconds`.

    Args:
        root: where this process sees the daemon's disk; None: bytes come by `fetch`.
        fetch: the bytes from the daemon of the whole artifact that has this header.
        check: raises ArtifactMismatch where its signature isn't to be believed.

    Raises:
        BadCopy: a gate refuses, or the runtime does. DeviceFull.
    """
    try:
        header = artifact.decode_header(hit.header).signed(hit.signature)
        check(header)
        gates.check(header, _expected(lookup, request), host.cpu_features())
        if not lookup.load:
            lookup.seconds["saved"] = header.compile_seconds
            return Present(header.key, header.digest, header.compile_seconds)
        began = time.monotonic()
        found = _read(lookup, hit, header, root, fetch)
        if found.header != header:
            raise ArtifactError("the bytes belong to another header", reason=Reason.CORRUPT)
        data = artifact.decode(found)
        lookup.seconds["fetch"] += time.monotonic() - began
    except ArtifactError as exc:
        raise BadCopy(Reason(exc.reason), str(exc)) from exc
    began = time.monotonic()
    try:
        executable = jax_internals.load(data, request)
    except Exception as exc:
        if "RESOURCE_EXHAUSTED" in str(exc):
            raise DeviceFull(str(exc)) from exc
        raise BadCopy(Reason.FORMAT, f"the runtime can't load it: {exc}") from exc
    lookup.seconds["load"] += time.monotonic() - began
    lookup.seconds["saved"] = header.compile_seconds
    return executable


def _expected(lookup: Lookup, request: CompileRequest) -> gates.Expected:
    identity = lookup.identity
    return gates.Expected(
        key=identity.key,
        module_digest=identity.record.module_digest,
        target=identity.target,
        platform=request.platform,
        partitions=identity.partitions,
        replicas=identity.replicas,
        callbacks=identity.callbacks,
    )


def _read(
    lookup: Lookup,
    hit: pb.Hit,
    header: Header,
    root: Path | None,
    fetch: Callable[[pb.FetchRequest, Header], bytes],
) -> Artifact:
    """The artifact by path where a volume is shared, else by stream. Only its prefix is checked here."""
    if hit.path and root is not None:
        with suppress(OSError):  # evicted meanwhile, or not visible: the stream knows better
            return artifact.open_file(volume.inside(root, hit.path))
    data = fetch(
        pb.FetchRequest(lookup_id=lookup.id, key=lookup.identity.key, digest=header.digest), header
    )
    found, offset = artifact.read_header(data)
    return Artifact(found, BytesPayload(data[offset:]))
