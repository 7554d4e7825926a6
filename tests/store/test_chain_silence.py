"""A tier that says nothing holds a look up for a bounded time, and hardly where another has what is looked for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from coldstart.artifact import Artifact
from coldstart.errors import TierTimeout
from coldstart.store import chain as module
from coldstart.store.breaker import FAILURES, Breaker
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Failing


async def test_a_hit_above_is_not_held_up_by_a_silent_tier(
    new_artifact: Callable[..., Artifact],
) -> None:
    """Found by the chaos run: with a silent bucket, a client gave its daemon up while Redis had the artifact."""
    above, silent = MemoryTier(name="above"), Failing(MemoryTier(name="silent"), None, {"find"})
    breaker = Breaker(silent)
    chain = ChainTier([above, breaker])
    made = new_artifact("a", cpu_features=("avx2",))  # of a variant: others may be below
    await above.put(made, None)
    began = time.monotonic()
    for _ in range(FAILURES):
        assert await chain.find(made.header.key) == (made.header,)
    assert time.monotonic() - began < FAILURES * 3.0
    assert breaker.open == ("reads",)  # and from now on it costs nothing
    silent.ops = set()
    await chain.close()


async def test_a_silent_tier_makes_a_look_an_unknown_in_time(
    new_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIND_SECONDS", 0.2)
    silent = Failing(MemoryTier(name="silent"), None, {"find"})
    chain = ChainTier([MemoryTier(name="above"), silent])
    with pytest.raises(TierTimeout, match=r"silent: find: no answer within 0\.2 s") as caught:
        await chain.find(new_artifact("a").header.key)
    assert caught.value.partial  # the other can be written: who asks goes on with that
    silent.ops = set()
    await chain.close()
