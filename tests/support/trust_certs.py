"""An authority and certificates, made on the spot, for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs for 127.0.0.1 and for clients; everything as files in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._cert = self._signed(self._name, self._key, authority=True)
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(self._cert.public_bytes(Encoding.PEM))

    def certificate(self, name: str, *, server: bool = False) -> tuple[Path, Path]:
        """Files of a certificate for `name` and of its key. Written by rename, as a mounted secret is."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if server:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        cert = self._signed(_named(name), key, names=names)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        made = []
        for suffix, data in ((".crt", cert.public_bytes(Encoding.PEM)), (".key", pem)):
            new = self.folder / f"new{suffix}"
            new.write_bytes(data)
            made.append(new.rename(self.folder / f"{name}{suffix}"))
        return made[0], made[1]

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        names: list[x509.GeneralName] | None = None,
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
