"""Who may do what: over the Unix socket by user, over TCP by certificate or token."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from server_process import free_port
from small_artifacts import make_artifact, make_record
from trust_certs import Authority
from trust_keys import Keys
from trust_world import World, daemon, key

from coldstart import wire
from coldstart.client import introduce
from coldstart.config import daemon_config
from coldstart.errors import ColdstartError, ConfigError, DaemonAbsent, NotAllowed
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server.passes import DOOR, KEY_FILE, Passes, open_passes
from coldstart.trust.roles import Role, Roles
from coldstart.trust.statement import decode_signature

ME = f"uid:{os.getuid()}"
SOMEBODY_ELSE = "uid:4000000000"


@pytest.mark.parametrize(
    ("lists", "names", "role"),
    (
        ({}, ["uid:1", "unix"], Role.ADMIN),
        ({}, ["unix"], Role.ADMIN),
        ({}, ["tls:a"], Role.READER),
        ({}, ["anyone"], Role.READER),
        ({"writers": {"uid:1"}}, ["uid:1", "unix"], Role.WRITER),
        ({"writers": {"uid:1"}}, ["uid:2", "unix"], Role.READER),
        ({"writers": {"unix"}}, ["uid:2", "unix"], Role.WRITER),
        ({"admins": {"uid:1"}}, ["uid:2", "unix"], Role.READER),
        ({"writers": {"tls:b"}}, ["tls:a", "tls:b"], Role.WRITER),
        ({"readers": {"uid:1"}}, ["uid:2", "unix"], Role.NONE),
        ({"readers": {"uid:1"}, "admins": {"uid:2"}}, ["uid:2", "unix"], Role.ADMIN),
        ({"readers": {"uid:1"}}, ["anyone"], Role.NONE),
    ),
)
def test_the_lists(lists: dict[str, set[str]], names: list[str], role: Role) -> None:
    roles = Roles(**{name: frozenset(said) for name, said in lists.items()})
    assert roles.peer(names).role is role


# --- over the Unix socket --------------------------------------------------------------------------------------


def test_a_reader_can_not_publish_and_gets_no_lease(tmp_path: Path) -> None:
    store = f"disk://{tmp_path}/s"
    with daemon(tmp_path / "w", store, writers=(ME,)) as world, world.client() as client:
        client.compile("there")
    with daemon(tmp_path / "d", store, writers=(SOMEBODY_ELSE,)) as world, world.client() as client:
        _, reply = client.lookup(make_record("there"))
        assert reply.WhichOneof("answer") == "hit"
        _, reply = client.lookup(make_record("missing"))
        assert reply.refused.reason == pb.REASON_ROLE and ME in reply.refused.message
        made, record = make_artifact("missing"), make_record("missing")
        with pytest.raises(NotAllowed, match="writers"):
            client.publish(made, record)
        begin = pb.PublishStart(header=made.header.encode(), record=wire.record_to_pb(record))
        with pytest.raises(NotAllowed):
            client.calls._stream(begin, made.payload.chunks())
        with pytest.raises(NotAllowed):
            client.calls.fail(pb.FailRequest(lease_id="x", kind=pb.REASON_NEGATIVE_OOM))
        with pytest.raises(NotAllowed):
            client.calls.renew("x")
        denied = world.audit("denied")
        assert [line["what"] for line in denied] == ["Upload", "Publish", "Fail", "Renew"]
        assert {line["who"] for line in denied} == {ME}
        assert not client.calls.batch(pb.BatchRequest(keys=[key("missing")])).answers[0].digest


@pytest.mark.parametrize(("lists", "allowed"), (("writers", False), ("admins", True)))
def test_only_an_admin_removes(tmp_path: Path, lists: str, allowed: bool) -> None:
    running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", **{lists: (ME,)})
    with running as world, world.client() as client:
        admin = admin_pb2_grpc.AdminStub(client.calls._channel)
        said = client.calls._introduction
        assert client.calls.stats()  # a reader may
        for call in (
            lambda: list(admin.Purge(admin_pb2.PurgeRequest(), metadata=said)),
            lambda: list(admin.Verify(admin_pb2.VerifyRequest(), metadata=said)),
            lambda: admin.Tidy(admin_pb2.TidyRequest(), metadata=said),
        ):
            code = grpc.StatusCode.OK
            try:
                call()
            except grpc.RpcError as exc:
                code = exc.code()
            assert (code is not grpc.StatusCode.PERMISSION_DENIED) is allowed, code


def test_who_is_on_no_list_of_readers_is_refused(tmp_path: Path) -> None:
    running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", readers=(SOMEBODY_ELSE,))
    with running as world, world.client() as client, pytest.raises(NotAllowed, match="readers"):
        client.lookup(make_record("a"))


def test_a_made_up_pass_is_nobody_s(tmp_path: Path) -> None:
    running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", writers=(SOMEBODY_ELSE,))
    with running as world, world.client() as client:
        good = client.calls._introduction[0][1]
        for said in (
            "",
            "x",
            "4000000000.1." + "0" * 64,
            good.replace(f"{os.getuid()}.", "4000000000.", 1),
            Passes(b"\0" * 32).issue(4000000000, 1),
            "é",
        ):
            given = ((introduce.PASS, said),) if said.isascii() else ()
            client.calls._introduction = given
            with pytest.raises(NotAllowed):
                client.publish(make_artifact("a"), make_record("a"))


def test_passes_outlive_a_restart_and_their_key_is_the_daemon_s_own(tmp_path: Path) -> None:
    running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", writers=(ME,))
    with running as world, world.client() as client:
        said = client.calls._introduction
    file = tmp_path / "d" / f"d.sock{KEY_FILE}"
    assert file.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "d" / f"d.sock{DOOR}").exists()
    running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", writers=(ME,))
    with running as world, world.client() as client:
        assert client.calls._introduction != ()
        client.calls._introduction = said
        client.compile("a")
    before = file.read_bytes()
    file.chmod(0o644)  # others may have read it
    open_passes(tmp_path / "d" / "d.sock")
    assert file.read_bytes() != before and file.stat().st_mode & 0o777 == 0o600


def test_without_lists_there_is_no_door_and_whoever_opens_the_socket_may(tmp_path: Path) -> None:
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s") as world, world.client() as client:
        assert client.calls._introduction == ()
        client.compile("a")


def test_a_reader_s_alias_leads_nobody_elsewhere(tmp_path: Path) -> None:
    """A reader says of a raw program that it comes to another key; whoever asks by it must not be sent there."""
    raw = "ab" * 32
    store = f"disk://{tmp_path}/s"
    with daemon(tmp_path / "w", store, writers=(ME,)) as world, world.client() as client:
        client.compile("evil")
        _point(client, raw, "evil")
        assert (
            _asked_by_raw(client, raw) == "hit"
        )  # a writer's word leads there: it could publish as well
    with daemon(tmp_path / "d", store, writers=(SOMEBODY_ELSE,)) as world, world.client() as client:
        _point(client, raw, "evil")
        assert _asked_by_raw(client, raw) != "hit"


def _point(client: object, raw: str, word: str) -> None:
    """As somebody who asks by raw digest, then by the record of another program."""
    lookup = uuid.uuid4().hex
    host = pb.Host(mode=pb.MODE_CANONICAL)
    asked = pb.LookupRequest(lookup_id=lookup, host=host, raw_digest=raw)
    client.calls.lookup(asked, 10.0)  # type: ignore[attr-defined]
    record = wire.record_to_pb(make_record(word))
    told = pb.LookupRequest(lookup_id=lookup, host=host, record=record)
    client.calls.lookup(told, 10.0)  # type: ignore[attr-defined]


def _asked_by_raw(client: object, raw: str) -> str:
    asked = pb.LookupRequest(
        lookup_id=uuid.uuid4().hex,
        host=pb.Host(mode=pb.MODE_CANONICAL),
        raw_digest=raw,
        may_hit=True,
    )
    return str(client.calls.lookup(asked, 10.0).WhichOneof("answer"))  # type: ignore[attr-defined]


def test_a_reader_s_word_takes_no_copy_from_others(tmp_path: Path) -> None:
    store = f"disk://{tmp_path}/s"
    with daemon(tmp_path / "w", store, writers=(ME,)) as world, world.client() as client:
        client.compile("a")
    with daemon(tmp_path / "d", store, writers=(SOMEBODY_ELSE,)) as world, world.client() as client:
        lookup, reply = client.lookup(make_record("a"))
        digest = make_artifact("a").header.digest
        reject = pb.RejectRequest(
            lookup_id=lookup, key=key("a"), digest=digest, reason=pb.REASON_CORRUPT
        )
        assert client.calls.reject(reject, 10.0).WhichOneof("answer") == "refused"
        _, reply = client.lookup(make_record("a"))
        assert reply.WhichOneof("answer") == "hit"


# --- over TCP --------------------------------------------------------------------------------------------------


def test_plain_tcp_has_to_be_spelled_out() -> None:
    home, tcp = {"HOME": "/h/me"}, ("tcp://127.0.0.1:0",)
    with pytest.raises(ConfigError, match=r"plain TCP.*--insecure"):
        daemon_config(home, flags={"listen": tcp})
    assert daemon_config(home, flags={"listen": tcp, "insecure": True}).insecure
    assert daemon_config({**home, "COLDSTART_INSECURE": "1"}, flags={"listen": tcp}).insecure
    for half in ({"tls_cert": "/c"}, {"tls_key": "/k"}, {"tls_client_ca": "/a"}, {"tokens": "/t"}):
        with pytest.raises(ConfigError, match="tls_cert"):
            daemon_config(home, flags=half)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certs"
    folder.mkdir()
    return Authority(folder)


@contextmanager
def tls_daemon(
    tmp_path: Path, authority: Authority, **settings: object
) -> Iterator[tuple[World, str]]:
    cert, private = authority.certificate("daemon", server=True)
    address = f"tcp://127.0.0.1:{free_port()}"
    given = {"tls_cert": cert, "tls_key": private, "also_listen": (address,), **settings}
    with daemon(tmp_path / "d", f"disk://{tmp_path}/s", **given) as world:
        yield world, address


def use(monkeypatch: pytest.MonkeyPatch, **files: Path) -> None:
    """The client's settings."""
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE"):
        monkeypatch.delenv(f"COLDSTART_{name}", raising=False)
    for name, path in files.items():
        monkeypatch.setenv(f"COLDSTART_{name.upper()}", str(path))


