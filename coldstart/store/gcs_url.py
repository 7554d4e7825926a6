"""gs:// store URLs: a bucket of Google Cloud Storage, or of whatever STORAGE_EMULATOR_HOST names.

gs://team-cache/serving?cs.write=false

The path is a prefix; two fleets in one bucket have different ones. Credentials are the host's own, as Google's
libraries find them; they are looked for at the first call, so that a daemon starts without.

cs.limit       a larger artifact is refused (4GiB)
cs.timeout     for a small call with its retries, and for silence within a large one (10s)
cs.required    true: a publish that the bucket can't take is none; false: it is made later (false)
cs.min_compile_seconds   what compiled faster stays on its host, unless a plan names it; 0 is everything (0.5)
cs.write       false: only read
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote

from coldstart.store.breaker import Breaker
from coldstart.store.recorder import Recorder
from coldstart.store.url_options import (
    DEFAULT_MIN_COMPILE_SECONDS,
    MIN_COMPILE_SECONDS,
    Options,
)

if TYPE_CHECKING:  # needs the extra
    from coldstart.bucket import Bucket

SCHEME = "gs"
OPTIONS = ("cs.limit", "cs.timeout", "cs.required", MIN_COMPILE_SECONDS, "cs.write")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9._=+-]+(/[A-Za-z0-9._=+-]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class GcsStore:
    """`gs://bucket/prefix`; the fields are described above."""

    bucket: str
    prefix: str = ""
    limit_bytes: int = 4 << 30
    timeout_seconds: float = 10.0
    required: bool = False
    min_compile_seconds: float = DEFAULT_MIN_COMPILE_SECONDS
    write: bool = True


def parse_gcs(url: str, parts: SplitResult) -> GcsStore:
    """Raises ConfigError, which names the part to fix."""
    options = Options(url, parts.query, known=OPTIONS)
    if not _BUCKET.fullmatch(parts.netloc):
        raise options.wrong(
            f": {parts.netloc!r} names no bucket; write for instance gs://team-cache"
        )
    prefix = unquote(parts.path).strip("/")
    if prefix and (not _PREFIX.fullmatch(prefix) or len(prefix) > 512):
        raise options.wrong(f": {prefix!r} can't be a prefix; letters, digits, / and ._=+- can")
    store = GcsStore(
        bucket=parts.netloc,
        prefix=prefix,
        limit_bytes=options.size("cs.limit", 4 << 30, example="4GiB"),
        timeout_seconds=options.seconds("cs.timeout", 10.0, example="10s"),
        required=options.flag("cs.required", False),
        min_compile_seconds=options.least_compile_seconds(),
        write=options.flag("cs.write", True),
    )
    if store.required and not store.write:
        raise options.wrong(
            ": cs.required=true asks for puts that cs.write=false forbids; drop one"
        )
    return store


def open_bucket(store: GcsStore, recorder: Recorder) -> Bucket:
    """Asks nothing of the server yet. Raises ConfigError where the package is missing."""
    from coldstart.bucket import Bucket, Patience

    patience = Patience(call_seconds=store.timeout_seconds, idle_seconds=store.timeout_seconds)
    return Bucket(
        store.bucket,
        patience=patience,
        on_retry=lambda outcome: recorder("gcs", "retry", outcome, 0.0),
    )


def open_gcs(store: GcsStore, recorder: Recorder) -> Breaker:
    """The tier, behind a breaker. Raises as `open_bucket`."""
    from coldstart.store.gcs import GcsTier

    tier = GcsTier(
        open_bucket(store, recorder),
        store.prefix,
        write=store.write,
        limit_bytes=store.limit_bytes,
        min_compile_seconds=store.min_compile_seconds,
        recorder=recorder,
    )
    return Breaker(tier, recorder=recorder)
