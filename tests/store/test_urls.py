"""Store URLs: what is understood, and that every mistake is named with its cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.artifact import Artifact
from coldstart.errors import ConfigError, TierError
from coldstart.store.gcs_url import GcsStore
from coldstart.store.memory import MemoryTier
from coldstart.store.url_options import parse_seconds, parse_size
from coldstart.store.urls import (
    DiskStore,
    MemoryStore,
    disk_of,
    open_store,
    parse_store,
)


@pytest.mark.parametrize(
    "url, store",
    [
        ("disk:///var/cache", DiskStore(Path("/var/cache"))),
        ("disk:///a/b%20c%23d", DiskStore(Path("/a/b c#d"))),
        ("disk:///d?cs.limit=20GiB", DiskStore(Path("/d"), limit_bytes=20 << 30)),
        ("disk:///d?cs.write=false&cs.limit=5", DiskStore(Path("/d"), 5, write=False)),
        ("gs://bucket", GcsStore("bucket")),
        ("gs://bucket/a/b/?cs.write=false", GcsStore("bucket", "a/b", write=False)),
        (
            "gs://b.x-1_y/a%3Db?cs.limit=1GiB&cs.timeout=500ms&cs.required=true",
            GcsStore("b.x-1_y", "a=b", 1 << 30, 0.5, required=True),
        ),
        ("memory://", MemoryStore()),
        ("memory:", MemoryStore()),
        ("memory://?cs.limit=1.5MiB&cs.write=true", MemoryStore(limit_bytes=3 << 19)),
    ],
)
def test_what_is_understood(url: str, store: object) -> None:
    assert parse_store(url) == store


@pytest.mark.parametrize(
    "url, words",
    [
        ("gs://", "'' names no bucket; write for instance gs://team-cache"),
        ("gs://Bucket", "'Bucket' names no bucket"),
        ("gs://me@bucket", "names no bucket"),
        ("gs://bucket/a/../%5Cb", "can't be a prefix"),
        ("gs://bucket/a//b", "can't be a prefix"),
        ("gs://bucket?cs.ttl=7d", "unknown option 'cs.ttl'; known here: cs.limit, cs.timeout"),
        ("gs://bucket?cs.required=true&cs.write=false", "drop one"),
        ("gs://bucket#x", "'#' begins a fragment"),
        ("s3://bucket", "unknown kind 's3'"),
        ("/var/cache", "unknown kind '/var/cache'; write for instance disk:///dir"),
        ("", "unknown kind ''"),
        ("disk://relative/dir", "absolute, with three slashes"),
        ("disk:relative", "absolute"),
        ("disk://", "absolute"),
        ("disk:///d?cs.limt=1GiB", "unknown option 'cs.limt'; known here: cs.limit, cs.write"),
        ("disk:///d?limit=1GiB", "unknown option 'limit'"),
        ("disk:///d?cs.limit", "not a URL"),
        ("disk:///d?cs.limit=", "not a size"),
        ("disk:///d?cs.limit=many", "cs.limit='many' is not a size; write for instance 20GiB"),
        ("disk:///d?cs.limit=-1", "not a size"),
        ("disk:///d?cs.limit=0", "cs.limit=0 would hold nothing"),
        ("disk:///d?cs.limit=1GiB&cs.limit=2GiB", "'cs.limit' is given twice"),
        ("disk:///d?cs.write=no", "write cs.write=true or cs.write=false"),
        ("disk:///d#x", "%23"),
        ("disk://[::1/d", "not a URL"),
        ("memory://host", "write memory://"),
        ("memory:///dir", "write memory://"),
    ],
)
def test_every_mistake_is_named(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_store(url)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text, size",
    [
        ("0", 0),
        ("12", 12),
        ("12B", 12),
        ("20GiB", 20 << 30),
        ("500 MB", 500_000_000),
        ("1kib", 1024),
        ("0.5KiB", 512),
        (" 3TiB ", 3 << 40),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.text(max_size=12))
def test_a_size_is_a_number_or_a_config_error(text: str) -> None:
    try:
        assert parse_size(text, setting="x") >= 0
    except ConfigError as exc:
        assert "x=" in str(exc)


async def test_open_store_composes_in_order(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    heard: list[tuple[str, str, str]] = []
    tier = open_store(
        ["memory://", f"disk://{tmp_path}/s?cs.limit=1MiB"],
        recorder=lambda tier, op, outcome, seconds: heard.append((tier, op, outcome)),
    )
    made = new_artifact("a")
    await tier.put(made, None)
    assert [event for event in heard if event[1] == "put"] == [
        ("memory", "put", "ok"),
        ("disk", "put", "ok"),
    ]
    disk = disk_of(tier)
    assert disk is not None and disk.root == tmp_path / "s" and disk.limit_bytes == 1 << 20
    assert await disk.find(made.header.key) == (made.header,)
    await tier.close()


async def test_one_url_is_one_tier(tmp_path: Path, new_artifact: Callable[..., Artifact]) -> None:
    tier = open_store(["memory://?cs.write=false"])
    assert (tier.name, tier.writable, disk_of(tier)) == ("memory", False, None)
    with pytest.raises(TierError, match=r"cs\.write=false"):
        await tier.put(new_artifact("a"), None)
    assert disk_of(MemoryTier()) is None


def test_a_store_that_cannot_be_opened_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"disk:///.*file/s"):
        open_store([f"disk://{tmp_path}/file/s"])
    with pytest.raises(ConfigError, match="named twice"):
        open_store([f"disk://{tmp_path}/s"] * 2)
    with pytest.raises(ConfigError, match="at least one store"):
        open_store([])


@pytest.mark.parametrize(
    "text, seconds", [("7d", 604800), ("1.5h", 5400), ("90s", 90), ("250ms", 0.25)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "7 days", "-1s", "s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="write for instance 7d"):
        parse_seconds(text, setting="cs.ttl")
