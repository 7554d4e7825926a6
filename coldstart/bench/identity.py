"""`bench identity`: what it costs to say which program this is, beside a plain walk and JAX's own key.

One process lowers decoder programs of several lengths for 16 CPU devices and takes each step's processor time, the
steps in turns. JSON (fields are added, never renamed; tests/bench/golden/identity.json):

    sizes[].ops, layers, module_bytes, descriptor_bytes, rewrites      what is identified
    sizes[].seconds                                                    by step, the least of the repeats
    sizes[].first_per_op_us, first_over_walk                           a program that nobody has seen, both sides' work
    sizes[].alias_over_stock_key                                       one that the daemon knows: all before the call
    call                                                               wall seconds of that one small call (median)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coldstart.bench.identity_programs import DEVICES
from coldstart.bench.progress import Progress, count_noted, quiet
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption

LAYERS = (1, 32, 292)  # about 120, 2 200 and 19 600 ops
WORKER = "coldstart.bench.identity_worker"
STEPS = {
    "walk": "every attribute and type as text: the least that Python can do",
    "stock_key": "JAX's own cache key",
    "surroundings": "options, target, flags",
    "raw_digest": "hash of the module as it is",
    "may_rewrite": "is there a slice with an offset?",
    "describe": "module to descriptor",
    "encode": "descriptor to bytes",
    "canonicalize": "bytes to rewrites: the daemon's worker",
    "apply": "confirm and make the rewrites on a clone",
    "normal_form": "what is hashed for the key",
    "first": "a program that nobody has seen, all of it",
    "alias": "one that the daemon knows, up to the call",
}


def run(
    layers: Sequence[int],
    address: str,
    folder: Path,
    *,
    repeats: int,
    seconds: float = 3600.0,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure in a process of its own. Raises ColdstartError where that fails."""
    record = folder / "progress"
    environ = processes.plain_environment()
    flags = environ.get("XLA_FLAGS", "")
    environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
    arguments = [
        f"--layers={','.join(map(str, layers))}",
        f"--repeats={repeats}",
        f"--address={address}",
        f"--record={record}",
    ]
    # A program is lowered once and measured `repeats` times; each takes time by its length.
    total = sum(layers) * (1 + repeats)
    with (progress or quiet()).of("identity", partial(count_noted, record), 0, total, "layers"):
        (found,) = processes.run_all(
            WORKER,
            [arguments],
            environ,
            folder,
            at_once=1,
            seconds=seconds,
            interruption=interruption,
        )
    for size in found["sizes"]:
        spent = size["seconds"]
        size["first_per_op_us"] = round(spent["first"] / size["ops"] * 1e6, 2)
        size["first_over_walk"] = round(spent["first"] / spent["walk"], 2)
        size["alias_over_stock_key"] = round(spent["alias"] / spent["stock_key"], 2)
        size["seconds"] = {name: round(value, 6) for name, value in spent.items()}
    return {**found, "call": round(found["call"], 6), "repeats": repeats, "cores": os.cpu_count()}


def show(found: dict[str, Any], console: Console) -> None:
    """The figures as a table for people."""
    table = Table(
        title=f"Identification, processor time in ms, the least of {found['repeats']} repeats"
    )
    table.add_column("step")
    table.add_column("what it does")
    for size in found["sizes"]:
        table.add_column(f"{size['ops']} ops", justify="right")
    for step, meaning in STEPS.items():
        if step == "first":
            table.add_section()
        spent = [f"{size['seconds'][step] * 1e3:.1f}" for size in found["sizes"]]
        table.add_row(step, meaning, *spent)
    table.add_section()
    for name, meaning in (
        ("first_per_op_us", "first, microseconds an op"),
        ("first_over_walk", "first / walk"),
        ("alias_over_stock_key", "alias / JAX's own key"),
    ):
        table.add_row("", meaning, *(f"{size[name]:.2f}" for size in found["sizes"]))
    console.print(table)
    console.print(
        f"The call that goes with alias takes {found['call'] * 1e3:.2f} ms (wall, median); first makes two, and one "
        "with the descriptor.",
        soft_wrap=True,
    )
