"""Fixtures of tests/support."""

from gcs_server import cloud, gcs_process
from redis_server import redis_servers, shared_redis

__all__ = ["cloud", "gcs_process", "redis_servers", "shared_redis"]
