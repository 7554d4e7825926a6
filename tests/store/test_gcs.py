"""The tier in a bucket, over a real object store: what the contract does not ask. Faults: test_gcs_matrix.py."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable

import pytest
from gcs_proxy import OPS, WRITES
from gcs_server import Cloud, gcs_tier, open_bucket

from coldstart.artifact import Artifact, verify
from coldstart.errors import ArtifactCorrupt, TierError, TierFull, TierNotReady, TierTimeout
from coldstart.store.breaker import Breaker
from coldstart.store.tier import Tier

New = Callable[..., Artifact]
FOLDER = "team/x/coldstart/v1/artifacts"


@pytest.fixture
async def tiers(cloud: Cloud) -> AsyncIterator[Callable[..., Tier]]:
    """Tiers of as many daemons in one bucket; all are closed."""
    made: list[Tier] = []

    def make(**how: object) -> Tier:
        made.append(gcs_tier(cloud, **how))
        return made[-1]

    yield make
    cloud.proxy.heal()
    for tier in made:
        await tier.close()


def large(new_artifact: New, word: str, fill: bytes, size: int = 9_000_000) -> Artifact:
    """Larger than what the library sends in one request."""
    return new_artifact(word, fill * size)


# --- what is written where, and what is left alone -----------------------------------------------------------


async def test_one_object_for_each_variant_below_the_prefix(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
    new_record: Callable[..., object],
) -> None:
    tier = tiers()
    plain, wide = new_artifact("a"), new_artifact("a", cpu_features=("avx2",))
    for one in (plain, wide):
        await tier.put(one, new_record("a"))
    names = {f"{FOLDER}/{plain.header.key}/{v}" for v in ("any", wide.header.variant)}
    assert set(cloud.names()) == names
    kept = cloud.server.read(cloud.bucket, f"{FOLDER}/{plain.header.key}/any")
    assert kept.startswith(plain.header.prefix() + b"code")


async def test_strangers_are_ignored_and_left_alone(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    tier, made = tiers(), new_artifact("a")
    theirs = {
        f"{FOLDER}/{made.header.key}/any": b"somebody's notes",
        f"{FOLDER}/{made.header.key}/any.tmp": made.header.prefix(),
        f"{FOLDER}/readme.txt": b"hands off",
        "other/coldstart/v1/x": b"",
    }
    for name, data in theirs.items():
        cloud.server.write(cloud.bucket, name, data, {"owner": "somebody"})
    assert await tier.find(made.header.key) == ()
    with pytest.raises(TierError, match=r"not written by coldstart.*left alone") as found:
        await tier.put(made, None)
    assert found.value.lasting
    assert await tier.delete(made.header.key, made.header.digest) is False
    assert await tier.quarantine(made.header.key, made.header.digest, "corrupt") is False
    assert {name: cloud.server.read(cloud.bucket, name) for name in cloud.names()} == theirs
    assert not cloud.proxy.asked(*WRITES)


async def test_a_reader_changes_nothing_not_even_what_is_bad(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    made, reader = new_artifact("a"), tiers(write=False)
    await tiers().put(made, None)
    cloud.server.damage(cloud.bucket, cloud.only(), lambda data: data[:-2] + b"??")
    cloud.proxy.requests.clear()
    with pytest.raises(ArtifactCorrupt):
        await reader.get(made.header.key, made.header.digest)
    for call in (
        reader.put(made, None),
        reader.delete(made.header.key, made.header.digest),
        reader.quarantine(made.header.key, made.header.digest, "corrupt"),
    ):
        with pytest.raises(TierError, match="read-only"):
            await call
    assert not cloud.proxy.asked(*WRITES) and not reader.writable


async def test_a_bad_copy_is_kept_aside_and_the_next_put_wins(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    tier, made, other = tiers(), new_artifact("a", b"x" * 999), new_artifact("a", b"y")
    await tier.put(made, None)
    cloud.server.damage(cloud.bucket, cloud.only(), lambda data: data[:-9] + b"?" + data[-8:])
    with pytest.raises(ArtifactCorrupt):
        await tier.get(made.header.key, made.header.digest)
    assert cloud.only("/quarantine/") and not [n for n in cloud.names() if "/artifacts/" in n]
    assert tier.damaged_recently(made.header.key)
    assert await tier.put(other, None) == other.header
    assert not tier.damaged_recently(made.header.key)


async def test_a_late_finder_of_a_bad_copy_does_not_take_the_repaired_one_away(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    late, made = tiers(), new_artifact("a", b"x" * 999)
    await tiers().put(made, None)
    cloud.server.damage(cloud.bucket, cloud.only(), lambda data: data[:-9] + b"?" + data[-8:])
    (seen,) = await late._bucket.list(f"{FOLDER}/")
    assert await tiers().put(made, None) == made.header  # publishing again repairs it
    assert await late._remove(seen) is False
    got = await tiers().get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"x" * 999


# --- the first one wins --------------------------------------------------------------------------------------


async def test_two_writers_of_different_bytes_agree(
    tiers: Callable[..., Tier], new_artifact: New
) -> None:
    """T26: the first published wins, the others adopt it, and everybody sees that one ever after."""
    made = [new_artifact("a", bytes([n]) * 1000) for n in range(8)]
    writers = [tiers() for _ in made]
    headers = await asyncio.gather(
        *(tier.put(one, None) for tier, one in zip(writers, made, strict=True))
    )
    (winner,) = set(headers)
    for tier in writers:
        assert await tier.find(winner.key) == (winner,)
        got = await tier.get(winner.key, winner.digest)
        assert got is not None and got.header == winner and verify(got)


async def test_large_ones_are_created_only_once_too(
    tiers: Callable[..., Tier], new_artifact: New
) -> None:
    first, second = large(new_artifact, "a", b"1"), large(new_artifact, "a", b"2")
    headers = await asyncio.gather(tiers().put(first, None), tiers().put(second, None))
    assert len(set(headers)) == 1
    got = await tiers().get(headers[0].key, headers[0].digest)
    assert got is not None and verify(got)[:1] in (b"1", b"2")


async def test_where_conditions_are_ignored_nobody_is_served_other_bytes_than_asked_for(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    cloud.proxy.honours = False
    first, second = new_artifact("a", b"1" * 999), new_artifact("a", b"2" * 999)
    assert await tiers().put(first, None) == first.header
    assert await tiers().put(second, None) == first.header  # looked at before it writes
    made = [new_artifact("b", bytes([n]) * 1000) for n in range(8)]
    headers = await asyncio.gather(*(tiers().put(one, None) for one in made))
    stays = (await tiers().find(made[0].header.key))[0]
    for header in headers:
        got = await tiers().get(header.key, header.digest)
        assert (got is not None and verify(got)) if header == stays else got is None


async def test_a_reader_sees_nothing_or_all_while_a_put_is_slow(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    """T22."""
    made = large(new_artifact, "a", b"slow", 5_000_000)
    cloud.proxy.fail(ops=("write",), seconds=0.3)
    putting = asyncio.ensure_future(tiers(patience={"call_seconds": 20}).put(made, None))
    reader = tiers()
    seen = []
    while not putting.done():
        seen.append(await reader.find(made.header.key))
        await asyncio.sleep(0.02)
    assert await putting == made.header
    assert len(seen) > 3 and set(seen[:-1]) <= {(), (made.header,)} and seen[0] == ()
    got = await reader.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"slow" * 5_000_000


# --- what is remembered --------------------------------------------------------------------------------------


async def test_that_it_is_there_is_remembered_for_a_minute_and_that_it_is_not_never(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    now = [1000.0]
    reader, made = tiers(now=lambda: now[0]), new_artifact("a")
    for _ in range(3):
        assert await reader.find(made.header.key) == ()
    assert len(cloud.proxy.asked("list")) == 3
    await tiers().put(made, None)
    cloud.proxy.requests.clear()
    for _ in range(50):
        assert await reader.find(made.header.key) == (made.header,)
    assert len(cloud.proxy.asked()) == 2  # a list and the start of the object
    now[0] += 61
    cloud.server.delete(cloud.bucket, cloud.only())
    assert await reader.find(made.header.key) == ()


async def test_what_went_or_was_replaced_while_it_was_remembered_is_a_miss_or_the_new_one(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    reader, writer = tiers(), tiers()
    made, other = new_artifact("a", b"1"), new_artifact("a", b"2")
    await writer.put(made, None)
    assert await reader.find(made.header.key) == (made.header,)
    await writer.delete(made.header.key, made.header.digest)
    await writer.put(other, None)
    assert await reader.get(made.header.key, made.header.digest) is None
    assert await reader.find(made.header.key) == (other.header,)
    await writer.delete(other.header.key, other.header.digest)
    await writer.put(other, None)  # another generation of the same bytes
    got = await reader.get(other.header.key, other.header.digest)
    assert got is not None and verify(got) == b"2"


# --- patience ------------------------------------------------------------------------------------------------


async def test_a_black_hole_costs_each_call_its_deadline_and_no_more(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    """T18 at the tier: more calls at once than there are threads, and each within its deadline and a fifth."""
    tier = tiers(patience={"call_seconds": 1.0, "idle_seconds": 1.0})
    await tier.find(new_artifact("a").header.key)  # the library is loaded by now
    cloud.proxy.fail(silent=True)

    async def timed(n: int) -> float:
        began = time.monotonic()
        with pytest.raises(TierTimeout):
            await tier.find(new_artifact(str(n)).header.key)
        return time.monotonic() - began

    seconds = await asyncio.gather(*(timed(n) for n in range(24)))
    assert max(seconds) <= 1.2, sorted(seconds)[-3:]


async def test_a_body_that_stops_coming_is_given_up_and_one_cut_is_asked_for_again(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    words: list[str] = []
    tier = gcs_tier(cloud)
    tier._bucket._on_retry = words.append
    made = new_artifact("a", b"x" * 200_000)
    await tier.put(made, None)
    await tier.find(made.header.key)
    cloud.proxy.fail(ops=("read",), times=2, cut_after=100_000)
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) and words == ["error", "error"]
    cloud.proxy.fail(ops=("read",), cut_after=100_000)
    with pytest.raises(TierError):
        await tier.get(made.header.key, made.header.digest)
    await tier.close()


async def test_a_bit_flipped_on_the_way_is_read_again_and_nothing_is_put_aside(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    tier, made = tiers(), new_artifact("a", b"x" * 50_000)
    await tier.put(made, None)
    cloud.proxy.fail(ops=("read",), times=1, flip_at=100)  # in the header
    assert await tier.find(made.header.key) == (made.header,)
    cloud.proxy.fail(ops=("read",), times=1, flip_at=30_000)  # in the payload
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"x" * 50_000
    assert not cloud.proxy.asked("delete", "copy")


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (403, "forbidden", TierError),
        (403, "rateLimitExceeded", TierFull),
        (408, "timeout", TierTimeout),
        (429, "rateLimitExceeded", TierFull),
        (500, "backendError", TierError),
        (503, "backendError", TierError),
    ],
)
async def test_some_answers_are_worth_another_try_with_growing_pauses(
    cloud: Cloud,
    new_artifact: New,
    status: int,
    reason: str,
    error: type[TierError],
) -> None:
    words: list[str] = []
    tier = gcs_tier(cloud, patience={"backoff_seconds": 0.1, "call_seconds": 20})
    tier._bucket._on_retry = words.append
    made = new_artifact("a")
    cloud.proxy.fail(ops=("write",), times=3, status=status, reason=reason)
    assert await tier.put(made, None) == made.header
    word = {TierFull: "full", TierTimeout: "timeout"}.get(error, "error")
    assert words == [word] * 3
    at = [seen.at for seen in cloud.proxy.asked("write")]
    pauses = [later - sooner for sooner, later in itertools.pairwise(at)]
    assert len(pauses) == 3 and all(p >= 0.05 * 2**n for n, p in enumerate(pauses)), pauses
    cloud.proxy.fail(ops=("list",), status=status, reason=reason)
    tries = len(cloud.proxy.asked("list"))
    with pytest.raises(error) as found:
        await tier.find(new_artifact("b").header.key)
    assert type(found.value) is error and str(status) in str(found.value)
    assert len(cloud.proxy.asked("list")) - tries == 3  # bounded
    await tier.close()


async def test_an_upload_whose_answer_was_lost_is_found_to_be_ones_own(
    cloud: Cloud,
    tiers: Callable[..., Tier],
    new_artifact: New,
) -> None:
    made = new_artifact("a")
    cloud.proxy.fail(ops=("write",), times=1, cut_after=10)
    assert await tiers().put(made, None) == made.header
    assert [seen.status for seen in cloud.proxy.asked("write")] == [200, 412]


# --- credentials ---------------------------------------------------------------------------------------------


def credentials(answers: Callable[[int], str]) -> object:
    """Real ones of google-auth's kind, whose n-th token is `answers(n)`, which may raise."""
    from google.auth.credentials import Credentials

    class Numbered(Credentials):
        refreshes = 0

        def refresh(self, request: object) -> None:
            self.refreshes += 1
            self.token = answers(self.refreshes)

    return Numbered()


