"""What JAX loads through the entry point group `jax_plugins`, in every process of an environment that has us.

With no address set it imports nothing else of ours: one look at the environment, one stat of a file.
"""

from __future__ import annotations

import os

ADDRESS_FILE = (
    "/etc/coldstart/address"  # reaches processes whose environment a stack doesn't forward
)


def initialize() -> None:
    """Install the hook if an address is set. What it raises, JAX logs and forgets; so in strict mode the first compile
    raises it."""
    if os.environ.get("COLDSTART_DISABLE", "") not in ("", "0", "false"):
        return
    if not os.environ.get("COLDSTART_ADDRESS") and not os.path.exists(ADDRESS_FILE):
        return
    from coldstart.client import jax_hook

    try:
        jax_hook.install()
    except Exception as exc:  # raised in strict mode only
        jax_hook.refuse_compiles(exc)
