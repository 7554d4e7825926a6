"""The part of a check-up that needs JAX: run in a process of its own, it writes what it found as JSON.

    python -m coldstart.client.jax_checkup --out FILE facts
    python -m coldstart.client.jax_checkup --out FILE --token N store     compile a new program and publish it
    python -m coldstart.client.jax_checkup --out FILE --token N load      obtain that program without a compile
    python -m coldstart.client.jax_checkup --out FILE program SCRIPT ...  run a program and look at it afterwards

The token is a number in the program, so that nobody has it in a cache yet. Settings come from the environment, as in
any hooked process. `checkup` starts this and judges.
"""

from __future__ import annotations

import argparse
import functools
import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

SIDE = 16  # of the matrix that the test program multiplies


def facts() -> dict[str, Any]:
    """This JAX, its devices, and whether the hook fits it."""
    import jax

    from coldstart.client import jax_internals
    from coldstart.client.target import target_of

    seam = jax_internals.seam()
    devices = jax.local_devices()
    target = target_of(devices, partitions=len(devices), replicas=1)
    stock = jax_internals.stock_cache()
    return {
        "jax": seam.jax_version,
        "jaxlib": jax_internals.jaxlib_build(),
        "seam_found": seam.found,
        "seam_known": seam.known,
        "seam_problem": seam.problem,
        "platform": devices[0].platform,
        "devices": len(devices),
        "target": json.loads(target),
        "stock_cache": {
            "directory": stock.directory,
            "min_compile_seconds": stock.min_compile_seconds,
            "min_entry_bytes": stock.min_entry_bytes,
        },
    }


def test_program(token: int, *, planned: bool, warm_up: bool) -> dict[str, Any]:
    """Obtain and run the test program through the hook; say what it took and whether the result is right.

    Args:
        planned: store it whatever the daemon's threshold.
        warm_up: compile something before the hook is there, as programs that enable a cache late do.
    """
    import jax
    import numpy as np

    import coldstart
    from coldstart.client import jax_hook, jax_internals

    values = np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE)
    device = jax.local_devices()[0]  # JAX loads our plug-in here
    if warm_up:
        jax_hook.uninstall()
        jax.jit(lambda x: x + 1)(values)
    compiles = jax_internals.count_backend_compiles()
    if not coldstart.install():
        raise RuntimeError("the hook was not installed")
    hook = jax_hook.installed()
    assert hook is not None
    if planned:
        session = hook.session()
        session.obtain = functools.partial(session.obtain, planned=True)  # type: ignore[method-assign]

    def coldstart_doctor(x: jax.Array) -> jax.Array:
        return (x @ x) ^ token

    found = np.asarray(jax.jit(coldstart_doctor)(jax.device_put(values, device)))
    published = coldstart.flush() and hook.session().outbox.failed == 0
    expected = (values @ values) ^ np.int32(token)
    return {
        "compiles": compiles.count,
        "compile_seconds": compiles.seconds,
        "right": bool(np.array_equal(found, expected)),
        "published": published,
        "lookups": _lookups(),
    }


def outside_program(arguments: list[str]) -> dict[str, Any]:
    """Run a script as `python script ...` would, and say how its compiles fared."""
    import jax  # noqa: F401  (the script will; what is counted has to be there before it)

    import coldstart
    from coldstart.client import jax_hook, jax_internals

    compiles = jax_internals.count_backend_compiles()
    early = 0

    def count(original: jax_internals.Compile) -> jax_internals.Compile:
        def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
            nonlocal early
            if jax_hook.installed() is None and not jax_internals.stock_cache().directory:
                early += 1
            return original(*args, **kwargs)

        return compile_or_get_cached

    jax_internals.wrap_compile(count)
    problem = ""
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as exc:
        if exc.code not in (None, 0):
            problem = f"exit {exc.code}"
    except Exception as exc:
        traceback.print_exc()
        problem = f"{type(exc).__name__}: {exc}"
    coldstart.flush()
    stock = jax_internals.stock_cache()
    kept = 0
    if stock.directory and Path(stock.directory).is_dir():
        kept = sum(1 for path in Path(stock.directory).iterdir() if path.is_file())
    return {
        "problem": problem,
        "compiles": compiles.count,
        "before_any_cache": early,
        "hooked": jax_hook.installed() is not None,
        "lookups": _lookups(),
        "stock_cache": {
            "directory": stock.directory,
            "min_compile_seconds": stock.min_compile_seconds,
            "min_entry_bytes": stock.min_entry_bytes,
            "latched_off": stock.latched_off,
            "files": kept,
        },
    }


def _lookups() -> dict[str, int]:
    import coldstart

    report = coldstart.report()
    return {
        f"{outcome} {reason}": count
        for (outcome, reason), count in (report.lookups if report else {}).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="coldstart.client.jax_checkup")
    parser.add_argument("what", choices=("facts", "store", "load", "program"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--token", type=int, default=0)
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        if given.what == "facts":
            said = facts()
        elif given.what == "program":
            said = outside_program(given.script)
        else:
            late = given.what == "load"
            said = test_program(given.token, planned=given.planned, warm_up=late)
    except Exception as exc:
        said = {"error": f"{type(exc).__name__}: {exc}"}
    given.out.write_text(json.dumps(said))


if __name__ == "__main__":
    main()
