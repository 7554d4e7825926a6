"""The forgery suite: what somebody who can write a store may plant there, in every kind of tier.

Each forgery is put into the tier behind the gate's back. It must be refused before anybody could load it, told to the
audit, and give way to the next publish.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from gcs_server import gcs_tier
from redis_server import redis_tier
from small_artifacts import make_artifact, make_record
from trust_keys import Keys

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.artifact import Artifact, BytesPayload
from coldstart.errors import ArtifactMismatch, NotAllowed
from coldstart.server.audit import Audit
from coldstart.server.notary import Notary
from coldstart.server.tally import Tally
from coldstart.store.chain import ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.memory import MemoryTier
from coldstart.store.redis import RedisTier
from coldstart.store.tier import Tier
from coldstart.store.verified import Verified, VerifiedPointing, verified
from coldstart.store.wrap import ReadOnly
from coldstart.trust.statement import BUNDLE, PLAN_MANIFEST, decode_signature

WORD = "the program"


async def signed(
    keys: Keys, word: str = WORD, content: bytes = b"code", **place: object
) -> Artifact:
    made = make_artifact(word, content)
    return Artifact(await keys.sign(made.header, **place), made.payload)


def with_header(artifact: Artifact, **changes: object) -> Artifact:
    """Another header under the signature of this one."""
    header = dataclasses.replace(artifact.header, **changes).signed(artifact.header.signature)
    return Artifact(header, artifact.payload)


async def unsigned(keys: Keys) -> Artifact:
    return make_artifact(WORD)


async def of_a_stranger(keys: Keys) -> Artifact:
    keys.new("stranger")
    return await signed(keys, name="stranger")


async def moved_under_another_key(keys: Keys) -> Artifact:
    return with_header(await signed(keys, "a harmless one"), key=make_artifact(WORD).header.key)


async def of_another_module(keys: Keys) -> Artifact:
    return with_header(await signed(keys), module_digest=make_record("x").module_digest)


async def for_any_cpu(keys: Keys) -> Artifact:
    made = make_artifact(WORD, cpu_features=("avx512f",))
    genuine = Artifact(await keys.sign(made.header), made.payload)
    return with_header(genuine, cpu_features=())


async def encoded_again_to_the_same_length(keys: Keys) -> Artifact:
    evil = make_artifact(WORD, b"evil")  # as long as what was signed
    changed = with_header(await signed(keys), digest=evil.header.digest)
    return Artifact(changed.header, BytesPayload(b"evil"))


async def with_a_flipped_bit(keys: Keys) -> Artifact:
    genuine = await signed(keys)
    signature = decode_signature(genuine.header.signature)
    value = bytes((signature.value[0] ^ 1, *signature.value[1:]))
    flipped = dataclasses.replace(signature, value=value).encode()
    return Artifact(genuine.header.signed(flipped), genuine.payload)


async def with_rubbish_for_a_signature(keys: Keys) -> Artifact:
    made = make_artifact(WORD)
    return Artifact(made.header.signed(b'{"kind":"artifact"}'), made.payload)


async def with_a_borrowed_signature(keys: Keys) -> Artifact:
    made, other = make_artifact(WORD), await signed(keys, "a harmless one")
    return Artifact(made.header.signed(other.header.signature), made.payload)


async def from_another_namespace(keys: Keys) -> Artifact:
    return await signed(keys, namespace="other")


async def from_another_generation(keys: Keys) -> Artifact:
    return await signed(keys, generation=1)


async def expired(keys: Keys) -> Artifact:
    made = await signed(keys, lives_seconds=60.0)
    keys.now += 61
    return made


async def by_a_revoked_key(keys: Keys) -> Artifact:
    made = await signed(keys)
    keys.new("two")
    keys.trusted.write_text(keys.trusted.read_text() + (keys.folder / "two.pub").read_text())
    keys.revoked.write_text(f"key {decode_signature(made.header.signature).key_id}\n")
    return made


async def with_a_revoked_digest(keys: Keys) -> Artifact:
    made = await signed(keys)
    keys.revoked.write_text(f"digest {made.header.digest}\n")
    return made


FORGERIES = (
    unsigned,
    of_a_stranger,
    moved_under_another_key,
    of_another_module,
    for_any_cpu,
    encoded_again_to_the_same_length,
    with_a_flipped_bit,
    with_rubbish_for_a_signature,
    with_a_borrowed_signature,
    from_another_namespace,
    from_another_generation,
    expired,
    by_a_revoked_key,
    with_a_revoked_digest,
)


@pytest.fixture(params=("memory", "disk", "redis", "gcs"))
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    made: Tier
    if request.param == "redis":
        made = redis_tier(request.getfixturevalue("shared_redis"))
    elif request.param == "gcs":
        made = gcs_tier(request.getfixturevalue("cloud"))
    else:
        made = MemoryTier() if request.param == "memory" else DiskTier(tmp_path / "store")
    yield made
    await made.close()


class Guard:
    """A gate with its audit, as a daemon has them."""

    def __init__(self, keys: Keys, file: Path) -> None:
        self.file, self.tally = file, Tally()
        self.notary = Notary(Audit(self.tally, file), keys.seal(), keys.verifier())
        assert self.notary.gate is not None
        self.gate = self.notary.gate

    def lines(self) -> list[str]:
        """What the audit's file holds."""
        return self.file.read_text().splitlines()


