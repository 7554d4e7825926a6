"""`explain` at a daemon that was told of two participants, on files, and its JSON's shape."""

from __future__ import annotations

import functools
import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from described import layer

from coldstart import wire
from coldstart.client.client import CacheClient
from coldstart.identity import rules
from coldstart.identity.descriptor import GraphDescriptor
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server.in_process import daemon_in_process
from coldstart.wire_descriptor import descriptor_to_pb

GOLDEN = Path(__file__).parent / "golden"
TARGET = '{"compiler": "1", "platform": "cpu"}'
HOST = pb.Host(mode=pb.MODE_CANONICAL)


def record(program: str, made_under: str = rules.in_force(), **changed: str) -> KeyRecord:
    digest = hashlib.sha256(program.encode()).hexdigest()
    values = {"program": digest, "options": "o", "target": TARGET, "flags": "", "callbacks": "0"}
    values |= changed
    return KeyRecord(
        tuple(Component(name, value, f"the {name}") for name, value in values.items()),
        "jit_step",
        (("rules", made_under),),
        ("left out: locations", *["unread-fragment-offset: @main op 0: nobody reads it"] * 2),
    )


def ask(client: CacheClient, raw: GraphDescriptor, of: KeyRecord) -> str:
    """One lookup, all the way to its key."""
    lookup_id = uuid.uuid4().hex
    data = descriptor_to_pb(raw).SerializeToString()
    digest = hashlib.sha256(data).hexdigest()
    for asked in (
        {"raw_digest": digest},
        {"descriptor": data},
        {"record": wire.record_to_pb(of)},
    ):
        client.lookup(pb.LookupRequest(lookup_id=lookup_id, host=HOST, **asked), 30)
    return key_of(of)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A daemon's address, and keys: two ranks share one, two others read their fragment."""
    with daemon_in_process([f"disk://{tmp_path_factory.mktemp('store')}"]) as address:
        client = CacheClient(address, holder="test")
        keys = {
            "shared": ask(client, layer(1), record("sparse")),
            "dense 1": ask(client, layer(1, read=True), record("dense 1")),
            "dense 2": ask(client, layer(2, read=True), record("dense 2")),
        }
        assert ask(client, layer(2), record("sparse")) == keys["shared"]
        target = TARGET.replace("1", "3")
        elsewhere = record("elsewhere", f"{rules.in_force()} tomorrow@1", target=target)
        keys["elsewhere"] = ask(client, layer(3), elsewhere)
        plain = wire.record_to_pb(record("plain", target=TARGET.replace("1", "2")))
        client.lookup(pb.LookupRequest(lookup_id="plain", host=HOST, record=plain), 30)
        keys["plain"] = key_of(wire.record_from_pb(plain))
        client.close()
        yield address, keys


