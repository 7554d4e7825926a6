"""redis:// and rediss:// (TLS) store URLs.

redis://cache.internal:6379/0?cs.max_value=64MiB&cs.ttl=7d&cs.password_file=/run/secrets/redis
rediss://reader@10.0.0.3:6379?cs.ca_file=/etc/ssl/redis.pem&cs.write=false

cs.max_value       larger artifacts go to other tiers (64MiB)
cs.ttl             gone so long after the last use (7d)
cs.prefix          of every key; two fleets on one Redis have different ones (coldstart)
cs.password_file   read at every connect: a short-lived token may be replaced in it. Else the environment's
                   COLDSTART_REDIS_PASSWORD. Never in the URL, which is shown and logged
cs.ca_file         who signed the server's certificate (the system's authorities)
cs.cert_file, cs.key_file   this daemon's own certificate, where the server asks for one
cs.connect_timeout, cs.timeout   to connect (1s); to answer a small command (2s)
cs.min_compile_seconds   what compiled faster stays on its host, unless a plan names it; 0 is everything (0.5)
cs.write           false: only read

The server is that one, or a cluster that it is a node of. Sentinels aren't asked which server is the master: name a
service or an address that follows the master.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote

from coldstart.store.recorder import Recorder
from coldstart.store.url_options import (
    DEFAULT_MIN_COMPILE_SECONDS,
    MIN_COMPILE_SECONDS,
    Options,
)

if TYPE_CHECKING:  # needs the extra
    from coldstart.store.redis import RedisTier

SCHEMES = ("redis", "rediss")
PASSWORD_VARIABLE = "COLDSTART_REDIS_PASSWORD"
OPTIONS = (
    "cs.max_value",
    "cs.ttl",
    "cs.prefix",
    "cs.password_file",
    "cs.ca_file",
    "cs.cert_file",
    "cs.key_file",
    "cs.connect_timeout",
    "cs.timeout",
    MIN_COMPILE_SECONDS,
    "cs.write",
)


@dataclass(frozen=True, slots=True)
class RedisStore:
    """`redis://host:port/db`; the fields are described above."""

    host: str
    port: int = 6379
    db: int = 0
    username: str = ""
    tls: bool = False
    max_value_bytes: int = 64 << 20
    ttl_seconds: float = 7 * 86400.0
    prefix: str = "coldstart"
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    connect_seconds: float = 1.0
    reply_seconds: float = 2.0
    min_compile_seconds: float = DEFAULT_MIN_COMPILE_SECONDS
    write: bool = True


def parse_redis(url: str, parts: SplitResult) -> RedisStore:
    """Raises ConfigError, which names the part to fix; ValueError for a port that is none."""
    options = Options(url.partition("@")[2] or url, parts.query, known=OPTIONS)
    if parts.password is not None:
        raise options.wrong(
            f": no password in the URL, it would be shown; use cs.password_file=/path or {PASSWORD_VARIABLE}"
        )
    if not parts.hostname:
        raise options.wrong(": names no host; write for instance redis://cache.internal:6379/0")
    db = parts.path.strip("/")
    if not re.fullmatch(r"\d{0,4}", db, re.ASCII):
        raise options.wrong(f": {db!r} is no number of a database; write for instance /0")
    prefix = options.text("cs.prefix", "coldstart")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", prefix):
        raise options.wrong(f": cs.prefix={prefix!r} may have 1 to 64 letters, digits and . _ -")
    cert_file, key_file = options.path("cs.cert_file"), options.path("cs.key_file")
    if (cert_file is None) != (key_file is None):
        raise options.wrong(": cs.cert_file and cs.key_file go together; give both")
    tls = parts.scheme == "rediss"
    ca_file = options.path("cs.ca_file")
    if not tls and (ca_file or cert_file):
        raise options.wrong(": certificates are for TLS; write rediss://")
    return RedisStore(
        host=parts.hostname,
        port=parts.port or 6379,
        db=int(db or 0),
        username=unquote(parts.username or ""),
        tls=tls,
        max_value_bytes=options.size("cs.max_value", 64 << 20, example="64MiB"),
        ttl_seconds=options.seconds("cs.ttl", 7 * 86400.0, example="7d"),
        prefix=prefix,
        password_file=options.path("cs.password_file"),
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
        connect_seconds=options.seconds("cs.connect_timeout", 1.0, example="1s"),
        reply_seconds=options.seconds("cs.timeout", 2.0, example="2s"),
        min_compile_seconds=options.least_compile_seconds(),
        write=options.flag("cs.write", True),
    )


def open_redis(store: RedisStore, recorder: Recorder, environ: Mapping[str, str]) -> RedisTier:
    """The tier; asks nothing of the server yet. Raises ConfigError where the package is missing."""
    from coldstart.redis_link import RedisLink
    from coldstart.redis_place import RedisPlace
    from coldstart.store.redis import RedisTier

    place = RedisPlace(
        host=store.host,
        port=store.port,
        db=store.db,
        username=store.username,
        password=environ.get(PASSWORD_VARIABLE, ""),
        password_file=store.password_file,
        tls=store.tls,
        ca_file=store.ca_file,
        cert_file=store.cert_file,
        key_file=store.key_file,
        prefix=store.prefix,
        connect_seconds=store.connect_seconds,
        reply_seconds=store.reply_seconds,
    )
    link = RedisLink(place, on_retry=lambda outcome: recorder("redis", "retry", outcome, 0.0))
    link.on_change.append(
        lambda words: recorder("redis", "breaker", "open" if words else "closed", 0.0)
    )
    return RedisTier(
        link,
        max_value_bytes=store.max_value_bytes,
        ttl_seconds=store.ttl_seconds,
        min_compile_seconds=store.min_compile_seconds,
        recorder=recorder,
    )
