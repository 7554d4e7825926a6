"""Requests that nobody means well with: a clean status each, never INTERNAL, and the daemon goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import grpc
import pytest

from coldstart import wire
from coldstart.rpc.v1 import cache_pb2 as pb

METHODS = {
    "Hello": pb.HelloRequest,
    "Lookup": pb.LookupRequest,
    "Await": pb.AwaitRequest,
    "Fetch": pb.FetchRequest,
    "Reject": pb.RejectRequest,
    "Publish": pb.PublishRequest,
    "Renew": pb.RenewRequest,
    "Release": pb.ReleaseRequest,
    "Fail": pb.FailRequest,
    "Finish": pb.FinishRequest,
    "Batch": pb.BatchRequest,
    "GetRecord": pb.GetRecordRequest,
}
HARMLESS_EMPTY = {"Hello", "Release", "Batch"}
NOT_KEYS = (
    "",
    "cs1-",
    "cs1-" + "0" * 63,
    "cs1-" + "0" * 65,
    "cs1-" + "G" * 64,
    "../../etc/passwd",
    "cs1-" + "../" * 21 + "x",
    "cs1-" + "0" * 64 + "\n",
    "\u00b2-" + "0" * 64,
    "a" * 300 + "-" + "0" * 64,
)


def call(daemon, method: str, payload: bytes) -> grpc.StatusCode:
    """Send raw bytes to a method; OK where it answers."""
    path = f"/coldstart.rpc.v1.Cache/{method}"
    identity = {"request_serializer": lambda b: b, "response_deserializer": lambda b: b}
    try:
        if method == "Publish":
            daemon.channel.stream_unary(path, **identity)(iter([payload]), timeout=20)
        elif method == "Fetch":
            list(daemon.channel.unary_stream(path, **identity)(payload, timeout=20))
        else:
            daemon.channel.unary_unary(path, **identity)(payload, timeout=20)
    except grpc.RpcError as exc:
        return exc.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS)
def test_empty_messages(shared_daemon, method):
    code = call(shared_daemon, method, b"")
    if method in HARMLESS_EMPTY:
        assert code is grpc.StatusCode.OK
    else:
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message(shared_daemon, method):
    choose = random.Random(method)
    for size in (1, 7, 200):
        for _ in range(10):
            code = call(shared_daemon, method, b"\xff" + choose.randbytes(size))
            assert code in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.OK,
                grpc.StatusCode.ABORTED,
            )
    assert call(shared_daemon, method, b"\x0a\xff\xff\xff\xff\x7f") is (
        grpc.StatusCode.INVALID_ARGUMENT
    )


@pytest.mark.parametrize("key", NOT_KEYS)
def test_not_keys(shared_daemon, key):
    messages = {
        "Await": pb.AwaitRequest(lookup_id="x", key=key),
        "Fetch": pb.FetchRequest(lookup_id="x", key=key, digest="0" * 64),
        "Reject": pb.RejectRequest(lookup_id="x", key=key, digest="0" * 64),
        "Batch": pb.BatchRequest(keys=[key]),
        "GetRecord": pb.GetRecordRequest(key=key),
    }
    for method, message in messages.items():
        code = call(shared_daemon, method, message.SerializeToString())
        assert code is grpc.StatusCode.INVALID_ARGUMENT, (method, key)


@pytest.mark.parametrize("digest", ["", "../../../etc/passwd", "0" * 63, "F" * 64, "0" * 64 + "/"])
def test_not_digests(shared_daemon, digest):
    message = pb.FetchRequest(lookup_id="x", key="cs1-" + "0" * 64, digest=digest)
    code = call(shared_daemon, "Fetch", message.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def headers(good: bytes) -> Iterator[bytes]:
    """A good header, with one thing wrong at a time."""
    data = json.loads(good)

    def with_(**changes: object) -> bytes:
        return json.dumps({**data, **changes}, sort_keys=True, separators=(",", ":")).encode()

    yield b""
    yield b"null"
    yield b"[" * 100_000
    yield b"\xff\xfe"
    yield good[:-1]
    yield good + b" "
    yield with_(format=2)
    yield with_(surprise=1)
    yield with_(codec="lzma")
    yield with_(cpu_features="avx")
    yield with_(cpu_features=None)
    yield with_(cpu_features=[1])
    yield with_(cpu_features=["b", "a"])
    yield with_(cpu_features=["a", "a"])
    for name in ("key", "digest", "module_digest"):
        for value in ("", "../../x", None, 7, "0" * 64 + "/.."):
            yield with_(**{name: value})
    for name in ("payload_bytes", "raw_bytes", "partitions", "callbacks"):
        for value in (-1, 1.5, "1", None, True, 1 << 70):
            yield with_(**{name: value})
    for name in ("compile_seconds", "created_unix"):
        for value in (-1, "1", float("nan"), float("inf"), None):
            yield with_(**{name: value})
    for name in ("target", "platform", "producer", "program_name"):
        yield with_(**{name: None})


def test_headers_that_lie(shared_daemon, asking, new_record, made):
    one = asking(shared_daemon.cache, new_record)
    good = made.artifact(new_record)
    bad = (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    for header in headers(good.header.encode()):
        with pytest.raises(grpc.RpcError) as refused:
            one.publish(good, header=header)
        assert refused.value.code() in bad, (header[:200], refused.value)
    assert not one.publish(good).adopted  # nothing of that was stored


def test_a_publish_without_start_or_with_two(shared_daemon, asking, new_record, made):
    one = asking(shared_daemon.cache, new_record)
    good = made.artifact(new_record)
    start = pb.PublishRequest(
        start=pb.PublishStart(
            lookup_id=one.id, header=good.header.encode(), record=wire.record_to_pb(new_record)
        )
    )
    data = pb.PublishRequest(data=b"".join(good.payload.chunks()))
    for parts in ([], [data], [data, start], [start, start], [start, pb.PublishRequest(), data]):
        with pytest.raises(grpc.RpcError) as refused:
            shared_daemon.cache.Publish(iter(parts), timeout=20)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert one.lookup().WhichOneof("answer") == "lease"


def test_more_bytes_than_announced_are_not_read_to_the_end(shared_daemon, asking, new_record, made):
    one = asking(shared_daemon.cache, new_record)
    good = made.artifact(new_record)
    sent = 0

    def flood() -> Iterator[pb.PublishRequest]:
        nonlocal sent
        yield pb.PublishRequest(
            start=pb.PublishStart(
                lookup_id=one.id, header=good.header.encode(), record=wire.record_to_pb(new_record)
            )
        )
        for _ in range(2000):
            sent += 1
            yield pb.PublishRequest(data=bytes(1 << 20))

    with pytest.raises(grpc.RpcError) as refused:
        shared_daemon.cache.Publish(flood(), timeout=60)
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    assert sent < 2000


def test_too_large_for_the_daemon(start_daemon, asking, new_record, made):
    daemon = start_daemon("--max-artifact=1KiB")
    holder, waiter = (asking(daemon.cache, new_record) for _ in range(2))
    lease = holder.lookup().lease.lease_id
    waiter.lookup()
    big = made.artifact(new_record, raw=bytes(5000), codec="raw")
    assert holder.publish(big, lease).kept_local == pb.REASON_TOO_LARGE
    assert waiter.wait().refused.reason == pb.REASON_TOO_LARGE  # and compiles by itself


def test_too_large_for_the_store(tmp_path, start_daemon, asking, new_record, made):
    daemon = start_daemon(f"--store=disk://{tmp_path}/small?cs.limit=64KiB")
    one = asking(daemon.cache, new_record)
    lease = one.lookup().lease.lease_id
    big = made.artifact(new_record, raw=bytes(200_000), codec="raw")
    one.publish(big, lease)
    # the first tier (the fixture's own disk) has room: the second may refuse without failing the publish
    assert asking(daemon.cache, new_record).lookup().WhichOneof("answer") == "hit"


def test_ids_seconds_and_numbers_out_of_range(shared_daemon, asking, new_record):
    record = wire.record_to_pb(new_record)
    cases = {
        "Lookup": [
            pb.LookupRequest(lookup_id="", record=record),
            pb.LookupRequest(lookup_id="x" * 1000, record=record),
            pb.LookupRequest(lookup_id="a\nb", record=record),
            pb.LookupRequest(lookup_id="n", record=record, estimate_seconds=float("nan")),
            pb.LookupRequest(lookup_id="n", record=record, estimate_seconds=-1),
            pb.LookupRequest(lookup_id="n", raw_digest="../x"),
            pb.LookupRequest(lookup_id="n", record=record, namespace="x" * 1000),
            pb.LookupRequest(
                lookup_id="n", record=record, host=pb.Host(cpu_features=map(str, range(5000)))
            ),
            pb.LookupRequest(lookup_id="n", record=record, host=pb.Host(cpu_features=["x" * 1000])),
            pb.LookupRequest(lookup_id="n", record=pb.KeyRecord(scheme="cs9")),
            pb.LookupRequest(lookup_id="n", record=pb.KeyRecord(scheme="cs1")),
        ],
        "Await": [
            pb.AwaitRequest(lookup_id="n", key="cs1-" + "0" * 64, max_wait_seconds=float("inf"))
        ],
        "Finish": [
            pb.FinishRequest(lookup_id="n"),
            pb.FinishRequest(lookup_id="n", outcome=pb.OUTCOME_HIT),
            pb.FinishRequest(
                lookup_id="n",
                outcome=pb.OUTCOME_HIT,
                reason=pb.REASON_OK,
                load_seconds=float("nan"),
            ),
        ],
        "Batch": [pb.BatchRequest(keys=["cs1-" + "0" * 64] * 20_001)],
    }
    for method, messages in cases.items():
        for message in messages:
            code = call(shared_daemon, method, message.SerializeToString())
            assert code is grpc.StatusCode.INVALID_ARGUMENT, message


def test_an_oversized_message_is_refused_by_size(shared_daemon):
    message = pb.LookupRequest(lookup_id="x" * (65 << 20)).SerializeToString()
    assert call(shared_daemon, "Lookup", message) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nothing_of_all_this_is_internal(shared_daemon, asking, new_record):
    """Last in the file on purpose: the daemon's own log has the word."""
    assert asking(shared_daemon.cache, new_record).lookup().WhichOneof("answer") == "lease"
    assert "error" not in shared_daemon.log.read_text().lower()
