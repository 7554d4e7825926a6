"""The lookup table over the wire, against a real daemon."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from coldstart import artifact
from coldstart.errors import ArtifactCorrupt
from coldstart.identity.descriptor import DescriptorBuilder
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.wire_descriptor import descriptor_to_pb


def lease_of(reply: pb.LookupReply) -> str:
    assert reply.WhichOneof("answer") == "lease", reply
    return reply.lease.lease_id


def publish_one(asking, cache, record, made, **changes):
    first = asking(cache, record)
    one = made.artifact(record, **changes)
    reply = first.publish(one, lease_of(first.lookup()))
    first.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
    assert not reply.adopted and reply.digest == one.header.digest
    return one


def test_hello(shared_daemon):
    hello = shared_daemon.cache.Hello(pb.HelloRequest(scheme="cs1"), timeout=10)
    assert hello.scheme == "cs1" and hello.mode == pb.MODE_CANONICAL
    assert hello.lease_seconds == 15 and hello.heartbeat_seconds == 5
    assert hello.min_compile_seconds == 0.5
    nonce = Path(hello.volume.root, hello.volume.nonce_path)
    assert nonce.read_bytes()


def test_raw_digest_needs_the_descriptor_and_the_descriptor_gets_rewrites(
    shared_daemon, asking, new_record
):
    cache, one = shared_daemon.cache, asking(shared_daemon.cache, new_record)
    request = pb.LookupRequest(lookup_id=one.id, host=one.host, raw_digest="ab" * 32)
    assert cache.Lookup(request, timeout=10).WhichOneof("answer") == "need_descriptor"
    request = pb.LookupRequest(lookup_id=one.id, host=one.host, descriptor=smallest_descriptor())
    reply = cache.Lookup(request, timeout=10)
    assert reply.WhichOneof("answer") == "rewrites" and not reply.rewrites.rewrites
    assert one.lookup().WhichOneof("answer") == "lease"


def smallest_descriptor() -> bytes:
    builder = DescriptorBuilder("test")
    program, _ = builder.node(builder.string("builtin.module"))
    top, _ = builder.open_region(program)
    node, _ = builder.node(builder.string("func.func"))
    builder.function(node, "main", public=True)
    body, _ = builder.open_region(node)
    builder.node(builder.string("func.return"))
    builder.close_region(body)
    builder.close_region(top)
    return descriptor_to_pb(builder.build()).SerializeToString()


def test_cold_then_published_then_hit_by_stream(shared_daemon, asking, new_record, made):
    one = publish_one(asking, shared_daemon.cache, new_record, made, raw=b"x" * 3_000_000)
    second = asking(shared_daemon.cache, new_record)
    hit = second.lookup().hit
    assert artifact.decode_header(hit.header) == one.header
    assert hit.tier == "disk" and hit.path == "" and not hit.waited
    data = second.fetch(one.header.digest)
    header, offset = artifact.read_header(data)
    got = artifact.Artifact(header, artifact.BytesPayload(data[offset:]))
    assert artifact.decode(got) == b"x" * 3_000_000
    record = shared_daemon.cache.GetRecord(pb.GetRecordRequest(key=second.key), timeout=10)
    assert record.found and record.record.program_name == new_record.program_name


def test_hit_by_path_only_for_who_proves_the_volume(shared_daemon, asking, new_record, made):
    one = publish_one(asking, shared_daemon.cache, new_record, made)
    volume = shared_daemon.cache.Hello(pb.HelloRequest(), timeout=10).volume
    proof = Path(volume.root, volume.nonce_path).read_bytes()
    seeing = asking(shared_daemon.cache, new_record, volume_proof=proof).lookup().hit
    assert artifact.verify(artifact.open_file(Path(volume.root, seeing.path)))
    assert artifact.open_file(Path(volume.root, seeing.path)).header == one.header
    for wrong in (b"", b"x", proof[:-1], proof + b"x", proof[:-1] + b"\0"):
        assert not asking(shared_daemon.cache, new_record, volume_proof=wrong).lookup().hit.path


def test_the_same_lookup_asked_twice_has_one_lease(shared_daemon, asking, new_record):
    one = asking(shared_daemon.cache, new_record)
    assert lease_of(one.lookup()) == lease_of(one.lookup())


def test_busy_means_wait_and_wait_ends_as_a_hit(shared_daemon, asking, new_record, made):
    holder = asking(shared_daemon.cache, new_record)
    lease = lease_of(holder.lookup(estimate_seconds=100))
    waiter = asking(shared_daemon.cache, new_record)
    wait = waiter.lookup().wait
    assert wait.holder == f"test/{holder.id[:6]}"
    assert wait.estimate_seconds == 100 and wait.max_wait_seconds == 900
    assert waiter.wait(0.05).WhichOneof("answer") == "wait"
    holder.publish(made.artifact(new_record), lease)
    hit = waiter.wait().hit
    assert hit.waited and artifact.decode_header(hit.header).key == waiter.key


def test_a_release_hands_the_lease_to_a_waiter(shared_daemon, asking, new_record):
    holder, waiter = (asking(shared_daemon.cache, new_record) for _ in range(2))
    lease = lease_of(holder.lookup())
    assert waiter.lookup().WhichOneof("answer") == "wait"
    shared_daemon.cache.Release(pb.ReleaseRequest(lease_id=lease), timeout=10)
    assert waiter.wait().WhichOneof("answer") == "lease"


@pytest.mark.parametrize(
    "kind", [Reason.NEGATIVE_COMPILE, Reason.NEGATIVE_OOM, Reason.NEGATIVE_TIMEOUT]
)
def test_a_failed_compile_is_told_to_waiters_and_late_comers(
    shared_daemon, asking, new_record, kind
):
    cache = shared_daemon.cache
    holder, waiter, late = (asking(cache, new_record) for _ in range(3))
    lease = lease_of(holder.lookup())
    assert waiter.lookup().WhichOneof("answer") == "wait"
    wire_kind = pb.Reason.Value(f"REASON_{kind.name}")
    cache.Fail(pb.FailRequest(lease_id=lease, kind=wire_kind, message="HBM is full"), timeout=10)
    for reply in (waiter.wait(), late.lookup()):
        assert reply.refused.reason == wire_kind and reply.refused.message == "HBM is full"
    state = cache.Batch(pb.BatchRequest(keys=[holder.key]), timeout=10).answers[0]
    assert state.state == pb.KEY_STATE_NEGATIVE


def test_batch_takes_no_lease(shared_daemon, asking, made):
    cache = shared_daemon.cache
    absent, leased, there = (made.record(f"batch-{i}") for i in range(3))
    asking(cache, leased).lookup()
    one = publish_one(asking, cache, there, made)
    keys = [asking(cache, r).key for r in (absent, leased, there)]
    for _ in range(2):
        answers = cache.Batch(pb.BatchRequest(keys=keys), timeout=10).answers
        assert [a.state for a in answers] == [
            pb.KEY_STATE_ABSENT,
            pb.KEY_STATE_LEASED,
            pb.KEY_STATE_PRESENT,
        ]
    assert answers[2].digest == one.header.digest and answers[2].compile_seconds == 2.0


def test_reject_quarantines_and_hands_out_a_lease(shared_daemon, asking, new_record, made):
    cache = shared_daemon.cache
    one = publish_one(asking, cache, new_record, made)
    reader = asking(cache, new_record)
    reader.lookup()
    reject = pb.RejectRequest(
        lookup_id=reader.id, key=reader.key, digest=one.header.digest, reason=pb.REASON_CORRUPT
    )
    lease = lease_of(cache.Reject(reject, timeout=10))
    assert list((shared_daemon.store / "v1" / "quarantine").iterdir())
    two = made.artifact(new_record, raw=b"another compile")
    assert not reader.publish(two, lease).adopted
    after = asking(cache, new_record).lookup().hit
    assert artifact.decode_header(after.header).digest == two.header.digest
    kinds = [event.kind for event in shared_daemon.stats().events]
    assert "quarantined" in kinds and "replaced" in kinds


def test_a_reader_that_cannot_use_a_sound_copy_leaves_it_to_others(
    shared_daemon, asking, new_record, made
):
    cache = shared_daemon.cache
    one = publish_one(asking, cache, new_record, made)
    reader = asking(cache, new_record)
    reader.lookup()
    reject = pb.RejectRequest(
        lookup_id=reader.id, key=reader.key, digest=one.header.digest, reason=pb.REASON_CODEC
    )
    assert cache.Reject(reject, timeout=10).WhichOneof("answer") == "lease"
    assert asking(cache, new_record).lookup().WhichOneof("answer") == "hit"


def test_only_what_was_served_can_be_rejected(shared_daemon, asking, new_record, made):
    cache = shared_daemon.cache
    one = publish_one(asking, cache, new_record, made)
    stranger = asking(cache, new_record)
    stranger.lookup()
    reject = pb.RejectRequest(
        lookup_id=stranger.id, key=stranger.key, digest="0" * 64, reason=pb.REASON_CORRUPT
    )
    with pytest.raises(grpc.RpcError) as refused:
        cache.Reject(reject, timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert asking(cache, new_record).lookup().hit.header == one.header.encode()


def test_variants_go_to_hosts_that_can_load_them(shared_daemon, asking, new_record, made):
    cache = shared_daemon.cache
    rich, poor = ("avx2", "avx512f"), ("avx2",)
    first = asking(cache, new_record, cpu_features=rich)
    big = made.artifact(new_record, raw=b"big", cpu_features=rich)
    first.publish(big, lease_of(first.lookup()))
    second = asking(cache, new_record, cpu_features=poor)
    small = made.artifact(new_record, raw=b"small", cpu_features=poor)
    second.publish(small, lease_of(second.lookup()))
    served = {
        features: artifact.decode_header(
            asking(cache, new_record, cpu_features=features).lookup().hit.header
        ).digest
        for features in (rich, poor)
    }
    assert served == {rich: big.header.digest, poor: small.header.digest}
    assert asking(cache, new_record).lookup().WhichOneof("answer") == "lease"  # neither


def test_two_writers_adopt_the_first(shared_daemon, asking, new_record, made):
    """T26: two publish at once; one digest wins, the other is told which."""
    one, two = (asking(shared_daemon.cache, new_record) for _ in range(2))
    first, second = (made.artifact(new_record, raw=raw) for raw in (b"first", b"second"))
    lease = lease_of(one.lookup())
    assert not two.publish(first).adopted  # after a fallback, without a lease
    late = one.publish(second, lease)
    assert late.adopted and late.digest == first.header.digest
    hit = asking(shared_daemon.cache, new_record).lookup().hit
    assert artifact.decode_header(hit.header).digest == first.header.digest


def test_small_programs_stay_on_the_host_unless_planned(shared_daemon, asking, made, new_record):
    holder, waiter = (asking(shared_daemon.cache, new_record) for _ in range(2))
    small = made.artifact(new_record, compile_seconds=0.1)
    lease = lease_of(holder.lookup())
    waiter.lookup()
    assert holder.publish(small, lease).kept_local == pb.REASON_TOO_SMALL
    assert waiter.wait().refused.reason == pb.REASON_TOO_SMALL
    assert asking(shared_daemon.cache, new_record).lookup().refused.reason == pb.REASON_TOO_SMALL
    planned = asking(shared_daemon.cache, new_record, planned=True)
    reply = planned.publish(small, lease_of(planned.lookup()), planned=True)
    assert reply.kept_local == pb.REASON_UNSPECIFIED
    assert asking(shared_daemon.cache, new_record).lookup().WhichOneof("answer") == "hit"


def test_a_bad_digest_is_refused_and_nothing_is_left(shared_daemon, asking, new_record, made):
    one = asking(shared_daemon.cache, new_record)
    good = made.artifact(new_record, codec="raw", raw=b"y" * 500_000)
    data = b"".join(good.payload.chunks())
    lease = lease_of(one.lookup())
    for bad in (b"z" + data[1:], data[:-1], data + b"y", b""):
        with pytest.raises(grpc.RpcError) as refused:
            one.publish(good, lease, data=bad)
        assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    assert asking(shared_daemon.cache, new_record).lookup().WhichOneof("answer") == "lease"
    temporary = shared_daemon.store / "v1" / "tmp"
    assert not [p for p in temporary.iterdir() if not p.name.endswith(".owner")]


def test_a_header_must_fit_its_record(shared_daemon, asking, new_record, made):
    one = asking(shared_daemon.cache, new_record)
    other = made.record("somebody else's")
    lease = lease_of(one.lookup())
    for wrong in (
        made.artifact(new_record, key=asking(one.cache, other).key),
        made.artifact(new_record, module_digest="0" * 64),
        made.artifact(new_record, target="tpu:v7"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            one.publish(wrong, lease)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refused:
        asking(one.cache, other).publish(made.artifact(other), lease)  # somebody's lease
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "lease" in refused.value.details()


def test_observe_takes_no_lease_and_tells_what_would_hit(shared_daemon, asking, new_record, made):
    watching = asking(shared_daemon.cache, new_record)
    watching.host.mode = pb.MODE_OBSERVE
    assert watching.lookup().refused.reason == pb.REASON_MODE_OBSERVE
    assert lease_of(asking(shared_daemon.cache, new_record).lookup())
    first = asking(shared_daemon.cache, new_record)
    first.publish(made.artifact(new_record))
    assert watching.lookup().WhichOneof("answer") == "hit"


def test_another_namespace_is_refused(shared_daemon, asking, new_record):
    reply = asking(shared_daemon.cache, new_record).lookup(namespace="theirs")
    assert reply.refused.reason == pb.REASON_ROLE


def test_renewing_an_unknown_lease_is_lease_lost(shared_daemon):
    with pytest.raises(grpc.RpcError) as lost:
        shared_daemon.cache.Renew(pb.RenewRequest(lease_id="nobody's"), timeout=10)
    assert lost.value.code() is grpc.StatusCode.ABORTED


def test_an_evicted_artifact_is_known_to_have_been_there(shared_daemon, asking, new_record, made):
    one = publish_one(asking, shared_daemon.cache, new_record, made, compile_seconds=40.0)
    # As another daemon on this store evicts: the entry goes first, then the object.
    for path in (shared_daemon.store / "v1" / "keys").rglob(f"{one.header.key}/*"):
        os.unlink(path)
    for path in (shared_daemon.store / "v1" / "objects").rglob(f"{one.header.digest}-*"):
        os.unlink(path)
    again = asking(shared_daemon.cache, new_record)
    reply = again.lookup()
    assert reply.lease.reason == pb.REASON_EVICTED
    wait = asking(shared_daemon.cache, new_record).lookup().wait
    assert (
        wait.estimate_seconds == 40 and wait.max_wait_seconds == 60
    )  # 1.5 times what is on record


def test_fetching_what_is_gone_is_said_plainly(shared_daemon, asking, new_record):
    one = asking(shared_daemon.cache, new_record)
    with pytest.raises(grpc.RpcError) as gone:
        one.fetch("0" * 64)
    assert gone.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert ArtifactCorrupt.status == "DATA_LOSS"  # not said of what is merely gone


def test_a_notice_is_an_event_and_no_lookup(shared_daemon):
    before = shared_daemon.stats()
    notice = pb.NoticeRequest(
        reason=pb.REASON_GROUP_MISMATCH, program_name="jit_step", message="m" * 9000, holder="pod-1"
    )
    shared_daemon.cache.Notice(notice)
    after = shared_daemon.stats()
    said = after.events[-1]
    assert said.kind == "group-mismatch" and said.message.startswith("pod-1: jit_step: mmm")
    assert len(said.message) < 3000
    assert after.lookups == before.lookups and after.open_lookups == before.open_lookups
    notice.reason = pb.REASON_CORRUPT
    with pytest.raises(grpc.RpcError) as refused:
        shared_daemon.cache.Notice(notice)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_tcp_listener_answers_too(shared_daemon, asking, new_record):
    from coldstart.rpc.v1 import cache_pb2_grpc

    address = shared_daemon.ready["addresses"][1].removeprefix("tcp://")
    with grpc.insecure_channel(address) as channel:
        reply = asking(cache_pb2_grpc.CacheStub(channel), new_record).lookup()
    assert reply.refused.reason == pb.REASON_ROLE and "anyone" in reply.refused.message
