"""One cold start of a plan's programs in this process, under one cache, timed by phase.

    python -m coldstart.bench.start --plan demo --cache stock --folder DIR --began SECONDS

It is what `hit` starts in turns: it imports, brings the devices up, lowers every program of the plan and obtains its
executable. Nothing is run. The last line of stdout is JSON, as `start` returns it. What both caches do inside
`compile()` is timed at the same place, around the one function of JAX where a cache is asked; its parts are JAX's own
events for stock and `coldstart.report()` for Coldstart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from typing import Any

from coldstart.bench.caches import CACHES, use_cache
from coldstart.warmup.plan import Plan, entry_of, expand, read_plan

RETRIEVED = "/jax/compilation_cache/cache_retrieval_time_sec"  # read, decompress and load
# In the order of time. `instruments` is what only the measuring needs and no sum holds.
PHASES = ("start", "import", "trace", "prepare", "key", "load", "finish")


def start(plan: Plan, cache: str, folder: str, began: float) -> dict[str, Any]:
    """Obtain all programs of the plan.

    Args:
        began: `time.monotonic()` just before this process was started.

    Returns:
        seconds by phase, their sum as `wall`, processor time as `cpu`; `parts` of key and load, where Coldstart says
        them; programs; compiles as the compiler saw them.
    """
    seconds = dict.fromkeys(PHASES, 0.0)
    seconds["start"] = time.monotonic() - began
    first = time.perf_counter()
    import jax

    imported = time.perf_counter()
    cpu = time.process_time()
    from coldstart.client import jax_internals

    retrieved = Retrieved()
    instruments, instruments_cpu = time.perf_counter() - imported, time.process_time() - cpu
    if cache == "coldstart":  # it needs that module itself
        instruments = instruments_cpu = 0.0
    compiles = jax_internals.count_backend_compiles()
    use_cache(cache, folder)
    seam = Seam(jax_internals)
    devices = jax.devices()
    programs = programs_of(plan)
    seconds["import"] = time.perf_counter() - first - instruments

    obtain = 0.0
    for program in programs:
        at = time.perf_counter()
        lowered = program.lower(devices)
        traced = time.perf_counter()
        lowered.compile()
        seconds["trace"] += traced - at
        obtain += time.perf_counter() - traced
    seconds["prepare"] = obtain - seam.seconds

    parts: dict[str, float] = {}
    if cache == "coldstart":
        import coldstart

        at = time.perf_counter()
        coldstart.flush()
        seconds["finish"] = time.perf_counter() - at
        report = coldstart.report()
        assert report is not None
        parts = {
            "identify": report.identify_seconds,
            "wait": report.wait_seconds,
            "fetch": report.fetch_seconds,
            "load": report.load_seconds,
        }
        parts["lookup"] = report.hook_seconds - sum(parts.values())
        seconds["load"] = parts["fetch"] + parts["load"]
    else:
        seconds["load"] = retrieved.seconds
    seconds["key"] = seam.seconds - seconds["load"] - compiles.seconds
    return {
        "cache": cache,
        "jax": jax.__version__,
        "programs": len(programs),
        "compiles": compiles.count,
        "compile_seconds": compiles.seconds,
        "seconds": {
            **seconds,
            "wall": sum(seconds.values()) + compiles.seconds,
            "cpu": time.process_time() - instruments_cpu,
        },
        "parts": parts,
    }


def programs_of(plan: Plan) -> list[Any]:
    """The plan's programs, without the client, which JAX's own cache mustn't pay for."""
    entries = expand(plan)
    if entries is None:
        module, _, attribute = plan.programs.partition(":")
        return list(getattr(importlib.import_module(module), attribute)(**dict(plan.arguments)))
    from coldstart.models.programs import demo_programs

    known = {entry_of(p.name, p.bucket): p for p in demo_programs(plan.devices or 1)}
    return [known[entry] for entry in entries]


class Retrieved:
    """Listens for what JAX's own cache says of a hit, from now on."""

    def __init__(self) -> None:
        import jax

        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self)

    def __call__(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == RETRIEVED:
            self.seconds += duration_secs


class Seam:
    """Times the function in which JAX asks its cache or compiles, whatever is wrapped around it by then."""

    def __init__(self, jax_internals: Any) -> None:
        self.seconds = 0.0
        self.close: Callable[[], None] = jax_internals.wrap_compile(self._timed)

    def _timed(self, original: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(prog="coldstart.bench.start")
    parser.add_argument("--plan", required=True)
    parser.add_argument("--cache", choices=CACHES, required=True)
    parser.add_argument("--folder", default="", help="of JAX's own cache")
    parser.add_argument("--began", type=float, required=True)
    given = parser.parse_args()
    result = start(read_plan(given.plan), given.cache, given.folder, given.began)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
