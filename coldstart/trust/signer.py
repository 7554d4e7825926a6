"""Signer: makes signatures. The private key may be a file here, or live where nobody can take it (a KMS)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coldstart.artifact import Header
from coldstart.trust.keys import TrustedKey, public_half, read_private
from coldstart.trust.statement import ARTIFACT, Signature, Statement, Subject, artifact_subject
from coldstart.trust.watched import Watched


class SigningKey(Protocol):
    """One private key, wherever it is."""

    @property
    def id(self) -> str:
        """trust/keys.py: `key_id` of its public half."""
        ...

    async def sign(self, data: bytes) -> bytes:
        """The Ed25519 signature over `data`. Raises TierError where it can't be had now."""
        ...


class Signer(Protocol):
    """Which key signs now."""

    async def current(self) -> SigningKey:
        """The key to sign with. Asked before each signature, so that a rotation needs no restart."""
        ...


@dataclass(frozen=True, slots=True)
class FileKey:
    """A private key in memory."""

    private: Ed25519PrivateKey
    public: TrustedKey

    @property
    def id(self) -> str:
        return self.public.id

    async def sign(self, data: bytes) -> bytes:
        return self.private.sign(data)  # 50 µs: not worth a thread


class FileSigner:
    """Signs with the key of a file, which is read again when it changes."""

    def __init__(self, path: Path, *, trouble: Callable[[str], None] = lambda words: None) -> None:
        """Raises ConfigError where there is no key now."""
        self._key = Watched(path, _file_key, trouble=trouble)

    async def current(self) -> SigningKey:
        return self._key.get()


def _file_key(path: Path) -> FileKey:
    private = read_private(path)
    return FileKey(private, public_half(private, path.stem))


@dataclass(frozen=True, slots=True)
class Seal:
    """How one daemon signs: with which key, for which place, for how long."""

    signer: Signer
    namespace: str = ""
    generation: int = 0
    lives_seconds: float = 0.0  # 0: for ever
    unix_now: Callable[[], float] = time.time

    async def sign(self, kind: str, subject: Subject, producer: str) -> Signature:
        """A signature that says: `producer` published this, here, now. Raises what the signer raises."""
        key = await self.signer.current()
        now = int(self.unix_now())
        expires = now + int(self.lives_seconds) if self.lives_seconds else 0
        statement = Statement(
            kind, subject, self.namespace, self.generation, producer, now, expires, key.id
        )
        return Signature.of(statement, await key.sign(statement.encode()))

    async def sign_header(self, header: Header, producer: str) -> Header:
        """The same header with a signature beside it."""
        signature = await self.sign(ARTIFACT, artifact_subject(header), producer)
        return header.signed(signature.encode())
