"""A clone of a module is as good as the module: JAX compiles it, and the original is left alone."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest

from coldstart.client import jax_internals


@pytest.mark.stacks
def test_a_clone_compiles_like_the_module_and_says_the_same() -> None:
    texts = []

    def swap(original: jax_internals.Compile) -> jax_internals.Compile:
        def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
            request = jax_internals.request_of(args, kwargs)
            clone = jax_internals.clone(request.computation)
            for module in (request.computation, clone):
                texts.append(module.operation.get_asm(enable_debug_info=True))
            return original(request.backend, clone, *args[2:], **kwargs)

        return compile_or_get_cached

    undo = jax_internals.wrap_compile(swap)
    try:
        program = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y * 2 + i, x).sum())
        found = program(np.arange(4, dtype=np.int32))
    finally:
        undo()
    assert int(found) == 8 * 6 + 4 * 4
    assert len(texts) == 2
    assert texts[0] == texts[1]


def test_a_wrapper_that_wraps_nothing_leaves_the_seam_whole() -> None:
    """Whoever only wants to see the function hands it back; it must not become a wrapper of itself."""
    seen: list[Any] = []

    def look(original: Any) -> Any:
        seen.append(original)
        return original

    jax_internals.wrap_compile(look)()
    assert inspect.unwrap(seen[0]) is not None
    assert seen[0] is not getattr(seen[0], "__wrapped__", None)
