"""Introduce: how this process shows its daemon who it is, and how it makes sure that it is the daemon.

    Unix socket   a *pass* from the socket beside it, where there is one: the kernel vouches for this process's user
    TCP           TLS where COLDSTART_TLS_CA names who signs the daemon's certificate; then COLDSTART_TLS_CERT and
                  COLDSTART_TLS_KEY, or the token in COLDSTART_TOKEN_FILE, say who this is

A token goes over TLS only. Without any of these the daemon treats this process as anybody.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import grpc

from coldstart.config import client_settings
from coldstart.errors import ConfigError

DOOR = ".who"  # server/passes.py: beside the socket
PASS = "coldstart-pass"
MOST_BYTES = 256

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a process has to show over TCP."""

    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None


def access_of(environ: Mapping[str, str] = os.environ) -> Access:
    """By the client's settings. Raises ConfigError."""
    settings = client_settings(environ)
    return Access(settings.tls_ca, settings.tls_cert, settings.tls_key, settings.token_file)


def open_channel(address: str, access: Access, options: Sequence[tuple[str, int]]) -> grpc.Channel:
    """A channel to that address; it connects when it is used. Raises ConfigError for files that can't be read."""
    if address.startswith("unix://"):
        # gRPC reads this as a URI and would decode a % in the path.
        return grpc.insecure_channel("unix:" + quote(address.removeprefix("unix://")), options)
    target = address.removeprefix("tcp://")
    if access.tls_ca is None:
        if access.tls_cert is not None or access.token_file is not None:
            raise ConfigError(
                f"{address}: a certificate or token is shown to a daemon only over TLS; set COLDSTART_TLS_CA to the "
                "file of the authority that signed the daemon's certificate"
            )
        return grpc.insecure_channel(target, options)
    credentials = grpc.ssl_channel_credentials(
        _read("COLDSTART_TLS_CA", access.tls_ca),
        None if access.tls_key is None else _read("COLDSTART_TLS_KEY", access.tls_key),
        None if access.tls_cert is None else _read("COLDSTART_TLS_CERT", access.tls_cert),
    )
    return grpc.secure_channel(target, credentials, options)


def introduction(address: str, access: Access, seconds: float) -> Metadata:
    """What goes with each call. Takes `seconds` at most; nothing where there is nothing to be had.

    Raises:
        ConfigError: the token's file can't be read.
    """
    if not address.startswith("unix://"):
        if access.token_file is None:
            return ()
        token = _read("COLDSTART_TOKEN_FILE", access.token_file).decode(errors="replace").strip()
        return (("authorization", f"Bearer {token}"),)
    with suppress(OSError, UnicodeDecodeError), socket.socket(socket.AF_UNIX) as door:
        door.settimeout(seconds)
        door.connect(address.removeprefix("unix://") + DOOR)
        said = b""
        while not said.endswith(b"\n") and len(said) < MOST_BYTES:
            more = door.recv(MOST_BYTES)
            if not more:
                break
            said += more
        if said.endswith(b"\n") and said.strip():
            return ((PASS, said.decode("ascii").strip()),)
    return ()


def _read(variable: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{variable}={path}: {exc.strerror}; name a file that can be read"
        ) from exc
