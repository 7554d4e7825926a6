"""What a bench found, as a table for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from coldstart.bench import tiers
from coldstart.bench.hit import HitResult
from coldstart.bench.pieces import TOLERANCE
from coldstart.bench.reuse import ReuseResult
from coldstart.bench.small import SmallResult
from coldstart.bench.start import PHASES

MEANING = {
    "start": "interpreter, our modules",
    "import": "JAX, devices, model, hook",
    "trace": "trace and lower",
    "prepare": "JAX, before it asks a cache",
    "key": "which program is it, and is it there",
    "load": "read, decompress, hand to the runtime",
    "finish": "tell the daemon",
    "wall": "all of these",
    "cpu": "processor time of the process",
}
USUAL = ("hit ok", "hit waited", "miss cold")


def show_hit(result: HitResult, by_tier: dict[str, Any], console: Console) -> None:
    stock, ours, ratio = result.medians("stock"), result.medians("coldstart"), result.ratio
    table = Table(
        title=f"Warm starts of {result.plan} ({result.cold['stock']['programs']} programs, {result.devices} "
        f"devices), medians of {len(result.warm)}, seconds"
    )
    table.add_column("phase")
    table.add_column("what it holds")
    for heading in ("stock JAX", "coldstart", "ratio"):
        table.add_column(heading, justify="right")
    for name in (*PHASES, "wall", "cpu"):
        if name == "wall":
            table.add_section()
        shown = ratio[name]
        table.add_row(
            name,
            MEANING[name],
            f"{stock[name]:.3f}",
            f"{ours[name]:.3f}",
            "-" if shown is None else f"{shown:.2f}",
        )
    console.print(table)
    parts = result.medians("coldstart", "parts")
    listed = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())
    console.print(f"Coldstart's key and load: {listed}.", soft_wrap=True)
    walls = ", ".join(f"{value:.2f}" for value in result.wall_ratios)
    console.print(f"Ratio of walls, round by round: {walls}.", soft_wrap=True)
    for name in ("stock", "coldstart"):
        cold = result.cold[name]
        console.print(
            f"{name}: cold start {cold['seconds']['wall']:.1f} s with {cold['compiles']} compiles; "
            f"{result.warm_compiles(name)} compiles in all warm starts.",
            soft_wrap=True,
        )
    tiers.show(by_tier, console)


def show_reuse(result: ReuseResult, console: Console) -> None:
    size = result.size
    of_plan = f" of {size.plan}" * bool(size.plan)
    table = Table(title=f"{size.participants} participants x {size.programs} programs{of_plan}")
    table.add_column("arm")
    for heading in ("compiled", "reused", "wrong", "compile s", "saved s", "median s", "wall s"):
        table.add_column(heading, justify="right")
    for name, arm in result.arms.items():
        median = arm.median_compile_seconds
        table.add_row(
            name,
            str(arm.compiled),
            str(arm.reused),
            str(len(result.wrong(name))),
            f"{arm.compile_seconds:.1f}",
            f"{arm.compile_seconds_saved:.1f}",
            "-" if median is None else f"{median:.2f}",
            f"{arm.wall_seconds:.1f}",
        )
    console.print(table)
    console.print(
        "sparse and dense ran under Coldstart; stock is sparse under JAX's own cache.",
        soft_wrap=True,
    )
    for name, arm in result.arms.items():
        unusual = {k: v for k, v in arm.to_json(0)["lookups"].items() if k not in USUAL}
        if unusual:
            console.print(
                f"{name}: lookups that ended neither in a hit nor in a cold miss: {unusual}"
            )
    errors = [arm.largest_error for arm in result.arms.values() if arm.largest_error is not None]
    told = "Results were compared with the stock arm's, bit for bit; there is no other reference."
    if errors:
        told = (
            f"Largest difference from the NumPy reference: {max(errors):.1e} of the largest output; "
            f"wrong from {TOLERANCE:g}."
        )
    elif "stock" not in result.arms:
        told = "Results were compared with nothing: the stock arm was left out."
    console.print(told, soft_wrap=True)
    if result.resumed:
        console.print(
            f"{result.resumed} programs were recorded by an earlier run; walls leave them out."
        )
    for text in result.all_wrong:
        console.print(f"WRONG: {text}", markup=False)


def show_small(result: SmallResult, console: Console) -> None:
    table = Table(
        title=f"{result.programs} tiny eager programs, medians of {len(result.rounds)}, seconds"
    )
    for heading in ("start", "compiled", "wall", "until sent", "cpu", "wall ratio", "cpu ratio"):
        table.add_column(heading, justify="left" if heading == "start" else "right")
    names = {"stock": "stock JAX, cache off", "first": "coldstart, empty store"}
    for start in ("stock", "first", "second"):
        ratio = result.ratio(start)
        table.add_row(
            names.get(start, "coldstart, filled store"),
            str(result.rounds[0][start]["compiles"]),
            *(f"{result.median(start, what):.2f}" for what in ("wall", "finish", "cpu")),
            *(f"{ratio[what]:.2f}" for what in ("wall", "cpu")),
        )
    console.print(table)
    console.print(
        f"{result.remote_objects} objects written beyond this host; {result.wrong} results differ from NumPy's."
    )
