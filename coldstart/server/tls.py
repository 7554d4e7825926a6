"""TLS for TCP addresses: the daemon's certificate, and the authority whose certificates clients may show.

The files are looked at when a connection is made, at most once a second; what changed is used from then on. What can't
be read, or doesn't fit, leaves what was there in force.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from coldstart.config import DaemonConfig
from coldstart.errors import ConfigError
from coldstart.trust.watched import Watched


class Certificates:
    """What the daemon shows, as it is on disk now."""

    def __init__(
        self, cert: Path, key: Path, authority: Path | None, trouble: Callable[[str], None]
    ) -> None:
        """Raises ConfigError."""
        self._files = (cert, key, authority)
        # Any of them may change; all are read together.
        self._watched = [
            Watched(path, self._read, trouble=trouble) for path in self._files if path is not None
        ]
        self._seen = self._changes()

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(
            self._read(self._files[0]),
            self._fetch,  # type: ignore[arg-type]  # None is allowed: the stubs don't know
            require_client_authentication=self._files[2] is not None,
        )

    def _changes(self) -> int:
        for watched in self._watched:
            watched.get()
        return sum(watched.changes for watched in self._watched)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each connection, in a thread of its own; None: as before."""
        changes = self._changes()
        if changes == self._seen:
            return None
        try:
            made = self._read(self._files[0])
        except ConfigError:
            return None  # half of a pair was exchanged: the other half comes
        self._seen = changes
        return made

    def _read(self, _: Path) -> grpc.ServerCertificateConfiguration:
        cert, key, authority = self._files
        chain, private = _bytes("tls_cert", cert), _bytes("tls_key", key)
        roots = None if authority is None else _bytes("tls_client_ca", authority)
        _check_pair(cert, chain, key, private)
        return grpc.ssl_server_certificate_configuration([(private, chain)], roots)


def open_certificates(config: DaemonConfig, trouble: Callable[[str], None]) -> Certificates | None:
    """None: the settings name none. Raises ConfigError."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Certificates(config.tls_cert, config.tls_key, config.tls_client_ca, trouble)


def _bytes(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{setting}={path}: {exc.strerror}; name a PEM file") from exc


def _check_pair(cert: Path, chain: bytes, key: Path, private: bytes) -> None:
    """gRPC would take anything, and fail each connection."""
    try:
        shown = x509.load_pem_x509_certificate(chain).public_key()
        held = load_pem_private_key(private, password=None).public_key()
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fits = shown.public_bytes(*form) == held.public_bytes(*form)
    except (ValueError, TypeError) as exc:
        raise ConfigError(
            f"tls_cert={cert}, tls_key={key}: not a certificate and its key in PEM: {exc}"
        ) from exc
    if not fits:
        raise ConfigError(f"tls_cert={cert}: not the certificate of tls_key={key}")
