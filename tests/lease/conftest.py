"""Fixtures of tests/support."""

from redis_server import shared_redis

__all__ = ["shared_redis"]
