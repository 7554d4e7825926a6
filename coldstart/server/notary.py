"""Notary: signs what this daemon takes in, and says what it may hand out. Policy; the cryptography is in trust/.

signing_key    what clients publish is signed; without one, and with trusted keys, this daemon only reads
trusted_keys   tiers hand out what one of these signed, for this namespace and generation, and nothing else
neither        as if there were no signatures: whoever can write a store is believed
"""

from __future__ import annotations

from coldstart.artifact import Header
from coldstart.config import DaemonConfig
from coldstart.errors import ConfigError, NotAllowed
from coldstart.server.audit import Audit
from coldstart.store.verified import Gate
from coldstart.trust.signer import FileSigner, Seal
from coldstart.trust.statement import content_subject
from coldstart.trust.verifier import Verifier


class Notary:
    """One daemon's signatures."""

    def __init__(
        self, audit: Audit, seal: Seal | None = None, verifier: Verifier | None = None
    ) -> None:
        self.audit = audit
        self._seal = seal
        self._verifier = verifier

    @property
    def gate(self) -> Gate | None:
        """For the tiers; None: everything passes."""
        return None if self._verifier is None else self._admit

    @property
    def only_reads(self) -> str:
        """Why nothing can be published through this daemon; "": it can."""
        if self._verifier is not None and self._seal is None:
            return "this daemon has trusted_keys and no signing_key, so it only reads"
        return ""

    async def sign(self, header: Header, producer: str) -> Header:
        """The header as it is stored.

        Raises:
            NotAllowed: nobody would believe what this daemon signs.
        """
        if self.only_reads:
            raise NotAllowed(self.only_reads)
        if self._seal is None:
            return header
        signed = await self._seal.sign_header(header, producer)
        why = "" if self._verifier is None else self._verifier.why_not(signed)
        if why:
            raise NotAllowed(f"what this daemon signs is not believed here: {why}")
        return signed

    async def sign_content(self, kind: str, name: str, content: bytes, producer: str) -> bytes:
        """What to keep beside a plan manifest, a bundle's index or an alias; b"" where this daemon signs nothing.

        Args:
            kind: one of trust/statement.py's. name: what it is found by, so that it can't be moved.

        Raises:
            NotAllowed: nobody would believe it. TierError: the key can't be asked now.
        """
        if self.only_reads:
            raise NotAllowed(self.only_reads)
        if self._seal is None:
            return b""
        signature = await self._seal.sign(kind, content_subject(name, content), producer)
        return signature.encode()

    def check_content(self, kind: str, name: str, content: bytes, signature: bytes) -> None:
        """Raises ArtifactMismatch (reason `signature`) where that must not be believed. Without keys all is."""
        if self._verifier is not None:
            self._verifier.check(kind, content_subject(name, content), signature)

    def _admit(self, tier: str, header: Header) -> str:
        assert self._verifier is not None
        why = self._verifier.why_not(header)
        if why:
            self.audit.refused(tier, header, why)
        return why


async def open_notary(config: DaemonConfig, audit: Audit) -> Notary:
    """By the settings. Raises ConfigError, which names the one to fix."""
    seal = verifier = None
    if config.signing_key is not None:
        seal = Seal(
            FileSigner(config.signing_key, trouble=audit.trouble),
            config.namespace,
            config.generation,
            config.signature_seconds,
        )
    if config.trusted_keys is not None:
        verifier = Verifier(
            config.trusted_keys,
            config.revoked,
            namespace=config.namespace,
            generation=config.generation,
            trouble=audit.trouble,
        )
    if seal is not None and verifier is not None:
        key = await seal.signer.current()
        if key.id not in verifier.keys:
            raise ConfigError(
                f"signing_key={config.signing_key}: trusted_keys={config.trusted_keys} doesn't hold its public "
                f"half ({key.id}), so nothing that it signs could be loaded; add the line of its .pub file there"
            )
    return Notary(audit, seal, verifier)
