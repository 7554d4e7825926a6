"""RedisPlace: where a Redis is and how to get in, and the client that goes there.

The one file that imports the library. What connects reads the password anew, so a short-lived token in a file may be
replaced at any time.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldstart.errors import ConfigError

try:
    from redis import exceptions as exceptions
    from redis.asyncio import Connection, ConnectionPool, SSLConnection
    from redis.asyncio import Redis as Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.crc import key_slot as key_slot
    from redis.credentials import CredentialProvider
except ImportError as exc:  # an environment without the extra
    raise ConfigError(
        f"redis:// stores need another package ({exc}); install it with: pip install 'coldstart[redis]'"
    ) from exc

MOST_CONNECTIONS = 64  # to one node; commands beyond wait for one, within their deadline


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """Where a Redis is and how to get in."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)  # from the environment
    password_file: Path | None = None  # wins; read at every connect
    tls: bool = False
    ca_file: Path | None = None  # None: the system's authorities
    cert_file: Path | None = None  # of this client, where the server asks for one
    key_file: Path | None = None
    prefix: str = "coldstart"  # of every key and channel
    connect_seconds: float = 1.0
    reply_seconds: float = 2.0  # of a small command

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _Credentials(CredentialProvider):
    """Asked at every connect."""

    def __init__(self, place: RedisPlace) -> None:
        self._place = place

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        place = self._place
        password = place.password
        if place.password_file is not None:
            try:
                password = place.password_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as exc:
                raise exceptions.AuthenticationError(
                    f"cs.password_file={place.password_file} can't be read: {exc}"
                ) from exc
        return (place.username, password) if place.username else (password,)


def open_client(place: RedisPlace) -> Redis:
    """A client whose every detail is said: defaults differ between releases of the library."""
    options: dict[str, Any] = {
        "host": place.host,
        "port": place.port,
        "db": place.db,
        "socket_connect_timeout": place.connect_seconds,
        "socket_timeout": None,  # every call has a deadline of ours
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "max_connections": 2
        * MOST_CONNECTIONS,  # more than there are turns: nobody is ever refused one
        "connection_class": SSLConnection if place.tls else Connection,
    }
    if place.password or place.password_file is not None:
        options["credential_provider"] = _Credentials(place)
    if place.tls:
        options |= {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": _text(place.ca_file),
            "ssl_certfile": _text(place.cert_file),
            "ssl_keyfile": _text(place.key_file),
        }
    return Redis(connection_pool=ConnectionPool(**options))


async def disconnect(client: Redis, *, in_use: bool = True) -> None:
    with contextlib.suppress(exceptions.RedisError, OSError):
        await client.connection_pool.disconnect(inuse_connections=in_use)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
