"""Sharing: what the tiers that hosts share are given. Small programs stay on the host that compiled them.

A tier that other hosts read says `min_compile_seconds`, as Redis and a bucket do: what compiled faster isn't worth its
traffic and its place there, unless it is an entry of a plan (`planned`). A tier that says nothing is the host's own and
is given everything. Something small that lies in a shared tier all the same is a plan's, and may be copied on.
"""

from __future__ import annotations

from collections.abc import Sequence

from coldstart.artifact import Header
from coldstart.store.tier import Tier
from coldstart.store.within import within


class Sharing:
    """The rule for some tiers."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._least_seconds = {tier: least_seconds(tier) for tier in tiers}

    def wants(self, tier: Tier, header: Header, *, planned: bool = False) -> bool:
        """Whether `tier` is to be given it."""
        least = self._least_seconds[tier]
        return planned or least is None or header.compile_seconds >= least

    def planned_in(self, tier: Tier, header: Header) -> bool:
        """Whether `tier` can only have it because a plan names it."""
        return not self.wants(tier, header)

    def stays(self, header: Header, *, planned: bool = False) -> bool:
        """Whether there are tiers that hosts share, and none is given it: no other host will ever find it."""
        shared = [
            tier
            for tier, least in self._least_seconds.items()
            if least is not None and tier.writable
        ]
        return bool(shared) and not any(self.wants(t, header, planned=planned) for t in shared)

    def nowhere(self, header: Header, *, planned: bool = False) -> bool:
        """Whether tiers could take it, and none is given it."""
        tiers = [tier for tier in self._least_seconds if tier.writable]
        return bool(tiers) and not any(self.wants(t, header, planned=planned) for t in tiers)


def least_seconds(tier: Tier) -> float | None:
    """Compile seconds below which `tier` is not given a program; None: it is this host's own."""
    for inner in within(tier):
        least = getattr(inner, "min_compile_seconds", None)
        if least is not None:
            return float(least)
    return None
