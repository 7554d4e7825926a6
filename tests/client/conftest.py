"""Fixtures of tests/support/processes.py."""

from processes import compiles, daemon, hook, program

__all__ = ["compiles", "daemon", "hook", "program"]
