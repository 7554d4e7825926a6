"""What lies inside a tier: wrappers and chains hold others. For whoever composes a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coldstart.store.tier import Tier


def within(tier: Tier) -> Iterator[Tier]:
    """`tier` and all tiers inside wrappers and chains, in order."""
    yield tier
    for inner in getattr(tier, "tiers", ()) or filter(None, [getattr(tier, "inner", None)]):
        yield from within(inner)


def innermost(tier: Tier, wanted: Callable[[Tier], bool]) -> Tier | None:
    """The first of those that is `wanted`."""
    return next(filter(wanted, within(tier)), None)