async def test_a_token_that_ran_out_is_renewed_once(cloud: Cloud, new_artifact: New) -> None:
    from coldstart.store.gcs import GcsTier

    tokens = credentials(lambda n: f"token-{n}")
    tier = GcsTier(open_bucket(cloud, credentials=tokens), "team/x")
    cloud.proxy.tokens = {"Bearer token-1"}
    assert await tier.find(new_artifact("a").header.key) == ()
    cloud.proxy.tokens = {"Bearer token-2"}
    assert await tier.find(new_artifact("a").header.key) == ()
    assert tokens.refreshes == 2
    cloud.proxy.tokens = {"Bearer none"}
    cloud.proxy.requests.clear()
    with pytest.raises(TierError, match="401"):
        await tier.put(new_artifact("a"), None)
    assert [seen.op for seen in cloud.proxy.asked()] == ["stat"] * 2  # no write after that
    assert tokens.refreshes == 3
    await tier.close()


async def test_credentials_that_are_not_there_at_the_start_open_no_breaker(
    cloud: Cloud,
    new_artifact: New,
) -> None:
    from google.auth.exceptions import RefreshError

    from coldstart.store.gcs import GcsTier

    there = []

    def answer(n: int) -> str:
        if not there:
            raise RefreshError("the metadata server is not there yet")
        return "token"

    key = new_artifact("a").header.key
    starting = GcsTier(open_bucket(cloud, credentials=credentials(answer)))
    breaker = Breaker(starting)
    for _ in range(6):
        with pytest.raises(TierNotReady, match="no credentials yet"):
            await breaker.find(key)
    assert not breaker.open
    there.append(True)
    assert await breaker.find(key) == ()
    there.clear()
    old = GcsTier(
        open_bucket(cloud, credentials=credentials(answer), patience={"grace_seconds": 0})
    )
    with pytest.raises(TierError, match="no credentials") as found:
        await old.find(key)
    assert not isinstance(found.value, TierNotReady)
    await breaker.close()
    await old.close()


async def test_a_bucket_that_does_not_exist_is_no_miss(cloud: Cloud, new_artifact: New) -> None:
    cloud.bucket = "no-such-bucket"
    tier = gcs_tier(cloud)
    with pytest.raises(TierError, match="there is no bucket no-such-bucket"):
        await tier.find(new_artifact("a").header.key)
    await tier.close()


async def test_close_does_not_wait_for_silence(
    cloud: Cloud,
    new_artifact: New,
) -> None:
    tier = gcs_tier(cloud, patience={"call_seconds": 30, "idle_seconds": 30})
    cloud.proxy.fail(ops=OPS, silent=True)
    asking = asyncio.ensure_future(tier.find(new_artifact("a").header.key))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await tier.close()
    assert time.monotonic() - began < 5
    cloud.proxy.heal()
    await asyncio.wait({asking}, timeout=20)
    assert asking.done() and (
        asking.exception() is None or isinstance(asking.exception(), TierError)
    )
