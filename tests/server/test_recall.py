"""A hit by raw digest: what a raw program came to before, handed out with its record, and never more than that."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest

from coldstart import wire
from coldstart.identity.key import key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb


@pytest.fixture
def raw() -> str:
    return hashlib.sha256(uuid.uuid4().bytes).hexdigest()


def by_raw(
    cache: Any, lookup_id: str, raw: str, *, mode: int = pb.MODE_CANONICAL, **about: Any
) -> pb.LookupReply:
    about.setdefault("may_hit", True)
    request = pb.LookupRequest(
        lookup_id=lookup_id, host=pb.Host(mode=mode), raw_digest=raw, **about
    )
    return cache.Lookup(request, timeout=30)


def stored(daemon: Any, asking: Any, made: Any, record: Any, raw: str) -> Any:
    """One participant's whole way: raw digest, record, lease, publish."""
    one = asking(daemon.cache, record)
    assert by_raw(daemon.cache, one.id, raw).WhichOneof("answer") == "need_descriptor"
    lease = one.lookup().lease
    artifact = made.artifact(record)
    one.publish(artifact, lease.lease_id)
    one.finish(Outcome.MISS, Reason.COLD, program_name=record.program_name, compile_seconds=2.0)
    return artifact


def test_the_next_one_is_served_at_once(shared_daemon, asking, made, new_record, raw) -> None:
    artifact = stored(shared_daemon, asking, made, new_record, raw)
    two = asking(shared_daemon.cache, new_record)
    reply = by_raw(shared_daemon.cache, two.id, raw)
    assert reply.key == key_of(new_record)
    assert reply.hit.header == artifact.header.encode()
    assert wire.record_from_pb(reply.hit.record) == new_record
    assert two.fetch(artifact.header.digest)
    before = {(c.outcome, c.reason): c.count for c in shared_daemon.stats().lookups}
    two.finish(Outcome.HIT, Reason.OK, tier=reply.hit.tier)
    after = {(c.outcome, c.reason): c.count for c in shared_daemon.stats().lookups}
    assert sum(after.values()) == sum(before.values()) + 1


def test_without_may_hit_it_is_never_answered_so(
    shared_daemon, asking, made, new_record, raw
) -> None:
    """A client of before reads a raw digest's answer as rewrites or a question only."""
    stored(shared_daemon, asking, made, new_record, raw)
    reply = by_raw(shared_daemon.cache, uuid.uuid4().hex, raw, may_hit=False)
    assert reply.WhichOneof("answer") == "need_descriptor"


@pytest.mark.parametrize("about", [{"mode": pb.MODE_OBSERVE}, {"namespace": "other"}])
def test_whoever_may_not_have_it_is_not_served(
    shared_daemon, asking, made, new_record, raw, about: dict[str, Any]
) -> None:
    stored(shared_daemon, asking, made, new_record, raw)
    reply = by_raw(shared_daemon.cache, uuid.uuid4().hex, raw, **about)
    assert reply.WhichOneof("answer") in ("rewrites", "need_descriptor")


def test_a_daemon_that_only_does_exact_knows_no_canonical_alias(
    start_daemon, asking, made, new_record, raw
) -> None:
    daemon = start_daemon("--mode=exact")
    one = asking(daemon.cache, new_record)
    assert by_raw(daemon.cache, one.id, raw).WhichOneof("answer") == "rewrites"
    one.publish(made.artifact(new_record), one.lookup().lease.lease_id)
    assert by_raw(daemon.cache, uuid.uuid4().hex, raw).WhichOneof("answer") == "rewrites"
    # Who asks for exact gets exact, and is remembered.
    two, exact = asking(daemon.cache, new_record), raw[::-1]
    by_raw(daemon.cache, two.id, exact, mode=pb.MODE_EXACT)
    assert two.lookup().WhichOneof("answer") == "hit"
    again = by_raw(daemon.cache, uuid.uuid4().hex, exact, mode=pb.MODE_EXACT)
    assert again.key == two.key


def test_nothing_stored_is_no_lease(shared_daemon, asking, made, new_record, raw) -> None:
    one = asking(shared_daemon.cache, new_record)
    by_raw(shared_daemon.cache, one.id, raw)
    lease = one.lookup().lease
    two = asking(shared_daemon.cache, new_record)
    reply = by_raw(shared_daemon.cache, two.id, raw)
    assert reply.WhichOneof("answer") == "need_descriptor" and not reply.key
    assert two.lookup().WhichOneof("answer") == "wait"
    one.publish(made.artifact(new_record), lease.lease_id)
    assert two.wait(10).WhichOneof("answer") == "hit"


def test_a_wrong_alias_is_put_right_by_the_next_record(
    shared_daemon, asking, made, new_record, raw
) -> None:
    stored(shared_daemon, asking, made, new_record, raw)
    right = made.record(f"right {raw}")
    two = asking(shared_daemon.cache, right)
    assert by_raw(shared_daemon.cache, two.id, raw).key == key_of(new_record)
    assert two.lookup().WhichOneof("answer") == "lease"  # it made another key of its program
    two.publish(made.artifact(right), "")
    assert by_raw(shared_daemon.cache, uuid.uuid4().hex, raw).key == key_of(right)


def test_a_rejected_copy_ends_in_a_lease_and_the_record_gets_the_same(
    shared_daemon, asking, made, new_record, raw
) -> None:
    artifact = stored(shared_daemon, asking, made, new_record, raw)
    two = asking(shared_daemon.cache, new_record)
    by_raw(shared_daemon.cache, two.id, raw)
    bad = pb.RejectRequest(
        lookup_id=two.id,
        key=two.key,
        digest=artifact.header.digest,
        reason=wire.reason_to_pb(Reason.CORRUPT),
    )
    lease = shared_daemon.cache.Reject(bad, timeout=30).lease
    assert lease.lease_id
    assert by_raw(shared_daemon.cache, two.id, raw).WhichOneof("answer") == "need_descriptor"
    assert two.lookup().lease.lease_id == lease.lease_id
    two.publish(made.artifact(new_record), lease.lease_id)
    three = by_raw(shared_daemon.cache, uuid.uuid4().hex, raw)
    assert three.WhichOneof("answer") == "hit"
