"""Keys: Ed25519 key files, made, read and named.

    NAME.key   the private half: PEM (PKCS 8), for its owner only
    NAME.pub   the public half: one line of a file of trusted keys

        ed25519 <base64 of 32 bytes> <name> [until=YYYY-MM-DD]     # what follows a # is for people

A file of trusted keys holds such lines; two keys during a rotation are two lines. `until` ends the trust in a key, UTC,
at the beginning of that day. A key's id is 16 hex digits of the sha256 of its public half.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from coldstart.errors import ConfigError

KIND = "ed25519"
RAW_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True)
class TrustedKey:
    """A public key whose signatures are believed."""

    raw: bytes  # 32 bytes
    name: str  # for people
    until_unix: float = 0.0  # believed before that moment only; 0: for ever

    @cached_property
    def id(self) -> str:
        return key_id(self.raw)

    @cached_property
    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)

    def verifies(self, value: bytes, data: bytes) -> bool:
        """True if `value` is this key's signature over `data`."""
        try:
            self._key.verify(value, data)
        except InvalidSignature:
            return False
        return True

    def line(self) -> str:
        """As it stands in a file of trusted keys."""
        return f"{KIND} {base64.b64encode(self.raw).decode()} {self.name}"


def key_id(raw: bytes) -> str:
    """The id of a public key."""
    return hashlib.sha256(raw).hexdigest()[:16]


def public_half(private: Ed25519PrivateKey, name: str) -> TrustedKey:
    raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return TrustedKey(raw, name)


def generate(folder: Path, name: str) -> tuple[Path, Path, TrustedKey]:
    """A new pair in `folder`: the private file (mode 0600), the public one, and the public half. Replaces nothing.

    Raises:
        ConfigError: the name is no name, one of the files is there, or they can't be written.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"name={name!r}: letters, digits and . _ @ - are fine; for instance signer-2026"
        )
    private = Ed25519PrivateKey.generate()
    public = public_half(private, name)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, data, mode in (
            (".key", pem, 0o600),
            (".pub", f"{public.line()}\n".encode(), 0o644),
        ):
            path = folder / f"{name}{suffix}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            made.append(path)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
    except OSError as exc:
        for path in made:
            with suppress(OSError):
                path.unlink()
        there = isinstance(exc, FileExistsError)
        words = "is there already; give the new key another name" if there else exc.strerror
        raise ConfigError(f"{exc.filename or folder}: {words}") from exc
    return made[0], made[1], public


def read_private(path: Path, setting: str = "signing_key") -> Ed25519PrivateKey:
    """Raises ConfigError, which names the setting, where the file holds no private key that can be used here."""
    try:
        pem = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{setting}={path}: {exc.strerror}; make one with: coldstart keygen NAME"
        ) from exc
    try:
        private = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigError(
            f"{setting}={path}: not a private key in PEM without a password; make one with: coldstart keygen NAME"
        ) from exc
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigError(
            f"{setting}={path}: not an Ed25519 key; make one with: coldstart keygen NAME"
        )
    return private


def read_trusted(path: Path, setting: str = "trusted_keys") -> dict[str, TrustedKey]:
    """The keys of a file, by id. Raises ConfigError, which names the setting and the line."""
    keys: dict[str, TrustedKey] = {}
    for number, line in _lines(path, setting):
        try:
            key = _trusted(line.split())
        except ValueError as exc:
            raise ConfigError(
                f"{setting}={path}: line {number}: {exc}; a line that works is in the NAME.pub of coldstart keygen"
            ) from exc
        keys[key.id] = key
    if not keys:
        raise ConfigError(
            f"{setting}={path}: holds no key, so nothing could be loaded; unset it, or put a NAME.pub there"
        )
    return keys


def _trusted(words: list[str]) -> TrustedKey:
    if not 3 <= len(words) <= 4 or words[0] != KIND:
        raise ValueError(f"wants `{KIND} BASE64 NAME [until=YYYY-MM-DD]`")
    raw = base64.b64decode(words[1], validate=True)
    if len(raw) != RAW_BYTES:
        raise ValueError(f"a key has {RAW_BYTES} bytes, this one {len(raw)}")
    until = 0.0
    if len(words) == 4:
        name, _, day = words[3].partition("=")
        if name != "until":
            raise ValueError(f"{words[3]!r} is not until=YYYY-MM-DD")
        until = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    return TrustedKey(raw, words[2], until)


@dataclass(frozen=True, slots=True)
class Revoked:
    """What is not believed any more, whoever signed it."""

    keys: frozenset[str] = frozenset()  # ids
    digests: frozenset[str] = frozenset()
    producers: frozenset[str] = frozenset()


def read_revoked(path: Path, setting: str = "revoked") -> Revoked:
    """A revocation list: a line each of `key ID`, `digest DIGEST` or `producer IDENTITY`. Raises ConfigError."""
    found: dict[str, set[str]] = {"key": set(), "digest": set(), "producer": set()}
    for number, line in _lines(path, setting):
        kind, _, value = line.partition(" ")
        if kind not in found or not value.strip():
            raise ConfigError(
                f"{setting}={path}: line {number}: {line[:60]!r} is none of `key ID`, `digest DIGEST`, "
                "`producer IDENTITY`"
            )
        found[kind].add(value.strip())
    return Revoked(*(frozenset(found[kind]) for kind in ("key", "digest", "producer")))


def _lines(path: Path, setting: str) -> list[tuple[int, str]]:
    """Lines that say something, with their numbers."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not a text file"
        raise ConfigError(f"{setting}={path}: {why}; name a file that can be read") from exc
    lines = [(n, line.partition("#")[0].strip()) for n, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in lines if line]
