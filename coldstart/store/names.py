"""What may become a name in a store: checked before any tier builds a path or a remote name from it."""

from __future__ import annotations

import re

from coldstart.artifact import Header
from coldstart.errors import ArtifactCorrupt, InvalidRequest
from coldstart.identity.key import is_key

MAX_KEY_CHARS = 128

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_key(key: str) -> str:
    """`key`, or InvalidRequest: is_key says its form, and a name must be short and ASCII as well."""
    if not (len(key) <= MAX_KEY_CHARS and key.isascii() and is_key(key)):
        raise InvalidRequest(f"not a key: {key[:80]!r}; a key is <scheme>-<64 hex digits>")
    return key


def check_digest(digest: str) -> str:
    """`digest`, or InvalidRequest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest(f"not a digest: {digest[:80]!r}; a digest is 64 lower-case hex digits")
    return digest


def check_new(header: Header, size_bytes: int) -> None:
    """What every `put` checks before it reads a payload.

    Raises:
        InvalidRequest: key or digest can't be a name. ArtifactCorrupt: the payload has another size.
    """
    check_key(header.key)
    check_digest(header.digest)
    if size_bytes != header.payload_bytes:
        raise ArtifactCorrupt(
            f"payload is {size_bytes} bytes, its header says {header.payload_bytes}"
        )
