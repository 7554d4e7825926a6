"""The one reviewed list of facts that leave the key.

`REWRITES` change what a program says about dead values: decided here, on the descriptor, applied by the client to the
module that is compiled. `NORMAL_FORM` is what the client leaves out of the hash only. Every rule can be switched off.
"""

from __future__ import annotations

from collections.abc import Iterable

from coldstart.errors import ConfigError
from coldstart.identity.rewrite import Rule
from coldstart.identity.rules import dead_constant_start, normal_form, unread_fragment_offset

REWRITES: tuple[Rule, ...] = (unread_fragment_offset.RULE, dead_constant_start.RULE)
NORMAL_FORM: tuple[Rule, ...] = normal_form.RULES
RULES: tuple[Rule, ...] = REWRITES + NORMAL_FORM


def known(names: Iterable[str]) -> frozenset[str]:
    """These rule names as a set. Raises ConfigError for one that doesn't exist."""
    wanted, have = frozenset(names), {rule.name for rule in RULES}
    for name in sorted(wanted - have):
        raise ConfigError(f"no rule is called {name!r}; the rules are {', '.join(sorted(have))}")
    return wanted


def in_force(rules_off: Iterable[str] = (), *, rewrites: bool = True) -> str:
    """The rules that are on, with versions: part of every record and raw digest."""
    off = known(rules_off)
    listed = RULES if rewrites else NORMAL_FORM
    return " ".join(rule.id for rule in listed if rule.name not in off)