def shape_of(value: Any) -> Any:
    """Names and types; a list is the shape of all of its entries."""
    if isinstance(value, dict):
        return {name: shape_of(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [functools.reduce(merged, map(shape_of, value))] if value else []
    return type(value).__name__


def merged(one: Any, other: Any) -> Any:
    """An empty list says less than one that holds something; else the two are equal."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        return {name: merged(one[name], other[name]) for name in one}
    if isinstance(one, list) and one and other:
        return [merged(one[0], other[0])]
    assert isinstance(one, list) or one == other
    return one or other


def test_two_keys_down_to_both_values(coldstart, told) -> None:
    address, keys = told
    done = coldstart("explain", keys["dense 1"], keys["dense 2"], "--address", address)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "not the same key; first in program" in text
    assert "the raw programs differ in 2 facts; rules strip 0 of them" in text
    assert "left array<i64: 8, 0> right array<i64: 16, 0>" in text
    assert "stays: stablehlo.custom_call mla (op 1) reads operand 0 (3 uses)" in text
    assert "kernel mla (@main op 1)" in text and "left out of the hash: locations" in text


def test_a_key_with_the_programs_that_came_to_it(coldstart, told) -> None:
    address, keys = told
    done = coldstart("explain", keys["shared"], COLDSTART_ADDRESS=address)
    text = " ".join(done.stdout.split())
    assert "two raw programs of this key differ in 2 facts; rules strip 2 of them" in text
    assert "stripped by unread-fragment-offset: op 1 mla: stablehlo.custom_call never reads" in text
    assert "start_indices: array<i64: 16, 0> -> array<i64: 0, 0>" in text
    assert "operand 0 unread no use" in text and "operand 1 read used" in text
    assert text.count("nobody reads it") == 1  # though start and limit both go for it


def test_the_nearest_key(coldstart, told) -> None:
    address, keys = told
    done = coldstart("explain", keys["plain"], "--nearest", "--json", "--address", address)
    data = json.loads(done.stdout)
    assert data["left"]["name"] == keys["plain"] and data["right"]["name"] in keys.values()
    assert [c["name"] for c in data["components"]] == ["program", "target"]
    assert data["components"][1]["parts"] == [{"path": "compiler", "left": '"2"', "right": '"1"'}]
    assert "no descriptor is remembered" in data["notes"][0]


def test_the_json(coldstart, told) -> None:
    address, keys = told
    done = coldstart(
        "explain", keys["elsewhere"], keys["shared"], "--json", "--limit=1", "--address", address
    )
    data = json.loads(done.stdout)
    assert "tomorrow@1" in data["left"]["notes"][0]
    golden = json.loads((GOLDEN / "explain.json").read_text())
    for side in ("left", "right"):  # of which one has no notes
        assert merged(shape_of(data[side]), golden["side"]) == golden["side"]
    assert shape_of({**data, "left": "", "right": ""}) == {
        **golden["account"],
        "left": "str",
        "right": "str",
    }
    assert list(data) == list(golden["account"])
    listed = json.loads(coldstart("explain", "--rules", "--json").stdout)
    assert shape_of(listed) == golden["rules"]
    assert [rule["name"] for rule in listed] == [rule.name for rule in rules.RULES]
    assert len(data["difference"]["shown"]) == 1 and data["difference"]["count"] == 2


def test_a_key_that_nobody_asked_for(coldstart, told) -> None:
    address, _ = told
    unknown = f"cs1-{'0' * 64}"
    done = coldstart("explain", unknown, "--address", address)
    assert done.returncode == 1 and "nothing is known of this key" in done.stdout
    done = coldstart("explain", unknown, "--nearest", "--address", address)
    assert done.returncode == 1 and "has no record here" in done.stderr


def test_a_store_without_a_daemon_has_records_only(coldstart, tmp_path) -> None:
    done = coldstart("explain", f"cs1-{'0' * 64}", "--store", f"disk://{tmp_path}")
    assert done.returncode == 1 and "in-process daemon" in done.stderr


def test_rules_say_reason_and_proof(coldstart) -> None:
    text = coldstart("explain", "--rules").stdout
    for rule in rules.RULES:
        assert rule.name in text
        assert " ".join(rule.proof.split()) in " ".join(text.split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "give a key"),
        (("a", "b", "c"), "give a key"),
        (("nowhere.mlir",), "neither a key nor a file"),
        (("cs1-0123",), "a key is cs1- and 64 hex digits"),
        ((f"cs1-{'0' * 64}", "--limit=0"), "--limit"),
        ((f"cs1-{'0' * 64}", "nowhere.mlir"), "not a key"),
        ((__file__, "--nearest"), "--nearest goes with a key"),
    ],
)
def test_misuse(coldstart, args: tuple[str, ...], says: str) -> None:
    done = coldstart("explain", *args)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1


# --- module dumps --------------------------------------------------------------------------------


def slices(rank: int, dense: bool = False) -> str:
    """A module whose participant's slice is an operand of a kernel."""
    jax = pytest.importorskip("jax", reason="reading module dumps needs JAX")
    from jax.experimental import pallas as pl

    def sparse_kernel(q_ref: Any, kv_ref: Any, o_ref: Any) -> None:
        o_ref[...] = kv_ref[...] * 2

    def dense_kernel(q_ref: Any, kv_ref: Any, o_ref: Any) -> None:
        o_ref[...] = kv_ref[...] + q_ref[...]

    def program(q: Any, kv: Any) -> Any:
        fragment = jax.lax.slice(q, (rank * 8, 0), (rank * 8 + 8, 256))
        shape = jax.ShapeDtypeStruct(kv.shape, kv.dtype)
        return pl.pallas_call(dense_kernel if dense else sparse_kernel, out_shape=shape)(
            fragment, kv
        )

    argument = jax.ShapeDtypeStruct((64, 256), "float32"), jax.ShapeDtypeStruct((8, 256), "float32")
    lowered = jax.jit(program).trace(*argument).lower(lowering_platforms=("tpu",))
    return lowered.as_text()


@pytest.mark.stacks
def test_two_dumps_without_a_daemon(coldstart, tmp_path) -> None:
    """The acceptance line, for a TPU's kernel: the slice, its offsets, the rule, the operand."""
    for rank in (1, 3):
        (tmp_path / f"{rank}.mlir").write_text(slices(rank))
        (tmp_path / f"dense-{rank}.mlir").write_text(slices(rank, dense=True))
    one, other = (str(tmp_path / f"{rank}.mlir") for rank in (1, 3))
    text = " ".join(coldstart("explain", one, other).stdout.split())
    assert "the same program" in text and "stablehlo.slice" in text
    assert "left array<i64: 8, 0> right array<i64: 24, 0>" in text
    assert "stripped by unread-fragment-offset" in text
    assert "sparse_kernel: stablehlo.custom_call never reads operand 0" in text
    dense = [str(tmp_path / f"dense-{rank}.mlir") for rank in (1, 3)]
    text = " ".join(coldstart("explain", *dense).stdout.split())
    assert "not the same program" in text and "dense_kernel (op 1) reads operand 0" in text
    off = coldstart("explain", one, other, COLDSTART_RULES="-unread-fragment-offset").stdout
    assert "not the same program" in off


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"import os", "not the text of a module"),
        (b"ML\xefR\x00\xff", "not text"),
        (b"module { dense_resource<__elided__> : tensor<4xf32> }", "leaves out large constants"),
        (b" \n", "a.mlir is empty"),
        (b"module {}", "a.mlir can't be described: the module has no function called main"),
    ],
)
def test_a_file_that_is_no_dump(coldstart, tmp_path, content: bytes, says: str) -> None:
    pytest.importorskip("jax", reason="reading module dumps needs JAX")
    (tmp_path / "a.mlir").write_bytes(content)
    done = coldstart("explain", str(tmp_path / "a.mlir"))
    assert done.returncode == 1 and says in done.stderr
