"""What `bench soundness` found, as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from coldstart.bench.soundness import COUNTED, SoundnessResult


def show(result: SoundnessResult, console: Console) -> None:
    """Counts, rules, kinds, and each bad pair so that it can be judged again alone."""
    found = result.to_json()
    console.print(
        f"Seed {found['seed']}: {found['pairs']} pairs, {found['shared']} with equal keys, all executed; "
        f"{found['wrong']} wrong, {found['failed']} not judged.",
        soft_wrap=True,
    )
    share = found["stripped"] / max(1, found["pairs"])
    console.print(
        f"{found['stripped']} ({share:.0%} of all) are equal only because of a rule. {found['same']} mean the same by "
        f"construction, {found['missed']} of them missed; {found['chance']} shared that were to differ, with equal "
        f"results. JAX's own cache key shares {found['stock_shared']}.",
        soft_wrap=True,
    )
    rules = Table(title="Pairs that need the rule to share")
    rules.add_column("rule")
    rules.add_column("pairs", justify="right")
    for name, count in found["per_rule"].items():
        rules.add_row(name, str(count))
    console.print(rules)
    kinds = Table(title="By kind of mutation; a pair may hold several")
    kinds.add_column("mutation")
    for heading in COUNTED:
        kinds.add_column(heading, justify="right")
    for name, counts in found["kinds"].items():
        kinds.add_row(name, *(str(counts[heading]) for heading in COUNTED))
    console.print(kinds)
    console.print(
        f"{found['seconds']:.0f} s, {found['cpu_seconds']:.0f} CPU seconds of judging; {found['resumed']} pairs were "
        "recorded by an earlier run.",
        soft_wrap=True,
    )
    alone = [] if result.plan.only is None else map(result.whole, result.lines)
    for line in alone or result.bad:
        word = "WRONG" if line["wrong"] else "FAILED" if line["failed"] else "pair"
        what = line["wrong"] or line["failed"] or ("one key" if line["shared"] else "two keys")
        text = f"{word} {line['pair']}: {', '.join(line['kinds'])}: {what}"
        again = f"again: coldstart bench soundness {result.plan.repeat} --only {line['pair']}"
        for part in (text, f"  {again}", *(f"  {program}" for program in line["programs"])):
            console.print(part, markup=False, soft_wrap=True)
