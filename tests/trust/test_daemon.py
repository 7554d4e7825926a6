"""A daemon with keys: what it signs, what it hands out, what it does without."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from redis_server import RedisServer
from small_artifacts import make_artifact, make_record
from trust_keys import Keys
from trust_world import Client, daemon, key

from coldstart import artifact
from coldstart.artifact import Artifact
from coldstart.errors import ArtifactCorrupt, ConfigError
from coldstart.rpc.v1 import admin_pb2
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.store.disk import DiskTier
from coldstart.store.urls import parse_store, placed
from coldstart.trust.statement import decode_signature
from coldstart.trust.verifier import Verifier

ME = f"uid:{os.getuid()}@{socket.gethostname()}"


def settings(keys: Keys, **more: object) -> dict[str, object]:
    return {
        "signing_key": keys.folder / "one.key",
        "trusted_keys": keys.trusted,
        "revoked": keys.revoked,
        **more,
    }


def plant(store: Path, made: Artifact, word: str) -> None:
    async def put() -> None:
        tier = DiskTier(store)
        await tier.put(made, make_record(word))
        await tier.close()

    asyncio.run(put())


def hit(client: Client, word: str, **how: object) -> pb.LookupReply:
    _, reply = client.lookup(make_record(word), **how)
    assert reply.WhichOneof("answer") == "hit", reply
    return reply


def missed(client: Client, word: str, **how: object) -> int:
    """The reason of the lease that follows a miss; the lease is given back."""
    _, reply = client.lookup(make_record(word), **how)
    assert reply.WhichOneof("answer") == "lease", reply
    client.calls.release(reply.lease.lease_id)
    return reply.lease.reason


def test_what_is_published_is_signed_for_who_sent_it(keys: Keys, tmp_path: Path) -> None:
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s", **settings(keys)) as world:
        with world.client() as client:
            client.compile("a")
            reply = hit(client, "a")
        header = artifact.decode_header(reply.hit.header).signed(reply.hit.signature)
        assert Verifier(keys.trusted).check_header(header).producer == ME
        (line,) = world.audit("published")
        assert (line["key"], line["producer"], line["adopted"]) == (key("a"), ME, False)
    with (
        daemon(tmp_path / "d", f"disk://{tmp_path}/s", **settings(keys)) as world,
        world.client() as client,
    ):
        assert hit(client, "a").hit.signature == reply.hit.signature  # it is on the disk


def test_without_keys_nothing_is_signed_and_everything_is_handed_out(
    keys: Keys, tmp_path: Path
) -> None:
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s") as world, world.client() as client:
        client.compile("a")
        assert hit(client, "a").hit.signature == b""
    with daemon(tmp_path / "e", f"disk://{tmp_path}/s", **settings(keys)) as world:
        with world.client() as client:
            assert missed(client, "a") == pb.REASON_SIGNATURE
        assert [line["why"] for line in world.audit("copy refused")] == ["unsigned"]


def test_a_forgery_is_never_a_hit_and_the_next_publish_repairs_it(
    keys: Keys, tmp_path: Path
) -> None:
    plant(tmp_path / "s", make_artifact("a", b"evil"), "a")
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s", **settings(keys)) as world:
        with world.client() as client:
            assert missed(client, "a") == pb.REASON_SIGNATURE
            published = client.compile("a", b"good")
            digest = make_artifact("a", b"good").header.digest
            assert (published.digest, published.adopted) == (digest, False)
            assert artifact.decode_header(hit(client, "a").hit.header).digest == digest
        (line,) = world.audit("copy refused")
        assert (line["tier"], line["key"], line["reason"]) == ("disk", key("a"), "signature")


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


LAYERS = {
    "index": pb.REASON_CORRUPT,
    "index, hash put right": pb.REASON_SIGNATURE,
    "signature": pb.REASON_SIGNATURE,
    "header": pb.REASON_CORRUPT,
    "payload": pb.REASON_CORRUPT,
    "all put right": pb.REASON_SIGNATURE,
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_flipped_byte_at_each_layer_is_refused_before_a_load(
    keys: Keys, tmp_path: Path, layer: str
) -> None:
    """On the disk, behind a daemon that was told nothing of it. Whatever is handed out fails the loader's checks."""
    store = tmp_path / "s"
    plant(
        store,
        Artifact(asyncio.run(keys.sign(make_artifact("a").header)), make_artifact("a").payload),
        "a",
    )
    (index,) = (path for path in store.glob("v1/keys/*/*/*"))
    (file,) = store.glob("v1/objects/*/*.csa")
    said = json.loads(index.read_text())
    if layer == "index":
        said["header"] = said["header"].replace('"replicas":1', '"replicas":2')
    elif layer in ("index, hash put right", "all put right"):
        body = said["header"].replace('"replicas":1', '"replicas":2')
        if layer == "all put right":  # the bytes too: a whole artifact of the forger's own
            evil = hashlib.sha256(b"evil").hexdigest()
            body = body.replace(said["digest"], evil)
            said["digest"] = evil
        hashed = hashlib.sha256(body.encode()).hexdigest()
        said |= {"header": body, "header_hash": hashed}
        header = artifact.decode_header(body.encode())
        data = file.read_bytes()[-4:] if layer != "all put right" else b"evil"
        target = file.parent.parent / said["digest"][:2] / f"{said['digest']}-{hashed[:16]}.csa"
        target.parent.mkdir(exist_ok=True)
        file.unlink()
        target.write_bytes(header.prefix() + data)
    elif layer == "signature":
        signature = json.loads(said["signature"])
        first = signature["value"][0]
        signature["value"] = ("A" if first != "A" else "B") + signature["value"][1:]
        said["signature"] = json.dumps(signature, sort_keys=True, separators=(",", ":"))
    else:
        at = 20 if layer == "header" else -1
        file.write_bytes(_flip(file.read_bytes(), at % file.stat().st_size))
    index.write_text(json.dumps(said))

    with (
        daemon(tmp_path / "d", f"disk://{store}", **settings(keys)) as world,
        world.client() as client,
    ):
        lookup, reply = client.lookup(make_record("a"))
        if layer == "payload":  # nobody has read it yet: whoever loads does
            assert reply.WhichOneof("answer") == "hit"
            request = pb.FetchRequest(lookup_id=lookup, key=key("a"), digest=_digest(reply))
            data = client.calls.fetch(request, 10.0, most_bytes=1 << 20, most_seconds=10.0)
            header, offset = artifact.read_header(data)
            with pytest.raises(ArtifactCorrupt):
                artifact.decode(Artifact(header, artifact.BytesPayload(data[offset:])))
            reject = pb.RejectRequest(
                lookup_id=lookup, key=key("a"), digest=_digest(reply), reason=pb.REASON_CORRUPT
            )
            reply = client.calls.reject(reject, 10.0)
        assert reply.WhichOneof("answer") == "lease", reply
        assert reply.lease.reason == LAYERS[layer]
        (line,) = world.audit("copy refused") + world.audit("copy bad")
        assert line["key"] == key("a")


