"""The caches that a measured process can run under, each keeping everything it is given."""

from __future__ import annotations

CACHES = ("none", "stock", "coldstart")


def use_cache(cache: str, folder: str) -> None:
    """Set this process up. Coldstart's daemon is the one at COLDSTART_ADDRESS; `folder` is of JAX's own cache."""
    import jax

    if cache == "stock":
        # Thresholds at their lowest: it stores every program, however small or quick.
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", -1)
    elif cache == "coldstart":
        import coldstart

        # An installed package is found by JAX itself; from a bare checkout this line does it.
        if not coldstart.install():
            raise RuntimeError("the hook was not installed: is COLDSTART_ADDRESS set?")
