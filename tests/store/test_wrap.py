"""What each wrapper adds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coldstart.artifact import Artifact, BytesPayload
from coldstart.errors import ArtifactCorrupt, TierError, TierFull, TierTimeout, TooLarge
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Deadlined, Failing, Metered, ReadOnly


async def test_metered_tells_every_call_once(new_artifact: Callable[..., Artifact]) -> None:
    heard: list[tuple[str, str, str]] = []
    broken = Failing(MemoryTier(limit_bytes=100), None, ())
    tier = Metered(broken, lambda tier, op, outcome, seconds: heard.append((tier, op, outcome)))
    made, other = new_artifact("a", b"one"), new_artifact("a", b"two")
    await tier.find(made.header.key)
    await tier.put(made, None)
    await tier.put(other, None)
    await tier.find(made.header.key)
    await tier.get(made.header.key, made.header.digest)
    with pytest.raises(TooLarge):
        await tier.put(new_artifact("b", b"x" * 101), None)
    with pytest.raises(ArtifactCorrupt):
        await tier.put(Artifact(new_artifact("c", b"ab").header, BytesPayload(b"ba")), None)
    for error in (TierError("x"), TierTimeout("x"), TierFull("x")):
        broken.ops, broken.error = {"get"}, error
        with pytest.raises(type(error)):
            await tier.get(made.header.key, made.header.digest)
    await tier.delete(made.header.key, made.header.digest)
    assert heard == [
        ("memory", "find", "miss"),
        ("memory", "put", "ok"),
        ("memory", "put", "adopted"),
        ("memory", "find", "hit"),
        ("memory", "get", "hit"),
        ("memory", "put", "too-large"),
        ("memory", "put", "corrupt"),
        ("memory", "get", "error"),
        ("memory", "get", "timeout"),
        ("memory", "get", "full"),
        ("memory", "delete", "ok"),
    ]


async def test_read_only_reads_and_refuses_the_rest(
    new_artifact: Callable[..., Artifact],
) -> None:
    inner, made = MemoryTier(), new_artifact("a")
    await inner.put(made, None)
    tier = ReadOnly(inner)
    assert not tier.writable and await tier.find(made.header.key) == (made.header,)
    for refused in (
        tier.put(made, None),
        tier.delete(made.header.key, made.header.digest),
        tier.quarantine(made.header.key, made.header.digest, "corrupt"),
    ):
        with pytest.raises(TierError, match=r"memory: .* cs\.write=false"):
            await refused
    assert await inner.find(made.header.key) == (made.header,)


async def test_silence_becomes_a_timeout_that_names_the_tier(
    new_artifact: Callable[..., Artifact],
) -> None:
    silent = Failing(MemoryTier(), None, {"find", "put"})
    tier = Deadlined(silent, read_seconds=0.01, write_seconds=0.01)
    made = new_artifact("a")
    with pytest.raises(TierTimeout, match="memory: find"):
        await tier.find(made.header.key)
    with pytest.raises(TierTimeout, match="memory: put"):
        await tier.put(made, None)
    assert await tier.get(made.header.key, made.header.digest) is None
    assert silent.calls == ["find", "put", "get"]


async def test_memory_evicts_the_least_recently_used(
    new_artifact: Callable[..., Artifact],
) -> None:
    tier = MemoryTier(limit_bytes=250)
    hot, cold, new = (new_artifact(word, word.encode() * 100) for word in "hcn")
    await tier.put(hot, None)
    await tier.put(cold, None)
    assert await tier.get(hot.header.key, hot.header.digest)
    await tier.put(new, None)
    assert tier.used_bytes == 200
    assert [bool(await tier.find(each.header.key)) for each in (hot, cold, new)] == [1, 0, 1]
