"""`stats` and `lookup` against a daemon that has something to tell; the JSON's shape is golden."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from coldstart import artifact, wire
from coldstart.client.client import CacheClient
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server.in_process import daemon_in_process

GOLDEN = Path(__file__).parent / "golden"
RECORD = KeyRecord(
    components=(
        Component("program", hashlib.sha256(b"p").hexdigest(), "the module"),
        Component("options", "o"),
        Component("target", "cpu:test"),
        Component("flags", ""),
        Component("callbacks", "0"),
    ),
    program_name="jit_step",
    versions=(("jax", "0.10.2"),),
    notes=("locations dropped",) * 2,
)
KEY = key_of(RECORD)


def shape_of(value: Any, golden: Any) -> Any:
    """Names and types; `*` in the golden file stands for any names of one type."""
    if isinstance(value, dict):
        if "*" in golden:
            kinds = {type(v).__name__ for v in value.values()}
            return {"*": kinds.pop()} if len(kinds) == 1 else value
        return {name: shape_of(v, golden.get(name, {})) for name, v in value.items()}
    if isinstance(value, list):
        shapes = [shape_of(v, golden[0] if golden else {}) for v in value]
        assert shapes, "a golden shape needs an example"
        assert all(shape == shapes[0] for shape in shapes)
        return shapes[:1]
    return type(value).__name__


def same_shape(text: str, name: str) -> dict[str, Any]:
    data = json.loads(text)
    golden = json.loads((GOLDEN / name).read_text())
    assert shape_of(data, golden) == golden
    assert list(data) == list(golden)
    return data


def fill(address: str) -> None:
    """One miss that publishes, one hit, one rejected copy: so that every list has something in it."""
    made = artifact.make(
        b"executable",
        key=KEY,
        module_digest=RECORD.module_digest,
        platform="cpu",
        target="cpu:test",
        partitions=1,
        replicas=1,
        callbacks=0,
        compile_seconds=3.5,
    )
    client = CacheClient(address, holder="test")

    def lookup() -> tuple[str, pb.LookupReply]:
        name = uuid.uuid4().hex
        message = wire.record_to_pb(RECORD)
        return name, client.lookup(pb.LookupRequest(lookup_id=name, record=message), 10)

    def publish(name: str, lease_id: str) -> None:
        start = pb.PublishStart(
            lookup_id=name,
            lease_id=lease_id,
            header=made.header.encode(),
            record=wire.record_to_pb(RECORD),
        )
        client.publish(start, made.payload.chunks(), 10)
        outcome = {"outcome": pb.OUTCOME_MISS, "reason": pb.REASON_COLD, "compile_seconds": 3.5}
        client.finish(pb.FinishRequest(lookup_id=name, key=KEY, **outcome))

    name, reply = lookup()
    publish(name, reply.lease.lease_id)
    name, reply = lookup()
    reject = {"digest": made.header.digest, "reason": pb.REASON_CORRUPT}
    reply = client.reject(pb.RejectRequest(lookup_id=name, key=KEY, **reject), 10)
    publish(name, reply.lease.lease_id)
    name, reply = lookup()
    hit = {"outcome": pb.OUTCOME_HIT, "reason": pb.REASON_OK}
    client.finish(pb.FinishRequest(lookup_id=name, key=KEY, **hit))
    client.close()


@pytest.fixture
def store(tmp_path) -> str:
    return f"disk://{tmp_path}/store"


def test_stats(coldstart, store):
    with daemon_in_process([store]) as address:
        fill(address)
        done = coldstart("stats", "--json", "--address", address)
        data = same_shape(done.stdout, "stats.json")
        text = coldstart("stats", COLDSTART_ADDRESS=address)
    assert (data["hits"], data["finished_lookups"]) == (1, 3)
    assert data["compile_seconds"] == 7.0 and data["compile_seconds_saved"] == 3.5
    assert text.returncode == 0 and "33.3 % = 1 hits of 3 finished lookups" in text.stdout
    assert "quarantined" in text.stdout


def test_lookup_at_a_daemon(coldstart, store):
    with daemon_in_process([store]) as address:
        done = coldstart("lookup", KEY, "--address", address)
        assert done.returncode == 1 and "absent" in done.stdout
        fill(address)
        done = coldstart("lookup", KEY, "--json", "--address", address)
        assert done.returncode == 0
        data = same_shape(done.stdout, "lookup.json")
        text = coldstart("lookup", KEY, COLDSTART_ADDRESS=address).stdout
    assert data["state"] == "present" and data["record"]["key"] == KEY
    assert "jit_step" in text and text.count("locations dropped") == 1


def test_lookup_without_a_daemon_says_so(coldstart, store):
    with daemon_in_process([store]) as address:
        fill(address)
    done = coldstart("lookup", KEY, "--store", store)
    assert done.returncode == 0 and "present" in done.stdout
    assert "in-process daemon" in done.stderr
    done = coldstart("lookup", KEY)
    assert done.returncode == 1 and "no daemon" in done.stderr


def test_a_daemon_in_process_that_cannot_start_says_why(tmp_path):
    from coldstart.errors import ConfigError

    with pytest.raises(ConfigError), daemon_in_process(["floppy:///a"]):
        pass
