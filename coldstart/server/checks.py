"""What a publisher says, checked against itself: the header field by field, and against the key record.

A header comes off the wire as JSON; everything that a store, a path or a number elsewhere relies on is checked here,
so that nothing behind has to.
"""

from __future__ import annotations

import math
from dataclasses import fields

from coldstart import artifact
from coldstart.artifact import Header
from coldstart.errors import InvalidRequest
from coldstart.identity.key import KeyRecord, is_key, key_of

_HEX = frozenset("0123456789abcdef")


def read_header(body: bytes) -> Header:
    """A header off the wire, with every field of the type and in the range that the store relies on.

    Raises:
        InvalidRequest, ArtifactCorrupt, ArtifactMismatch: it is not a header that can be stored.
    """
    if len(body) > artifact.MAX_HEADER_BYTES:
        raise InvalidRequest(
            f"header is {len(body)} bytes, the limit is {artifact.MAX_HEADER_BYTES}"
        )
    try:
        header = artifact.decode_header(body)
    except RecursionError as exc:
        raise InvalidRequest("header is nested too deep to be one") from exc
    for field in (f for f in fields(Header) if f.init):
        value = getattr(header, field.name)
        if not _has_type(value, str(field.type)):
            raise InvalidRequest(f"header field {field.name} is not {field.type}: {value!r:.80}")
    if header.encode() != body:
        raise InvalidRequest("header is not in its canonical encoding (sorted keys, no spaces)")
    if not is_key(header.key):
        raise InvalidRequest(f"header.key is not a key: {header.key!r:.80}")
    for name in ("digest", "module_digest"):
        text = getattr(header, name)
        if len(text) != 64 or not _HEX.issuperset(text):
            raise InvalidRequest(f"header.{name} is not 64 hex digits: {text!r:.80}")
    if header.codec not in artifact.CODECS:
        raise InvalidRequest(
            f"header.codec is {header.codec!r:.80}, known: {', '.join(artifact.CODECS)}"
        )
    if list(header.cpu_features) != sorted(set(header.cpu_features)):
        raise InvalidRequest("header.cpu_features is not sorted, or names one twice")
    return header


def check_against_record(header: Header, record: KeyRecord) -> None:
    """Raises InvalidRequest where the artifact and the key record are not about the same compile."""
    key = key_of(record)
    if header.key != key:
        raise InvalidRequest(
            f"header.key {header.key[:16]} is not the record's key {key[:16]}; publish under the record's"
        )
    if header.module_digest != record.module_digest:
        raise InvalidRequest(
            f"header.module_digest {header.module_digest[:12]} is not the record's program component "
            f"{record.module_digest[:12]}: another module was compiled"
        )
    if header.target != record["target"].value:
        raise InvalidRequest(
            f"header.target {header.target!r:.80} is not the record's {record['target'].value!r:.80}"
        )


def _has_type(value: object, annotation: str) -> bool:
    if annotation == "str":
        return isinstance(value, str)
    if annotation == "int":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    if annotation == "float":
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and 0 <= value < 1e12
        )
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