@pytest.fixture
def guard(keys: Keys, tmp_path: Path) -> Iterator[Guard]:
    made = Guard(keys, tmp_path / "audit.jsonl")
    yield made
    made.notary.audit.close()


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
async def test_a_forgery_is_refused_told_and_gives_way(
    tier: Tier, keys: Keys, guard: Guard, forge: Callable[[Keys], Awaitable[Artifact]]
) -> None:
    planted = await forge(keys)
    await tier.put(planted, make_record(WORD))
    key, digest = planted.header.key, planted.header.digest
    assert [header.digest for header in await tier.find(key)] == [digest]  # it is there

    gated = verified(tier, guard.gate)
    assert isinstance(gated, Verified)
    assert await gated.find(key) == ()
    assert await gated.get(key, digest) is None
    assert gated.refused_recently(key)
    (line,) = [line for line in guard.lines() if digest in line]
    assert '"reason": "signature"' in line and f'"tier": "{tier.name}"' in line
    assert guard.tally.event_counts["signature"] == 2  # each look is counted, one is told

    name = "two" if (keys.folder / "two.key").exists() else "one"
    repair = await signed(keys, content=b"compiled again", name=name)
    assert await gated.put(repair, make_record(WORD)) == repair.header
    assert await gated.find(key) == (repair.header,)
    found = await gated.get(key, repair.header.digest)
    assert found is not None and b"".join(found.payload.chunks()) == b"compiled again"
    assert not gated.refused_recently(key)


async def test_what_is_genuine_is_handed_out_with_its_signature(
    tier: Tier, keys: Keys, guard: Guard
) -> None:
    genuine = await signed(keys)
    gated = verified(tier, guard.gate)
    await gated.put(genuine, make_record(WORD))
    for _ in range(2):  # a tier may answer from memory the second time
        (header,) = await gated.find(genuine.header.key)
        got = await gated.get(header.key, header.digest)
        assert got is not None
        assert header.signature == got.header.signature == genuine.header.signature
    assert guard.lines() == []


async def test_a_forgery_of_the_very_bytes_gives_way_too(
    tier: Tier, keys: Keys, guard: Guard
) -> None:
    """As where a store is older than its signatures: the digest is the same, only nobody vouched for it."""
    genuine = await signed(keys)
    await tier.put(Artifact(genuine.header.signed(b""), genuine.payload), None)
    gated = verified(tier, guard.gate)
    assert await gated.find(genuine.header.key) == ()
    await gated.put(genuine, None)
    (header,) = await tier.find(genuine.header.key)
    assert header.signature == genuine.header.signature


async def test_nothing_unsigned_is_put_through_the_gate(tier: Tier, guard: Guard) -> None:
    made = make_artifact(WORD)
    with pytest.raises(ArtifactMismatch) as refused:
        await verified(tier, guard.gate).put(made, None)
    assert refused.value.reason == "signature"
    assert await tier.find(made.header.key) == ()


async def test_a_store_that_is_only_read_keeps_what_is_refused(
    tier: Tier, keys: Keys, guard: Guard
) -> None:
    planted = make_artifact(WORD)
    await tier.put(planted, None)
    gated = verified(ReadOnly(tier), guard.gate)
    assert await gated.find(planted.header.key) == ()
    assert await tier.find(planted.header.key) == (planted.header,)


