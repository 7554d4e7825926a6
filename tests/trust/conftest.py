"""Servers and keys for the tests of trust."""

from __future__ import annotations

from pathlib import Path

import pytest
from gcs_server import cloud, gcs_process  # noqa: F401
from redis_server import redis_servers, shared_redis  # noqa: F401
from trust_keys import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    folder = tmp_path / "keys"
    folder.mkdir()
    return Keys(folder)