def _digest(reply: pb.LookupReply) -> str:
    return artifact.decode_header(reply.hit.header).digest


def test_a_daemon_that_can_not_sign_only_reads(keys: Keys, tmp_path: Path) -> None:
    with (
        daemon(tmp_path / "d", f"disk://{tmp_path}/s", **settings(keys)) as world,
        world.client() as client,
    ):
        client.compile("a")
    reading = settings(keys, signing_key=None)
    with daemon(tmp_path / "r", f"disk://{tmp_path}/s", **reading) as world:
        with world.client() as client:
            assert hit(client, "a")
            _, reply = client.lookup(make_record("b"))
            assert reply.refused.reason == pb.REASON_ROLE and "signing_key" in reply.refused.message
            kept = client.publish(make_artifact("b"), make_record("b"))
            assert kept.kept_local == pb.REASON_ROLE
            _, reply = client.lookup(make_record("b"))
            assert reply.WhichOneof("answer") == "refused"
        assert [line["what"] for line in world.audit("denied")] == ["publish"]


def test_rotation_and_revocation_without_a_restart(keys: Keys, tmp_path: Path) -> None:
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s", **settings(keys)) as world:
        with world.client() as client:
            client.compile("a")
            old = decode_signature(hit(client, "a").hit.signature).key_id

            keys.new("two")
            keys.trusted.write_text(
                keys.trusted.read_text() + (keys.folder / "two.pub").read_text()
            )
            os.replace(keys.folder / "two.key", keys.folder / "one.key")
            _soon()
            client.compile("b")
            new = decode_signature(hit(client, "b").hit.signature).key_id
            assert new != old and hit(client, "a")  # both keys count meanwhile

            keys.revoked.write_text(f"key {old}\n")
            _soon()
            assert missed(client, "a") == pb.REASON_SIGNATURE and hit(client, "b")
            client.compile("a")
            assert decode_signature(hit(client, "a").hit.signature).key_id == new

            keys.revoked.write_text(f"producer {ME}\n")
            _soon()
            for word in ("a", "b"):  # nor would anything be believed that it publishes now
                _, reply = client.lookup(make_record(word))
                assert reply.WhichOneof("answer") == "lease"
                kept = client.publish(
                    make_artifact(word), make_record(word), lease=reply.lease.lease_id
                )
                assert kept.kept_local == pb.REASON_ROLE
        whys = {line["why"].partition(" ")[0] for line in world.audit("copy refused")}
        assert whys == {"key", "producer"}


def _soon() -> None:
    """Files are looked at once a second."""
    import time

    time.sleep(1.05)


