"""The link to a Redis, as its tier feels it: silence, broken connections, restarts, a cluster, TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy
from redis_server import RedisServer, redis_link, redis_tier, two_nodes
from server_process import free_port

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.artifact import Artifact, verify
from coldstart.errors import BreakerOpen, TierError, TierTimeout
from coldstart.redis_link import Script
from coldstart.store.redis import CHUNK_BYTES, RedisTier

NewArtifact = Callable[..., Artifact]
LARGE = os.urandom(3 * CHUNK_BYTES + 17)


async def test_silence_ends_within_its_deadline_and_is_not_waited_for_twice(
    shared_redis: RedisServer, new_artifact: NewArtifact
) -> None:
    key = new_artifact("a").header.key
    loop = asyncio.get_running_loop()
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        tier = redis_tier(shared_redis, proxy.port, place={"reply_seconds": 0.5})
        assert await tier.find(key) == ()
        proxy.black_hole()
        began = loop.time()
        with pytest.raises(TierTimeout):
            await tier.find(key)
        assert 0.4 < loop.time() - began < 3
        began = loop.time()
        for _ in range(100):
            with pytest.raises(BreakerOpen):
                await tier.find(key)
        assert loop.time() - began < 1
        assert tier.link.trouble.startswith("down for")
        proxy.heal()
        async with asyncio.timeout(20):
            while not tier.link.up:
                await asyncio.sleep(0.02)
        assert await tier.find(key) == () and tier.link.trouble == ""
        await tier.close()


async def test_a_broken_connection_is_tried_once_more(
    shared_redis: RedisServer, new_artifact: NewArtifact
) -> None:
    retries: list[str] = []
    made = new_artifact("a", LARGE)
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        link = redis_link(shared_redis, proxy.port)
        link._on_retry = retries.append
        tier = RedisTier(link)
        await tier.put(made, None)
        proxy.drop()
        assert await tier.find(made.header.key) == (made.header,)
        proxy.cut(2 * CHUNK_BYTES)
        got = await tier.get(made.header.key, made.header.digest)
        assert got is not None and verify(got) == LARGE
        assert "ok" in retries and "error" not in retries
        proxy.refuse()
        with pytest.raises(TierError):
            await tier.find(made.header.key)
        assert retries[-1] == "error"
        await tier.close()


@pytest.mark.parametrize("after_bytes", [0, 1, 3, 8, 20])
async def test_a_put_whose_reply_is_lost_is_made_once(
    shared_redis: RedisServer, new_artifact: NewArtifact, after_bytes: int
) -> None:
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        tier = redis_tier(shared_redis, proxy.port)
        for n in range(3):
            made = new_artifact(f"a{n}", LARGE[: CHUNK_BYTES + n])
            await tier.find(made.header.key)
            proxy.cut(after_bytes * (n + 1))
            assert await tier.put(made, None) == made.header
            got = await tier.get(made.header.key, made.header.digest)
            assert got is not None and verify(got) == LARGE[: CHUNK_BYTES + n]
        await tier.close()


async def test_a_silent_restart_of_the_server_is_not_noticed(
    redis_servers: Callable[..., RedisServer], new_artifact: NewArtifact
) -> None:
    """Open connections and loaded scripts are gone with it."""
    server = redis_servers()
    tier = redis_tier(server)
    made = new_artifact("a")
    await tier.put(made, None)
    server.stop()
    server.start()
    assert await tier.find(made.header.key) == ()
    assert await tier.put(made, None) == made.header
    await tier.close()


async def test_a_cancelled_call_does_not_poison_the_next(
    shared_redis: RedisServer, new_artifact: NewArtifact
) -> None:
    tier = redis_tier(shared_redis)
    artifacts = [new_artifact(f"a{n}", bytes([n]) * 300_000) for n in range(8)]
    for made in artifacts:
        await tier.put(made, None)
    for turn in range(60):
        tasks = [asyncio.create_task(tier.get(a.header.key, a.header.digest)) for a in artifacts]
        await asyncio.sleep(0.0005 * (turn % 12))
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for made, got in zip(artifacts, done, strict=True):
            if not isinstance(got, asyncio.CancelledError):
                assert isinstance(got, Artifact) and verify(got) == verify(made)
    await tier.close()


async def test_scripts_work_on_a_cluster_and_its_slots_are_followed(
    redis_servers: Callable[..., RedisServer],
    new_artifact: NewArtifact,
    new_record: Callable[..., Any],
) -> None:
    nodes = two_nodes(redis_servers)
    clients = [node.client() for node in nodes]
    tier = redis_tier(nodes[0])
    for n in range(12):
        made = new_artifact(f"a{n}", LARGE)
        assert await tier.put(made, new_record(f"a{n}")) == made.header
        got = await tier.get(made.header.key, made.header.digest)
        assert got is not None and verify(got) == LARGE
    held = [client.dbsize() for client in clients]
    assert all(held) and sum(held) == 12 * 6
    for n in range(12):
        made = new_artifact(f"a{n}", LARGE)
        assert await tier.delete(made.header.key, made.header.digest)
    assert [client.dbsize() for client in clients] == [0, 0]
    both = Script("return redis.call('EXISTS', KEYS[1]) + redis.call('EXISTS', KEYS[2])")
    with pytest.raises(TierError, match="slot"):  # it does refuse what is not in one slot
        await tier.link.script(both, ["a", "b"])
    await tier.close()
    for client in clients:
        client.close()


async def test_tls_with_a_certificate_that_is_checked(
    redis_servers: Callable[..., RedisServer], tmp_path: Path, new_artifact: NewArtifact
) -> None:
    certificate, key = self_signed(tmp_path, "ours")
    stranger, _ = self_signed(tmp_path, "stranger")
    port = free_port()
    server = redis_servers(
        tls_port=str(port),
        tls_cert_file=str(certificate),
        tls_key_file=str(key),
        tls_ca_cert_file=str(certificate),
        tls_auth_clients="yes",
        requirepass="Xq",
    )
    own = {"tls": True, "cert_file": certificate, "key_file": key}
    made = new_artifact("a")
    tier = redis_tier(server, port, place={**own, "ca_file": certificate})
    assert await tier.put(made, None) == made.header
    await tier.close()
    for wrong in (
        {**own, "ca_file": stranger},  # somebody else's server
        {**own},  # no authority that the system knows
        {"tls": True, "ca_file": certificate},  # the server asks who we are
        {"ca_file": certificate},  # no TLS at all
    ):
        tier = redis_tier(server, port, place=wrong)
        with pytest.raises(TierError):
            await tier.find(made.header.key)
        await tier.close()


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, secret
