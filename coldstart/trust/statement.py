"""Statement: what a signature says, to the byte. Pure; no key is touched here.

    signed bytes = "coldstart-signature-1" NUL, then each field in order as
                   uint32 length, name, uint32 length, value     big endian, UTF-8

The fields are the kind of the thing, what identifies it (`subject`), namespace, generation, producer, time, expiry and
key id. So a signature holds for one thing at one place: under another key, namespace or generation the verifier builds
other bytes, and the signature is false. What is stored beside the thing (`Signature.encode`) repeats all of them but
the subject, which the verifier takes from the thing itself.

Way in: `artifact_subject` or `content_subject`, then `Statement`; trust/signer.py makes signatures, trust/verifier.py
checks them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

from coldstart.artifact import MAX_SIGNATURE_BYTES, Header
from coldstart.errors import ArtifactMismatch

DOMAIN = b"coldstart-signature-1\0"
ARTIFACT = "artifact"  # kinds: a signature for one kind is never one for another
ALIAS = "alias"
PLAN_MANIFEST = "plan-manifest"
BUNDLE = "bundle"
VALUE_BYTES = 64  # of an Ed25519 signature

Subject = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """Who vouches for what, where, and for how long."""

    kind: str
    subject: Subject  # what identifies the thing: names and values, in a fixed order
    namespace: str
    generation: int
    producer: str  # who published it, as the signer authenticated it
    signed_unix: int  # seconds, by the signer's clock
    expires_unix: int  # 0: never
    key_id: str

    def encode(self) -> bytes:
        """The bytes that are signed."""
        named = [
            ("kind", self.kind),
            *((f"subject.{name}", value) for name, value in self.subject),
            ("namespace", self.namespace),
            ("generation", str(self.generation)),
            ("producer", self.producer),
            ("signed_unix", str(self.signed_unix)),
            ("expires_unix", str(self.expires_unix)),
            ("key_id", self.key_id),
        ]
        parts = [DOMAIN]
        for text in (text for pair in named for text in pair):
            data = text.encode()
            parts += [len(data).to_bytes(4, "big"), data]
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Signature:
    """A statement without its subject, and the signature over both: what is stored beside the thing."""

    kind: str
    namespace: str
    generation: int
    producer: str
    signed_unix: int
    expires_unix: int
    key_id: str
    value: bytes

    def about(self, subject: Subject) -> Statement:
        """The statement that it makes if it is about that subject."""
        return Statement(
            self.kind,
            subject,
            self.namespace,
            self.generation,
            self.producer,
            self.signed_unix,
            self.expires_unix,
            self.key_id,
        )

    def encode(self) -> bytes:
        """JSON with sorted names and no spaces; the value in base64."""
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        data["value"] = base64.b64encode(self.value).decode()
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def of(statement: Statement, value: bytes) -> Signature:
        """`value` is the signature over `statement.encode()`."""
        return Signature(
            statement.kind,
            statement.namespace,
            statement.generation,
            statement.producer,
            statement.signed_unix,
            statement.expires_unix,
            statement.key_id,
            value,
        )


def decode_signature(data: bytes) -> Signature:
    """Read `Signature.encode`'s bytes: that very encoding and no other spelling.

    Raises:
        ArtifactMismatch: (reason `signature`) it isn't one.
    """
    try:
        if len(data) > MAX_SIGNATURE_BYTES:
            raise ValueError(f"{len(data)} bytes, the most is {MAX_SIGNATURE_BYTES}")
        read = json.loads(data)
        read["value"] = base64.b64decode(read["value"], validate=True)
        signature = Signature(**read)
        for field in fields(Signature):
            wanted = {"str": str, "int": int, "bytes": bytes}[str(field.type)]
            if type(getattr(signature, field.name)) is not wanted:
                raise ValueError(f"{field.name} is no {field.type}")
        if len(signature.value) != VALUE_BYTES or signature.encode() != data:
            raise ValueError("not the canonical encoding of one")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ArtifactMismatch(f"malformed signature: {exc}", reason="signature") from exc
    return signature


def artifact_subject(header: Header) -> Subject:
    """What identifies an artifact: the hash of its header, and of what stands there what a reader relies on most."""
    return (
        ("header", hashlib.sha256(header.encode()).hexdigest()),
        ("digest", header.digest),
        ("key", header.key),
        ("module_digest", header.module_digest),
    )


def content_subject(name: str, content: bytes) -> Subject:
    """What identifies something else: its own name (an alias's raw digest, a plan's id) and the hash of its bytes."""
    return (("name", name), ("content", hashlib.sha256(content).hexdigest()))