def test_a_certificate_says_who_somebody_is(
    keys: Keys, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = {"writers": ("tls:warm.example",), "tls_client_ca": authority.file}
    signing = {"signing_key": keys.folder / "one.key", "trusted_keys": keys.trusted}
    with tls_daemon(tmp_path, authority, **lists, **signing) as (world, address):
        warm, warm_key = authority.certificate("warm.example")
        use(monkeypatch, tls_ca=authority.file, tls_cert=warm, tls_key=warm_key)
        with world.client(address) as client:
            client.compile("a")
            _, reply = client.lookup(make_record("a"))
            signed = decode_signature(reply.hit.signature)
            assert signed.producer == f"tls:warm.example@{socket.gethostname()}"

        pod, pod_key = authority.certificate("pod.example")
        use(monkeypatch, tls_ca=authority.file, tls_cert=pod, tls_key=pod_key)
        with world.client(address) as client:
            assert client.lookup(make_record("a"))[1].WhichOneof("answer") == "hit"
            with pytest.raises(NotAllowed, match=r"tls:pod\.example"):
                client.publish(make_artifact("b"), make_record("b"))

        strangers = tmp_path / "strangers"
        strangers.mkdir()
        forged, forged_key = Authority(strangers, "other").certificate("warm.example")
        for shown in ({}, {"tls_cert": forged, "tls_key": forged_key}):
            use(monkeypatch, tls_ca=authority.file, **shown)
            with world.client(address) as client, pytest.raises(ColdstartError) as refused:
                client.lookup(make_record("a"))
            assert not isinstance(
                refused.value, NotAllowed
            )  # it never got so far as to be somebody

        use(monkeypatch, tls_ca=strangers / "other.crt", tls_cert=warm, tls_key=warm_key)
        with world.client(address) as client, pytest.raises(DaemonAbsent):
            client.lookup(
                make_record("a")
            )  # nor is a daemon believed that another authority signed for


def test_a_token_says_who_somebody_is(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, mine = tmp_path / "tokens", tmp_path / "token"
    mine.write_text("s3cret\n")
    tokens.write_text(f"ci {hashlib.sha256(b's3cret').hexdigest()}  # of the build\n")
    lists = {"writers": ("token:ci",), "tokens": tokens}
    with tls_daemon(tmp_path, authority, **lists) as (world, address):
        use(monkeypatch, tls_ca=authority.file, token_file=mine)
        with world.client(address) as client:
            client.compile("a")
        use(monkeypatch, tls_ca=authority.file)
        with world.client(address) as client, pytest.raises(NotAllowed, match="anyone"):
            client.publish(make_artifact("b"), make_record("b"))
        mine.write_text("guess\n")
        use(monkeypatch, tls_ca=authority.file, token_file=mine)
        with world.client(address) as client, pytest.raises(NotAllowed, match="not known"):
            client.lookup(make_record("a"))
        tokens.write_text("# taken away\n")
        mine.write_text("s3cret\n")
        time.sleep(1.05)  # files are looked at once a second
        with world.client(address) as client, pytest.raises(NotAllowed, match="not known"):
            client.lookup(make_record("a"))
    use(monkeypatch, token_file=mine)
    with pytest.raises(ConfigError, match="only over TLS"):
        introduce.open_channel(address, introduce.access_of(), ())


def test_certificates_are_exchanged_without_a_restart(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_daemon(tmp_path, authority) as (world, address):
        use(monkeypatch, tls_ca=authority.file)
        with world.client(address) as client:
            assert client.calls.hello()
        shown = _certificate_of(address)
        authority.certificate("daemon", server=True)
        time.sleep(1.05)
        with world.client(address) as client:
            assert client.calls.hello()
        assert _certificate_of(address) != shown
        (authority.folder / "daemon.crt").write_text("half a file")  # what was there stays in force
        time.sleep(1.05)
        with world.client(address) as client:
            assert client.calls.hello()
        assert [line["audit"] for line in world.audit()] == ["trust file"]


def _certificate_of(address: str) -> str:
    import ssl

    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


@pytest.mark.parametrize("wrong", ("missing", "rubbish", "another's key"))
def test_a_certificate_that_can_not_be_used_is_named(
    tmp_path: Path, authority: Authority, wrong: str
) -> None:
    cert, private = authority.certificate("daemon", server=True)
    if wrong == "missing":
        cert = tmp_path / "none"
    elif wrong == "rubbish":
        cert.write_text("-----BEGIN CERTIFICATE-----\n")
    else:
        private = authority.certificate("other")[1]
    given = {"tls_cert": cert, "tls_key": private, "also_listen": ("tcp://127.0.0.1:0",)}
    with (
        pytest.raises(ConfigError, match="tls_cert="),
        daemon(tmp_path / "d", "memory://", **given),
    ):
        pass


def test_a_stranger_does_not_fill_the_audit(tmp_path: Path) -> None:
    """Told once, counted each time."""
    running = daemon(tmp_path / "d", f"disk://{tmp_path}/s", writers=(SOMEBODY_ELSE,))
    with running as world, world.client() as client:
        for _ in range(20):
            with pytest.raises(NotAllowed):
                client.publish(make_artifact("a"), make_record("a"))
        assert len(world.audit("denied")) == 1
        told = [event for event in client.calls.stats().events if event.kind == "role"]
        assert len(told) == 1
