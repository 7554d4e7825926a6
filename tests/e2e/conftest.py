"""Fixtures of tests/support."""

from groups import daemons
from processes import compiles, daemon, hook, program
from redis_server import redis_server, redis_servers

__all__ = ["compiles", "daemon", "daemons", "hook", "program", "redis_server", "redis_servers"]
