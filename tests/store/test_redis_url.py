"""redis:// URLs: what is understood, that every mistake is named with its cure, and that no secret is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.config import known_variables, unknown_settings
from coldstart.errors import ConfigError
from coldstart.redis_place import RedisPlace
from coldstart.store.recorder import ignore
from coldstart.store.redis_url import PASSWORD_VARIABLE, RedisStore, open_redis
from coldstart.store.urls import open_store, parse_store, redis_of


@pytest.mark.parametrize(
    "url, store",
    [
        ("redis://cache", RedisStore("cache")),
        ("redis://cache:6380/3", RedisStore("cache", 6380, 3)),
        ("redis://[::1]:6380", RedisStore("::1", 6380)),
        (
            "redis://reader@cache?cs.write=false",
            RedisStore("cache", username="reader", write=False),
        ),
        (
            "redis://cache?cs.max_value=8MiB&cs.ttl=12h&cs.prefix=team-a",
            RedisStore("cache", max_value_bytes=8 << 20, ttl_seconds=43200, prefix="team-a"),
        ),
        (
            "rediss://cache?cs.ca_file=/c&cs.cert_file=/d&cs.key_file=/e&cs.password_file=/p",
            RedisStore(
                "cache",
                tls=True,
                ca_file=Path("/c"),
                cert_file=Path("/d"),
                key_file=Path("/e"),
                password_file=Path("/p"),
            ),
        ),
        (
            "redis://cache?cs.timeout=500ms&cs.connect_timeout=2s",
            RedisStore("cache", reply_seconds=0.5, connect_seconds=2),
        ),
    ],
)
def test_what_is_understood(url: str, store: RedisStore) -> None:
    assert parse_store(url) == store


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis://", "names no host"),
        ("redis:///0", "names no host"),
        ("redis://cache:port", "not a URL"),
        ("redis://cache/db", "'db' is no number of a database"),
        ("redis://cache?cs.limit=1GiB", "unknown option 'cs.limit'; known here: cs.max_value"),
        ("redis://cache?cs.max_value=0", "would hold nothing"),
        ("redis://cache?cs.ttl=7", "write for instance 7d"),
        ("redis://cache?cs.ttl=0s", "must be more than 0"),
        ("redis://cache?cs.prefix=a{b}", "cs.prefix"),
        ("redis://cache?cs.password_file=secret", "absolute path"),
        ("redis://cache?cs.ca_file=/c", "write rediss://"),
        ("rediss://cache?cs.cert_file=/c", "give both"),
        ("redis://cache#1", "%23"),
    ],
)
def test_every_mistake_is_named(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_store(url)
    assert words in str(caught.value)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_store("redis://user:Xq-secret@cache")
    assert "cs.password_file" in str(caught.value) and PASSWORD_VARIABLE in str(caught.value)
    assert "Xq-secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_store("redis://user:Xq-secret@cache:port")
    assert "Xq-secret" not in str(caught.value)
    assert "Xq-secret" not in repr(RedisPlace(password="Xq-secret"))


def test_the_password_may_stand_in_the_environment() -> None:
    assert PASSWORD_VARIABLE in known_variables()
    assert not unknown_settings({PASSWORD_VARIABLE: "x"})
    tier = open_redis(RedisStore("cache"), ignore, {PASSWORD_VARIABLE: "Xq"})
    assert tier.link.place.password == "Xq"


def test_one_daemon_uses_one_redis() -> None:
    with pytest.raises(ConfigError, match="one daemon uses one Redis"):
        open_store(["redis://one", "redis://two"])
    assert redis_of(open_store(["memory://", "redis://one?cs.write=false"])) is not None
    assert redis_of(open_store(["memory://"])) is None


def test_without_the_package_the_message_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from coldstart.errors import ConfigError\n"
        "from coldstart.store.urls import open_store, parse_store\n"
        "parse_store('redis://cache')\n"
        "try: open_store(['redis://cache'])\n"
        "except ConfigError as exc: print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'coldstart[redis]'" in done.stdout
