"""Small artifacts and key records for the store's tests."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from gcs_server import cloud, gcs_process, own_cloud  # noqa: F401
from redis_server import redis_server, redis_servers, shared_redis  # noqa: F401

from coldstart import artifact
from coldstart.artifact import Artifact
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.store.disk import DiskTier


def make_record(word: str) -> KeyRecord:
    program = hashlib.sha256(word.encode()).hexdigest()
    values = {
        "program": program,
        "options": "o",
        "target": "cpu:16",
        "flags": "",
        "callbacks": "0",
    }
    return KeyRecord(
        tuple(Component(name, value) for name, value in values.items()), program_name=word
    )


def make_artifact(word: str, content: bytes = b"code", **about: object) -> Artifact:
    record = make_record(word)
    fields: dict[str, object] = {
        "key": key_of(record),
        "module_digest": record.module_digest,
        "platform": "cpu",
        "target": "cpu:16",
        "partitions": 16,
        "replicas": 1,
        "callbacks": 0,
        "program_name": word,
    }
    return artifact.make(content, codec="raw", **(fields | about))


@pytest.fixture
def new_artifact() -> Callable[..., Artifact]:
    """word, content, header fields -> artifact; the key depends on the word alone."""
    return make_artifact


@pytest.fixture
def new_record() -> Callable[[str], KeyRecord]:
    """word -> the key record of that word's artifacts."""
    return make_record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def disk(root: Path) -> AsyncIterator[DiskTier]:
    made = DiskTier(root)
    yield made
    await made.close()