async def test_a_record_that_is_not_the_key_s_own_is_none(
    tier: Tier, keys: Keys, guard: Guard
) -> None:
    genuine = await signed(keys)
    await tier.put(genuine, make_record("another program"))
    assert await verified(tier, guard.gate).record(genuine.header.key) is None


async def test_a_row_that_points_elsewhere_is_refused(
    shared_redis: object, keys: Keys, guard: Guard
) -> None:
    """An index row in Redis about what is said to lie in a lower tier: its header is a forgery."""
    genuine = await signed(keys)
    low = MemoryTier(name="low")
    await low.put(genuine, None)
    redis = redis_tier(shared_redis)
    assert isinstance(redis, RedisTier)
    for gated in (verified(redis, guard.gate), verified(ReadOnly(redis), guard.gate)):
        assert isinstance(gated, VerifiedPointing)
        forged = with_header(genuine, target="cpu:16 any")
        await redis.point(forged.header, "low")
        assert await gated.pointed(genuine.header.key) == ()
        chain = ChainTier([gated, verified(low, guard.gate)])
        assert [h.target for h in await chain.find(genuine.header.key)] == ["cpu:16"]
        await gated.point(genuine.header, "low")  # what is true takes its place
        assert [h.signature for h, _ in await gated.pointed(genuine.header.key)] == [
            genuine.header.signature
        ]
        await redis.unpoint(genuine.header.key, genuine.header.digest)
    await redis.close()


async def test_the_next_tier_s_genuine_copy_answers_and_repairs(keys: Keys, guard: Guard) -> None:
    genuine = await signed(keys)
    high, low = MemoryTier(name="high"), MemoryTier(name="low")
    await high.put(Artifact(genuine.header.signed(b""), genuine.payload), None)
    await low.put(genuine, make_record(WORD))
    chain = ChainTier([verified(high, guard.gate), verified(low, guard.gate)])
    (header,) = await chain.find(genuine.header.key)
    got = await chain.get_with_source(header.key, header.digest)
    assert got is not None and got[1] == "low"
    await chain.settle()
    (repaired,) = await high.find(header.key)
    assert repaired.signature == genuine.header.signature
    await chain.close()


async def test_what_is_no_artifact_is_signed_by_name_and_content(keys: Keys, guard: Guard) -> None:
    """For plan manifests, bundles and aliases: kind, name and bytes belong together."""
    signature = await guard.notary.sign_content(PLAN_MANIFEST, "glm@tpu7x", b"entries", "p")
    guard.notary.check_content(PLAN_MANIFEST, "glm@tpu7x", b"entries", signature)
    for kind, name, content, given in (
        (BUNDLE, "glm@tpu7x", b"entries", signature),
        (PLAN_MANIFEST, "other@tpu7x", b"entries", signature),
        (PLAN_MANIFEST, "glm@tpu7x", b"entries and one more", signature),
        (PLAN_MANIFEST, "glm@tpu7x", b"entries", b""),
    ):
        with pytest.raises(ArtifactMismatch) as refused:
            guard.notary.check_content(kind, name, content, given)
        assert refused.value.reason == "signature"
    without = Notary(guard.notary.audit)
    assert await without.sign_content(PLAN_MANIFEST, "n", b"", "p") == b""
    without.check_content(PLAN_MANIFEST, "n", b"anything", b"")
    with pytest.raises(NotAllowed, match="only reads"):
        await Notary(guard.notary.audit, None, keys.verifier()).sign_content(BUNDLE, "n", b"", "p")


async def test_a_look_at_what_is_known_costs_no_signature_check(keys: Keys, guard: Guard) -> None:
    """Warm hits: 1000 looks at once-verified headers take less than 1000 verifications would."""
    import time

    genuine = (await signed(keys)).header
    verifier = keys.verifier()
    began = time.perf_counter()
    for _ in range(20):
        keys.verifier().check_header(genuine)
    cold = (time.perf_counter() - began) / 20
    verifier.check_header(genuine)
    began = time.perf_counter()
    for _ in range(1000):
        verifier.check_header(genuine)
    warm = (time.perf_counter() - began) / 1000
    assert warm < cold
