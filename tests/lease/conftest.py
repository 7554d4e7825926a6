"""Fixtures of tests/support."""

from redis_server import redis_servers, shared_redis

__all__ = ["redis_servers", "shared_redis"]
