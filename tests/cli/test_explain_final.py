"""`explain` and `lookup` for keys of final descriptors: of a runtime that is not JAX."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from views_runtime import Participant, attention

from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server.in_process import daemon_in_process


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[str, str]]]:
    """A daemon's address, its store, and keys: two offsets share one, two others are read."""
    store = f"disk://{tmp_path_factory.mktemp('store')}"
    with daemon_in_process([store]) as address:
        one, exact = Participant(address), Participant(address, mode=pb.MODE_EXACT)
        keys = {
            "sparse": one.obtain(attention(32)).key,
            "dense 1": one.obtain(attention(32, dense=True)).key,
            "dense 2": one.obtain(attention(64, dense=True)).key,
            "exact": exact.obtain(attention(32)).key,
        }
        assert one.obtain(attention(64)).key == keys["sparse"]
        one.close()
        exact.close()
        yield address, store, keys


def test_what_was_stripped_and_why(coldstart, told) -> None:
    address, _, keys = told
    done = coldstart("explain", keys["sparse"], "--address", address)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "two raw programs of this key differ in 1 fact; rules strip 1 of them" in text
    assert "left buffer q, offset 64, sizes (4, 8), strides (8, 1)" in text
    assert "name attention program final:unread-fragment-offset@2" in text
    assert "(final descriptor of views: 4 ops, 1 rewritten)" in text
    assert "fragment.offset: 32 -> 0 used by op 0: views.attend never reads operand 0" in text
    assert "kernel views.attend (@main op 0) operand 0 unread attend says so" in text


def test_why_two_keys_are_two(coldstart, told) -> None:
    address, _, keys = told
    done = coldstart("explain", keys["dense 1"], keys["dense 2"], "--address", address)
    text = " ".join(done.stdout.split())
    assert "not the same key; first in program" in text
    assert "the raw programs differ in 1 fact; rules strip 0 of them" in text
    assert "stays: views.attend (op 0) reads operand 0 (attend says so)" in text
    near = coldstart("explain", keys["sparse"], "--nearest", "--json", "--address", address)
    assert json.loads(near.stdout)["first"] == "program"


def test_an_exact_program_was_stripped_of_nothing(coldstart, told) -> None:
    address, _, keys = told
    done = coldstart("explain", keys["exact"], "--json", "--address", address)
    side = json.loads(done.stdout)["left"]
    assert side["record"]["components"][0]["value"].startswith("final:exact:")
    assert [p["stripped"] for p in side["programs"]] == [[]] and not side["notes"]


def test_lookup_names_program_framework_and_what_went(coldstart, told) -> None:
    address, store, keys = told
    for where in (("--address", address), ("--store", store)):  # the second needs no daemon
        done = coldstart("lookup", keys["sparse"], *where)
        assert done.returncode == 0, done.stderr
        text = " ".join(done.stdout.split())
        assert f"{keys['sparse']}: present" in text and "name attention" in text
        assert "version framework views" in text
        assert "note unread-fragment-offset: @main op 0: input 0: views.attend never reads" in text
