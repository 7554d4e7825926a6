"""Coldstart: a compilation cache and cold-start service for JAX programs.

    import coldstart
    coldstart.install("unix:///run/coldstart/coldstart.sock")   # or set COLDSTART_ADDRESS and change nothing
    ...
    print(coldstart.report())

Everything that needs JAX is imported when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coldstart.client.report import Report

__all__ = ["__version__", "flush", "install", "report", "uninstall"]
__version__ = "0.1.0"


def install(
    address: str | None = None, *, mode: str | None = None, strict: bool | None = None
) -> bool:
    """Use the cache in this process, from the next compile on.

    Args:
        address: the daemon's, as `unix:///path` or `tcp://host:port`. Default: COLDSTART_ADDRESS, else the line in
            /etc/coldstart/address.
        mode: observe, exact or canonical. Default: COLDSTART_MODE.
        strict: raise where the hook would fall back to an ordinary compile. Default: COLDSTART_STRICT.

    Returns:
        False where it stays inactive (no address, disabled, a JAX without the seam; a warning says which).

    Raises:
        ConfigError: an address or mode given here that can't be used.
    """
    import os
    from dataclasses import replace

    from coldstart.client import jax_hook
    from coldstart.config import client_settings

    environ = dict(os.environ)
    if address is not None:
        environ["COLDSTART_ADDRESS"] = address
    if mode is not None:
        environ["COLDSTART_MODE"] = mode
    settings = client_settings(environ)
    if strict is not None:
        settings = replace(settings, strict=strict)
    return jax_hook.install(settings) is not None


def uninstall() -> None:
    """Take the hook out again; what was compiled is published first."""
    from coldstart.client import jax_hook

    jax_hook.uninstall()


def report() -> Report | None:
    """What the cache did for this process so far; None where the hook is not installed."""
    from coldstart.client import jax_hook

    hook = jax_hook.installed()
    return hook.report() if hook is not None else None


def flush(seconds: float = 60.0) -> bool:
    """Wait until everything compiled here is published. False when time ran out or the daemon is gone."""
    from coldstart.client import jax_hook

    hook = jax_hook.installed()
    return hook.flush(seconds) if hook is not None else True
