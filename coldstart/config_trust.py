"""The daemon's settings about trust: who is believed, and for which place it speaks.

Rows for `config.DAEMON_SETTINGS`, and the fields that they fill. Standard library only, as config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart import config_values as kinds
from coldstart.errors import ConfigError

Row = tuple[str, Callable[[Any], Any], str, str]  # as the fields of config.Setting
TEN_YEARS = 10 * 366 * 86400.0

ROWS: tuple[Row, ...] = (
    (
        "signing_key",
        kinds.path,
        "/etc/coldstart/signer.key",
        "private key that signs what clients of this daemon publish; coldstart keygen makes one",
    ),
    (
        "trusted_keys",
        kinds.path,
        "/etc/coldstart/trusted-keys",
        "public keys, a line each: nothing is handed out that none of them signed; read again when it changes",
    ),
    (
        "revoked",
        kinds.path,
        "/etc/coldstart/revoked",
        "keys, digests and producers that are believed no longer; read again when it changes",
    ),
    (
        "signature_seconds",
        kinds.seconds(0, TEN_YEARS),
        "7776000",
        "how long a signature is good for; 0: for ever",
    ),
    (
        "audit_file",
        kinds.path,
        "/var/log/coldstart/audit.jsonl",
        "lines of the audit go there too, as JSON; without it to the log only",
    ),
    (
        "readers",
        kinds.many(kinds.identity),
        "unix,tls:serving.example",
        "who may look up; without it, whoever can connect",
    ),
    (
        "writers",
        kinds.many(kinds.identity),
        "uid:1000,tls:warm.example",
        "who may publish too; without any of the three lists, whoever can open the Unix socket may do everything",
    ),
    ("admins", kinds.many(kinds.identity), "uid:0", "who may remove what is stored too"),
    (
        "tls_cert",
        kinds.path,
        "/etc/coldstart/tls.crt",
        "certificate for tcp:// addresses; read again when it changes",
    ),
    ("tls_key", kinds.path, "/etc/coldstart/tls.key", "its private key"),
    (
        "tls_client_ca",
        kinds.path,
        "/etc/coldstart/clients-ca.crt",
        "clients of tcp:// addresses must show a certificate that this authority signed",
    ),
    (
        "tokens",
        kinds.path,
        "/etc/coldstart/tokens",
        "lines of NAME and the sha256 of NAME's token; read again when it changes",
    ),
    (
        "insecure",
        kinds.flag,
        "1",
        "listen at tcp:// addresses without TLS: whoever sees the network sees and changes everything",
    ),
    ("namespace", kinds.name, "team-a", "who shares with whom: its artifacts and leases lie apart"),
    (
        "generation",
        kinds.whole(0, 1_000_000),
        "1",
        "a higher one leaves behind all that the namespace holds",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustConfig:
    """The part of `DaemonConfig` that these settings fill."""

    signing_key: Path | None = None
    trusted_keys: Path | None = None
    revoked: Path | None = None
    signature_seconds: float = 0.0
    audit_file: Path | None = None
    readers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False
    namespace: str = ""
    generation: int = 0

    def check_transport(self, listen: tuple[str, ...]) -> None:
        """Raises ConfigError where an address would be open to more than the settings say."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together; give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError(
                f"tls_client_ca={self.tls_client_ca} says nothing without tls_cert and tls_key; give them too"
            )
        if self.tokens is not None and self.tls_cert is None:
            raise ConfigError(
                f"tokens={self.tokens} says nothing without tls_cert and tls_key: a token is sent over TLS only; "
                "give them too"
            )
        tcp = [address for address in listen if address.startswith("tcp://")]
        if tcp and self.tls_cert is None and not self.insecure:
            raise ConfigError(
                f"listen={tcp[0]} is plain TCP: whoever reaches it or sees the network could read and change "
                "everything; give tls_cert and tls_key, or say insecure=1 (--insecure) if that is meant"
            )

    def check_trust(self) -> None:
        """Raises ConfigError where the settings don't fit each other. Files are looked at by who reads them."""
        if self.revoked is not None and self.trusted_keys is None:
            raise ConfigError(
                f"revoked={self.revoked} says nothing without trusted_keys, as nothing is verified; name a file "
                "of public keys too"
            )
        if self.signature_seconds and self.signing_key is None:
            raise ConfigError(
                f"signature_seconds={self.signature_seconds:g} says nothing without signing_key, as nothing is "
                "signed; name a private key too"
            )
