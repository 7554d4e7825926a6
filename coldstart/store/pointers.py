"""Pointers: what an index says to lie in a lower tier, so that the lower one need not be asked whether it is there.

A tier that is too small for an artifact may keep a row about it (`point`, `pointed`, `unpoint`: Redis does). Such a row
is a hint: it answers "which digest", it never counts as stored, and it goes when the artifact isn't where it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, cast

from coldstart.artifact import Header
from coldstart.errors import TierError
from coldstart.store.tier import Tier


class Pointing(Protocol):
    """What a tier with such rows has besides."""

    async def point(self, header: Header, below: str) -> None: ...

    async def pointed(self, key: str) -> tuple[tuple[Header, str], ...]: ...

    async def unpoint(self, key: str, digest: str) -> None: ...


class Pointers:
    """Those of one chain's tiers. No trouble with them is anybody's trouble."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tuple(tiers)
        self._pointing = {
            at: found for at, tier in enumerate(tiers) if (found := pointing_of(tier)) is not None
        }

    async def add(self, tier: Tier, header: Header, below: Tier) -> None:
        """`tier` was too small for what `below` has taken."""
        pointing = self._pointing.get(self._tiers.index(tier))
        if pointing is not None and tier.writable:
            with suppress(TierError):
                await pointing.point(header, below.name)

    async def said(self, at: int, key: str) -> list[tuple[Header, int]]:
        """What the tier at `at` says to lie in lower ones, and in which."""
        pointing = self._pointing.get(at)
        if pointing is None or at + 1 == len(self._tiers):
            return []
        lower = {tier.name: n for n, tier in enumerate(self._tiers) if n > at}
        with suppress(TierError):
            return [
                (header, lower[name])
                for header, name in await pointing.pointed(key)
                if name in lower
            ]
        return []

    async def drop(self, key: str, digest: str) -> None:
        """It is nowhere."""
        for at, pointing in self._pointing.items():
            if self._tiers[at].writable:
                with suppress(TierError):
                    await pointing.unpoint(key, digest)


def pointing_of(tier: Tier) -> Pointing | None:
    """The tier with such rows inside of `tier`'s wrappers; None: there is none."""
    while not hasattr(tier, "point"):
        inner = getattr(tier, "inner", None)
        if inner is None:
            return None
        tier = inner
    return cast(Pointing, tier)
