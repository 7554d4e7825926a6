"""What the demo found, as tables for people. Every sentence under them follows from the figures above it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from coldstart.demo.fleet import Arm
from coldstart.demo.run import Result


def show(result: Result, console: Console) -> None:
    """Print arms side by side, programs side by side, and what they say."""
    work = result.work
    table = Table(
        title=f"{work.participants} participants x {work.programs} programs, {work.branch}; "
        f"measured here (CPU, {os.cpu_count()} cores)"
    )
    table.add_column("cold start under")
    for heading in ("compiles", "reused", "compile s", "cpu s", "wall s"):
        table.add_column(heading, justify="right")
    for arm in result.arms:
        table.add_row(
            arm.name,
            str(arm.compiled),
            str(arm.reused),
            f"{arm.compile_seconds:.1f}",
            f"{arm.seconds('cpu'):.1f}",
            f"{arm.wall_seconds:.1f}",
        )
    console.print(table)
    console.print(_by_program(result))
    for line in _sentences(result):
        console.print(line, markup=False, soft_wrap=True)


def _by_program(result: Result) -> Table:
    table = Table(title="Compiles by program, over all participants; do the ranks differ in it?")
    table.add_column("program", no_wrap=True)
    table.add_column("ranks")
    for arm in result.arms:
        table.add_column(arm.name.replace("-", "\n"), justify="right", no_wrap=True)
    for same in zip(*(arm.by_program() for arm in result.arms), strict=True):
        table.add_row(
            same[0]["name"],
            "differ" if same[0]["own_fragment"] else "alike",
            *(str(entry["compiled"]) for entry in same),
        )
    return table


def _sentences(result: Result) -> Iterator[str]:
    yield (
        "Compiles are counted where JAX enters the compiler; compile and cpu seconds are sums over the participants, "
        "which share this machine's cores."
    )
    cold = next((arm for arm in result.arms if arm.name == "coldstart-cold"), None)
    if cold is not None:
        yield from _what_was_shared(cold, result)
    for arm in result.arms:
        yield from _troubles(arm)
    if result.wrong:
        yield f"WRONG RESULTS: {len(result.wrong)}"
        yield from result.wrong
    else:
        yield "Wrong results: 0 (every output of every rank equals the first arm's, bit for bit)."


def _what_was_shared(cold: Arm, result: Result) -> Iterator[str]:
    n = result.work.participants
    own = [entry for entry in cold.by_program() if entry["own_fragment"]]
    compiled = sum(entry["compiled"] for entry in own)
    asked = n * len(own)
    troubled = any(not _usual(name) for name in cold.lookups)
    if compiled >= asked > 0 and n > 1 and not troubled:
        yield (
            f"The attention programs were not shared ({compiled} compiles for {asked} requests): each holds the offset "
            "of its participant's own fragment, so they are different programs to both caches."
        )
    elif compiled < asked:
        yield (
            f"The attention programs differ in the offset of each participant's own fragment: {compiled} compiles "
            f"for {asked} requests under Coldstart."
        )


def _troubles(arm: Arm) -> Iterator[str]:
    found = {name: count for name, count in arm.lookups.items() if not _usual(name)}
    if found:
        listed = ", ".join(f"{name} {count}" for name, count in found.items())
        yield f"{arm.name}: lookups that ended neither in a hit nor in a cold miss: {listed}."
    yield from (f"{arm.name}: {text}" for text in arm.warnings)


def _usual(lookup: str) -> bool:
    return lookup.startswith("hit ") or lookup == "miss cold"
