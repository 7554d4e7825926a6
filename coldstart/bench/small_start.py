"""One process that runs many tiny eager programs, each compiled for itself, under one cache.

    python -m coldstart.bench.small_start --cache none --programs 1000 --began SECONDS

What `small` starts in turns. The last line of stdout is JSON, as `start` returns it.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from coldstart.bench.caches import CACHES, use_cache

# Each compiles one program per shape, as an eager op does in somebody's script.
OPERATIONS = ("tanh", "exp", "negative", "abs", "floor", "sin", "cos", "square", "sign", "ceil")


def start(cache: str, programs: int, began: float) -> dict[str, Any]:
    """Run them.

    Args:
        began: `time.monotonic()` just before this process was started.

    Returns:
        wall: seconds of the programs; finish: seconds until what waited to be sent was; cpu: of both, in this process;
        programs, compiles as the compiler saw them, wrong: results that differ from NumPy's.
    """
    import jax
    import jax.numpy as jnp

    from coldstart.client import jax_internals

    compiles = jax_internals.count_backend_compiles()
    use_cache(cache, "")
    jax.devices()
    seconds = {"start": time.monotonic() - began}
    wrong = 0
    at, cpu = time.perf_counter(), time.process_time()
    for n in range(programs):
        name = OPERATIONS[n % len(OPERATIONS)]
        # A NumPy array goes in, so that nothing but the op itself is compiled.
        value = np.linspace(0.0, 1.0, 1 + n // len(OPERATIONS), dtype=np.float32)
        found = np.asarray(getattr(jnp, name)(value))
        wrong += not np.allclose(found, getattr(np, name)(value), atol=1e-5)
    seconds["wall"] = time.perf_counter() - at
    if cache == "coldstart":
        import coldstart

        if not coldstart.flush(300.0):
            raise RuntimeError("the daemon did not take what was compiled")
    seconds["finish"] = time.perf_counter() - at - seconds["wall"]
    seconds["cpu"] = time.process_time() - cpu
    return {
        "jax": jax.__version__,
        "programs": programs,
        "compiles": compiles.count,
        "compile_seconds": compiles.seconds,
        "wrong": wrong,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", choices=CACHES, required=True)
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--began", type=float, required=True)
    given = parser.parse_args()
    print(json.dumps(start(given.cache, given.programs, given.began)))


if __name__ == "__main__":
    main()
