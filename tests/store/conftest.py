"""Small artifacts and key records for the store's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from gcs_server import cloud, gcs_process, own_cloud  # noqa: F401
from redis_server import redis_server, redis_servers, shared_redis  # noqa: F401
from small_artifacts import make_artifact, make_record

from coldstart.artifact import Artifact
from coldstart.identity.key import KeyRecord
from coldstart.store.disk import DiskTier


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
