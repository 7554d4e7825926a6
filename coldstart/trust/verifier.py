"""Verifier: is this what somebody trusted signed, for this place? Asked before anything is handed out or loaded.

A thing that was found good is remembered with its signature, so that the next look costs a dictionary's and not
Ed25519's 0.1 ms. What may change (keys, revocations, the time) is looked at every time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coldstart.artifact import Header
from coldstart.errors import ArtifactMismatch
from coldstart.trust.keys import Revoked, TrustedKey, read_revoked, read_trusted
from coldstart.trust.statement import (
    ARTIFACT,
    Signature,
    Subject,
    artifact_subject,
    decode_signature,
)
from coldstart.trust.watched import LOOK_SECONDS, Watched

REMEMBERED = 16_384


@dataclass(frozen=True, slots=True)
class _Sound:
    """A signature that is true, whatever else speaks against it."""

    signature: Signature
    key: TrustedKey


class Verifier:
    """Checks signatures for one namespace and generation. Thread-safe: what two threads both check, both find."""

    def __init__(
        self,
        trusted: Path,
        revoked: Path | None = None,
        *,
        namespace: str = "",
        generation: int | None = 0,
        trouble: Callable[[str], None] = lambda words: None,
        unix_now: Callable[[], float] = time.time,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`generation` None: any; for who can't know it.

        Raises:
            ConfigError: names the setting whose file can't be used.
        """
        self._trusted = Watched(trusted, read_trusted, trouble=trouble, look_seconds=look_seconds)
        self._revoked = None
        if revoked is not None:
            self._revoked = Watched(
                revoked, read_revoked, trouble=trouble, look_seconds=look_seconds
            )
        self._namespace = namespace
        self._generation = generation
        self._unix_now = unix_now
        self._lock = threading.Lock()  # writers of `_sound`; readers take none
        self._sound: OrderedDict[tuple[str, Subject | bytes, bytes], _Sound] = OrderedDict()

    @property
    def keys(self) -> dict[str, TrustedKey]:
        """Those that are trusted now, by id."""
        return self._trusted.get()

    def why_not(self, header: Header) -> str:
        """Why an artifact's header with its signature must not be believed; "": it may."""
        try:
            self.check_header(header)
        except ArtifactMismatch as exc:
            return str(exc)
        return ""

    def check_header(self, header: Header) -> Signature:
        """What stands beside the header, if it is to be believed.

        Raises:
            ArtifactMismatch: (reason `signature`) it is not.
        """
        # Its own bytes are the quickest name for it; they hold all that the subject holds.
        return self._check(
            ARTIFACT,
            header.encode(),
            lambda: artifact_subject(header),
            header.signature,
            header.digest,
        )

    def check(self, kind: str, subject: Subject, signature: bytes) -> Signature:
        """As `check_header`, for anything that was signed."""
        return self._check(kind, subject, lambda: subject, signature, "")

    def _check(
        self,
        kind: str,
        name: Subject | bytes,
        subject: Callable[[], Subject],
        signature: bytes,
        digest: str,
    ) -> Signature:
        if not signature:
            raise _refusal("unsigned")
        trusted = self._trusted.get()
        place = (kind, name, signature)
        sound = self._sound.get(place)
        if sound is None or trusted.get(sound.key.id) != sound.key:
            sound = _verified(kind, subject(), signature, trusted)
            with self._lock:
                self._sound[place] = sound
                if len(self._sound) > REMEMBERED:
                    self._sound.popitem(last=False)
        self._check_place(sound.signature)
        self._check_time(sound)
        self._check_revoked(sound.signature, digest)
        return sound.signature

    def _check_place(self, signature: Signature) -> None:
        if signature.namespace != self._namespace:
            raise _refusal(
                f"signed for namespace {signature.namespace!r}, this is {self._namespace!r}"
            )
        if self._generation not in (None, signature.generation):
            raise _refusal(
                f"signed for generation {signature.generation}, this is {self._generation}"
            )

    def _check_time(self, sound: _Sound) -> None:
        now = self._unix_now()
        if sound.signature.expires_unix and now >= sound.signature.expires_unix:
            raise _refusal(f"expired {_ago(now - sound.signature.expires_unix)}")
        if sound.key.until_unix and now >= sound.key.until_unix:
            raise _refusal(f"key {sound.key.id} ({sound.key.name}) is trusted no longer")

    def _check_revoked(self, signature: Signature, digest: str) -> None:
        revoked = self._revoked.get() if self._revoked is not None else Revoked()
        if signature.key_id in revoked.keys:
            raise _refusal(f"key {signature.key_id} is revoked")
        if digest and digest in revoked.digests:
            raise _refusal(f"digest {digest[:12]} is revoked")
        if signature.producer in revoked.producers:
            raise _refusal(f"producer {signature.producer} is revoked")


def _verified(kind: str, subject: Subject, data: bytes, trusted: dict[str, TrustedKey]) -> _Sound:
    signature = decode_signature(data)
    if signature.kind != kind:
        raise _refusal(f"signed as {signature.kind[:40]!r}, not as {kind}")
    key = trusted.get(signature.key_id)
    if key is None:
        raise _refusal(f"foreign: key {signature.key_id[:40]} is not trusted here")
    if not key.verifies(signature.value, signature.about(subject).encode()):
        raise _refusal(f"forged: not what key {key.id} ({key.name}) signed")
    return _Sound(signature, key)


def _refusal(why: str) -> ArtifactMismatch:
    return ArtifactMismatch(why, reason="signature")


def _ago(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days ago" if seconds > 86400 else f"{seconds:.0f} s ago"
