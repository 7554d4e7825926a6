"""Fixtures of tests/support."""

from groups import daemons
from processes import compiles, daemon, hook, program

__all__ = ["compiles", "daemon", "daemons", "hook", "program"]