# --- namespaces and generations ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ("disk", "redis"))
def test_tenants_do_not_meet(
    keys: Keys, tmp_path: Path, kind: str, shared_redis: RedisServer
) -> None:
    """T40: the same key in two namespaces of one store. No cross read; a purge of one leaves the other alone."""
    store = f"disk://{tmp_path}/s" if kind == "disk" else shared_redis.url
    a = daemon(tmp_path / "a", store, **settings(keys, namespace="a"))
    b = daemon(tmp_path / "b", store, **settings(keys, namespace="b"))
    with a as in_a, b as in_b, in_a.client() as asks_a, in_b.client() as asks_b:
        asks_a.compile("p", b"of a", namespace="a")
        assert missed(asks_b, "p", namespace="b") == pb.REASON_COLD
        asks_b.compile("p", b"of b", namespace="b")
        assert _digest(hit(asks_a, "p", namespace="a")) != _digest(hit(asks_b, "p", namespace="b"))
        for asking, wrong in ((asks_a, "b"), (asks_b, "a"), (asks_a, "")):
            _, reply = asking.lookup(make_record("p"), namespace=wrong)
            assert reply.refused.reason == pb.REASON_ROLE
        selection = admin_pb2.Selection(keys=[key("p")])
        gone = list(asks_a.calls.upkeep("Purge", admin_pb2.PurgeRequest(selection=selection)))
        assert gone
        assert missed(asks_a, "p", namespace="a") in (pb.REASON_COLD, pb.REASON_EVICTED)
        assert hit(asks_b, "p", namespace="b")
        assert in_a.audit("copy refused") == in_b.audit("copy refused") == []


def test_each_kind_of_store_has_a_place_for_each_namespace() -> None:
    for url in ("disk:///c", "redis://h:1/0?cs.prefix=x", "gs://bucket/team/x", "gs://bucket"):
        store = parse_store(url)
        assert placed(store, "", 0) == store
        places = [placed(store, *place) for place in (("a", 0), ("a", 1), ("b", 0), ("", 1))]
        assert all(places.count(place) == 1 and place != store for place in places), places
    assert placed(parse_store("gs://bucket/team"), "a", 2).prefix == "team/ns/a/2"


@pytest.mark.parametrize(
    ("place", "where"),
    (({"namespace": "b"}, "b/0"), ({"namespace": "a", "generation": 1}, "a/1")),
)
def test_what_is_carried_over_from_another_place_is_refused(
    keys: Keys, tmp_path: Path, place: dict[str, object], where: str
) -> None:
    store = f"disk://{tmp_path}/s"
    with (
        daemon(tmp_path / "a", store, **settings(keys, namespace="a")) as world,
        world.client() as client,
    ):
        client.compile("p", namespace="a")
    shutil.copytree(tmp_path / "s" / "ns" / "a" / "0", tmp_path / "s" / "ns" / where)
    with daemon(tmp_path / "b", store, **settings(keys, **place)) as world:
        with world.client() as client:
            namespace = str(place["namespace"])
            assert missed(client, "p", namespace=namespace) == pb.REASON_SIGNATURE
        (line,) = world.audit("copy refused")
        assert line["why"].startswith("signed for ")


def test_a_higher_generation_leaves_all_behind(tmp_path: Path) -> None:
    for generation in (0, 1):
        running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", generation=generation)
        with running as world, world.client() as client:
            assert missed(client, "p") == pb.REASON_COLD
            client.compile("p")
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s") as world, world.client() as client:
        assert hit(client, "p")  # and what was left is there, should it be wanted back


# --- settings ----------------------------------------------------------------------------------------------


def test_settings_that_would_leave_nothing_to_load_are_refused(keys: Keys, tmp_path: Path) -> None:
    keys.new("two")
    good = settings(keys)
    for wrong, words in (
        ({"signing_key": keys.folder / "two.key"}, "doesn't hold its public half"),
        ({"trusted_keys": tmp_path / "none"}, "trusted_keys="),
        ({"signing_key": keys.trusted}, "signing_key="),
        ({"revoked": keys.folder / "one.key"}, "revoked="),
        ({"trusted_keys": None}, "says nothing without trusted_keys"),
        ({"signing_key": None, "signature_seconds": 60.0}, "says nothing without signing_key"),
        ({"audit_file": tmp_path}, "audit_file="),
    ):
        given = {"listen": (f"unix://{tmp_path}/x.sock",), **good, **wrong}
        from coldstart.server.in_process import daemon_in_process

        with pytest.raises(ConfigError, match=words), daemon_in_process(["memory://"], **given):
            pass
    assert not (tmp_path / "x.sock").exists()


def test_a_header_that_says_more_than_it_was_signed_for(keys: Keys, tmp_path: Path) -> None:
    """The client's own gates see the header that was signed, not a row about it."""
    made = make_artifact("a")
    signed = asyncio.run(keys.sign(made.header))
    other = dataclasses.replace(made.header, partitions=1).signed(signed.signature)
    plant(tmp_path / "s", Artifact(other, made.payload), "a")
    with (
        daemon(tmp_path / "d", f"disk://{tmp_path}/s", **settings(keys)) as world,
        world.client() as client,
    ):
        assert missed(client, "a") == pb.REASON_SIGNATURE
