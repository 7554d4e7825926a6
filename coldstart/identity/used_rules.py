"""Which rules took something out of a program, as its key record tells: what a purge by rule goes by.

A record notes each thing that was left out of the hash or rewritten, in words that begin with the rule's name. What it
names happened to the program that was *compiled*: another participant's program, that got the same key by a rewrite,
left no trace in it.
"""

from __future__ import annotations

from coldstart.identity.key import FINAL, KeyRecord

LEFT_OUT = "left out: "


def used_rules(record: KeyRecord) -> frozenset[str]:
    """Names of rules. Of a final program whose record doesn't list every edit, all rules that were in force."""
    in_force = {rule.partition("@")[0] for rule in dict(record.versions).get("rules", "").split()}
    value = record["program"].value
    if value.startswith(FINAL):
        ids = value.removeprefix(FINAL).partition(":")[0].split(",")
        in_force |= {rule.partition("@")[0] for rule in ids}
    used = {note.removeprefix(LEFT_OUT).partition(":")[0].strip() for note in record.notes}
    if any(note.startswith("and ") and note.endswith(" more rewrites") for note in record.notes):
        used |= in_force
    return frozenset(used & in_force)
