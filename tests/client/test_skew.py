"""Clients and daemons of different releases meet. There is no earlier release yet: support/skew.py simulates one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hooked import lookups, run
from skew import between, newer, older

import coldstart
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

# What an older release might not have had: everything that a lookup and a publish can do without.
SINCE = {
    "HelloReply": ["volume", "min_compile_seconds", "heartbeat_seconds"],
    "Host": ["planned"],
    "LookupRequest": ["estimate_seconds", "may_hit", "final_program"],
    "LookupReply": ["record"],
    "Hit": ["waited", "tier", "rewrites", "record"],
    "Lease": ["reason", "rewrites"],
    "Wait": ["holder", "estimate_seconds", "rewrites"],
    "FinishRequest": ["fetch_seconds", "load_seconds", "identify_seconds", "wait_seconds"],
}
CALLS_SINCE = ("Upload", "Batch", "GetRecord", "Notice")


def cold_and_warm(address: str, compiles: list[str]) -> dict[tuple[Outcome, Reason], int]:
    """One compile and one hit under the hook, and how they ended."""
    assert coldstart.install(address, strict=True)
    try:
        first = run()
        second = run()
        assert coldstart.flush()
        np.testing.assert_array_equal(first[0], second[0])
        report = coldstart.report()
        assert report is not None and report.not_stored == {} and report.lost_seconds == 0
        return dict(lookups())
    finally:
        coldstart.uninstall()


def test_an_older_daemon(daemon: Any, tmp_path: Path, compiles: list[str]) -> None:
    """What it lacks is done without: no volume, no reasons, a publish in a stream. Nobody takes it for down."""
    change = older(SINCE)
    with between(daemon.address, tmp_path, request=change, reply=change, missing=CALLS_SINCE) as (
        address,
        peer,
    ):
        ended = cold_and_warm(address, compiles)
    assert compiles == ["jit_program"]
    assert ended.pop((Outcome.HIT, Reason.OK)) == 1
    # It doesn't say why nobody had it: that reads as `version`, and is counted.
    assert ended == {(Outcome.ERROR, Reason.VERSION): 1}
    assert peer.called.count("Publish") == 1 and "Fetch" in peer.called
    assert len(daemon.artifacts()) == 1


def test_a_newer_daemon(daemon: Any, tmp_path: Path, compiles: list[str]) -> None:
    with between(daemon.address, tmp_path, reply=newer) as (address, _):
        ended = cold_and_warm(address, compiles)
    assert compiles == ["jit_program"]
    assert ended == {(Outcome.MISS, Reason.COLD): 1, (Outcome.HIT, Reason.OK): 1}


def _answering(**fields: Any) -> Any:
    """A daemon whose every lookup is answered so."""

    def change(name: str, data: bytes) -> bytes:
        if name != "LookupReply":
            return data
        return bytes(pb.LookupReply(mode=pb.MODE_CANONICAL, **fields).SerializeToString())

    return change


def _unheard_of(name: str, data: bytes) -> bytes:
    """An answer of a kind that is not known here: field 4000, in place of the known ones."""
    if name != "LookupReply":
        return data
    return bytes(pb.LookupReply(mode=pb.MODE_CANONICAL).SerializeToString()) + b"\x82\xfa\x01\x00"


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        (_unheard_of, (Outcome.ERROR, Reason.VERSION)),
        (_answering(refused=pb.Refused(reason=9999)), (Outcome.REFUSED, Reason.VERSION)),
        (_answering(refused=pb.Refused()), (Outcome.REFUSED, Reason.VERSION)),
        (_answering(lease=pb.Lease(lease_id="x", reason=9999)), (Outcome.ERROR, Reason.VERSION)),
    ],
)
def test_answers_that_are_not_known_here_end_in_a_compile(
    daemon: Any, tmp_path: Path, compiles: list[str], change: Any, ends: tuple[Outcome, Reason]
) -> None:
    with between(daemon.address, tmp_path, reply=change) as (address, _):
        assert coldstart.install(address, mode="exact", strict=True)
        try:
            run()
            assert compiles == ["jit_program"]
            assert lookups() == {ends: 1}
        finally:
            coldstart.uninstall()


def test_a_mode_that_is_not_known_here_reads_as_the_least(
    daemon: Any, tmp_path: Path, compiles: list[str]
) -> None:
    def change(name: str, data: bytes) -> bytes:
        if name != "LookupReply":
            return data
        reply = pb.LookupReply.FromString(data)
        reply.mode = 77  # type: ignore[assignment]
        return bytes(reply.SerializeToString())

    assert coldstart.install(daemon.address, strict=True)
    run()
    coldstart.uninstall()
    with between(daemon.address, tmp_path, reply=change) as (address, _):
        assert coldstart.install(address, strict=True)
        try:
            run()
            assert compiles == ["jit_program"] * 2
            assert lookups() == {(Outcome.REFUSED, Reason.MODE_OBSERVE): 1}
        finally:
            coldstart.uninstall()


def test_a_newer_client(daemon: Any, tmp_path: Path, compiles: list[str]) -> None:
    with between(daemon.address, tmp_path, request=newer) as (address, _):
        ended = cold_and_warm(address, compiles)
    assert compiles == ["jit_program"]
    assert ended == {(Outcome.MISS, Reason.COLD): 1, (Outcome.HIT, Reason.OK): 1}


def test_an_older_client(daemon: Any, tmp_path: Path, compiles: list[str]) -> None:
    """Its requests lack what came since; the answers reach it whole, as it skips what it doesn't know."""
    with between(daemon.address, tmp_path, request=older(SINCE)) as (address, _):
        ended = cold_and_warm(address, compiles)
    assert compiles == ["jit_program"]
    assert ended == {(Outcome.MISS, Reason.COLD): 1, (Outcome.HIT, Reason.OK): 1}


def test_words_of_a_newer_client_are_counted_and_unknown_calls_are_said_to_be(daemon: Any) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        cache = cache_pb2_grpc.CacheStub(channel)
        cache.Finish(pb.FinishRequest(lookup_id="n", outcome=88, reason=9999), timeout=10)  # type: ignore[arg-type]
        with pytest.raises(grpc.RpcError) as refused:
            cache.Lookup(pb.LookupRequest(lookup_id="m", host=pb.Host(mode=77)), timeout=10)  # type: ignore[arg-type]
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = channel.unary_unary("/coldstart.rpc.v1.Cache/Later")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    (count,) = daemon.stats().lookups
    assert (count.outcome, count.reason, count.count) == (pb.OUTCOME_ERROR, pb.REASON_VERSION, 1)


def test_another_scheme_is_refused_by_name_and_compiled(
    daemon: Any, tmp_path: Path, compiles: list[str]
) -> None:
    """A client whose keys are made otherwise: this daemon can't make them, and says which it makes."""

    def change(name: str, data: bytes) -> bytes:
        if name != "LookupRequest":
            return data
        request = pb.LookupRequest.FromString(data)
        if request.HasField("record"):
            request.record.scheme = "cs2"
        return bytes(request.SerializeToString())

    with between(daemon.address, tmp_path, request=change) as (address, _):
        assert coldstart.install(address, strict=False)
        try:
            run()
            run()
            assert compiles == ["jit_program"] * 2
            assert lookups() == {(Outcome.ERROR, Reason.VERSION): 2}
            report = coldstart.report()
            assert report is not None and report.lost_seconds == 0  # it is not down
        finally:
            coldstart.uninstall()
