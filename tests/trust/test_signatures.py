"""Signatures by themselves: what is signed, who is believed, what changes without a restart."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
from small_artifacts import make_artifact
from trust_keys import NOW, Keys

from coldstart.artifact import Header
from coldstart.errors import ArtifactMismatch, ConfigError
from coldstart.trust.keys import generate, read_private, read_revoked, read_trusted
from coldstart.trust.signer import FileSigner
from coldstart.trust.statement import (
    BUNDLE,
    PLAN_MANIFEST,
    Signature,
    artifact_subject,
    content_subject,
    decode_signature,
)
from coldstart.trust.verifier import Verifier


def made(word: str = "program") -> Header:
    return make_artifact(word).header


def test_what_was_signed_is_believed_and_says_by_whom(keys: Keys) -> None:
    signature = keys.verifier().check_header(keys.signed(made()))
    assert (signature.producer, signature.signed_unix) == ("uid:7@host", int(NOW))
    assert signature.key_id in keys.verifier().keys


def test_a_signature_is_no_part_of_the_artifact(keys: Keys) -> None:
    header = made()
    signed = keys.signed(header)
    assert signed == header and signed.encode() == header.encode()
    assert signed.prefix() == header.prefix()


FIELDS = {
    "key": "cs1-" + "0" * 64,
    "digest": "0" * 64,
    "module_digest": "0" * 64,
    "target": "tpu:other",
    "cpu_features": ("avx512f",),
    "payload_bytes": 11,
    "partitions": 2,
    "producer": "somebody else",
    "created_unix": 1.0,
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_signature_holds_for_no_other_header(keys: Keys, field: str) -> None:
    signed = keys.signed(made())
    other = dataclasses.replace(signed, **{field: FIELDS[field]}).signed(signed.signature)
    assert "forged" in keys.verifier().why_not(other)


@pytest.mark.parametrize("at", range(0, 64, 9))
def test_a_flipped_bit_of_the_value_is_a_forgery(keys: Keys, at: int) -> None:
    signed = keys.signed(made())
    signature = decode_signature(signed.signature)
    value = bytearray(signature.value)
    value[at] ^= 1
    forged = dataclasses.replace(signature, value=bytes(value))
    assert "forged" in keys.verifier().why_not(signed.signed(forged.encode()))


CLAIMS = {
    "producer": "uid:0@host",
    "signed_unix": 5,
    "expires_unix": int(NOW) + 999,
    "namespace": "other",
    "generation": 1,
    "kind": BUNDLE,
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_stands_beside_the_value_is_signed_too(keys: Keys, claim: str) -> None:
    signed = keys.signed(made())
    changed = dataclasses.replace(
        decode_signature(signed.signature), **{claim: CLAIMS[claim]}
    ).encode()
    place = {claim: CLAIMS[claim]} if claim in ("namespace", "generation") else {}
    assert keys.verifier(**place).why_not(signed.signed(changed))


def test_unsigned_foreign_and_malformed_are_told_apart(keys: Keys) -> None:
    keys.new("stranger")
    verifier = keys.verifier()
    assert verifier.why_not(made()) == "unsigned"
    assert verifier.why_not(keys.signed(made(), "stranger")).startswith("foreign")
    good = keys.signed(made()).signature
    spelled = json.dumps(json.loads(good)).encode()  # the same claims, with spaces
    for bad in (b"x", b"{}", b"[]", b"null", good[:-1], good + b" ", spelled, b"[" * 4000):
        assert verifier.why_not(made().signed(bad)).startswith("malformed"), bad[:40]


def test_another_namespace_or_generation_refuses_it(keys: Keys) -> None:
    signed = keys.signed(made(), namespace="a", generation=3)
    assert not keys.verifier(namespace="a", generation=3).why_not(signed)
    assert "namespace" in keys.verifier(namespace="b", generation=3).why_not(signed)
    assert "generation" in keys.verifier(namespace="a", generation=4).why_not(signed)
    assert not keys.verifier(namespace="a", generation=None).why_not(signed)


def test_it_expires_also_where_it_was_believed_before(keys: Keys) -> None:
    signed, verifier = keys.signed(made(), lives_seconds=60.0), keys.verifier()
    assert not verifier.why_not(signed)
    keys.now += 60
    assert verifier.why_not(signed).startswith("expired")


def test_trust_in_a_key_ends_at_its_day(keys: Keys) -> None:
    keys.trusted.write_text(keys.trusted.read_text().strip() + " until=2027-02-01\n")
    signed, verifier = keys.signed(made()), keys.verifier()
    assert not verifier.why_not(signed)  # NOW is in January 2027
    keys.now += 30 * 86400
    assert "no longer" in verifier.why_not(signed)


def test_a_rotation_needs_no_restart(keys: Keys) -> None:
    verifier, seal = keys.verifier(), keys.seal()
    old = asyncio.run(seal.sign_header(made(), "p"))
    new = keys.signed(made(), _next(keys))
    assert not verifier.why_not(old) and verifier.why_not(new).startswith("foreign")
    keys.trusted.write_text(keys.trusted.read_text() + (keys.folder / "two.pub").read_text())
    assert not verifier.why_not(old) and not verifier.why_not(new)  # two keys meanwhile
    keys.trusted.write_text((keys.folder / "two.pub").read_text())
    assert verifier.why_not(old).startswith("foreign") and not verifier.why_not(new)


def _next(keys: Keys) -> str:
    keys.new("two")
    return "two"


def test_the_signing_key_is_exchanged_without_a_restart(keys: Keys) -> None:
    signer = FileSigner(keys.folder / "one.key")
    signer._key._look_seconds = 0.0
    before = asyncio.run(signer.current()).id
    keys.new("two")
    os.replace(keys.folder / "two.key", keys.folder / "one.key")
    assert asyncio.run(signer.current()).id != before


@pytest.mark.parametrize("what", ("key", "digest", "producer"))
def test_a_revocation_holds_at_once_for_what_was_believed_before(keys: Keys, what: str) -> None:
    signed, verifier = keys.signed(made()), keys.verifier()
    signature = verifier.check_header(signed)
    named = {"key": signature.key_id, "digest": signed.digest, "producer": signature.producer}
    keys.revoked.write_text(f"{what} {named[what]}  # leaked\n")
    assert "revoked" in verifier.why_not(signed)
    keys.revoked.write_text("# taken back\n")
    assert not verifier.why_not(signed)


def test_a_list_that_breaks_leaves_what_it_said_in_force(keys: Keys) -> None:
    told: list[str] = []
    signed = keys.signed(made())
    keys.revoked.write_text(f"digest {signed.digest}\n")
    verifier = Verifier(
        keys.trusted, keys.revoked, look_seconds=0.0, unix_now=lambda: NOW, trouble=told.append
    )
    for broken in (lambda: keys.revoked.write_text("nonsense\n"), keys.revoked.unlink):
        broken()
        assert "revoked" in verifier.why_not(signed)
    keys.trusted.unlink()
    assert "revoked" in verifier.why_not(signed)
    assert len(told) == 3 and all("stays in force" in words for words in told)


def test_other_things_are_signed_by_kind_and_content(keys: Keys) -> None:
    subject = content_subject("plan-1", b"manifest")
    signature = asyncio.run(keys.seal().sign(PLAN_MANIFEST, subject, "p")).encode()
    verifier = keys.verifier()
    assert verifier.check(PLAN_MANIFEST, subject, signature).producer == "p"
    for kind, other in (
        (BUNDLE, subject),
        (PLAN_MANIFEST, content_subject("plan-2", b"manifest")),
        (PLAN_MANIFEST, content_subject("plan-1", b"Manifest")),
    ):
        with pytest.raises(ArtifactMismatch) as refused:
            verifier.check(kind, other, signature)
        assert refused.value.reason == "signature"


def test_no_two_statements_have_the_same_bytes() -> None:
    one = Signature("k", "ab", 1, "c", 2, 3, "d", bytes(64))
    statements = [
        one.about((("n", "v"),)),
        dataclasses.replace(one, namespace="a", producer="bc").about((("n", "v"),)),
        one.about((("n", "vn"),)),
        one.about((("n", "v"), ("n", "v"))),
        one.about(artifact_subject(made())),
    ]
    assert len({statement.encode() for statement in statements}) == len(statements)


# --- key files -------------------------------------------------------------------------------------------------


def test_a_new_pair_is_for_its_owner_and_replaces_nothing(tmp_path: Path) -> None:
    private, public, key = generate(tmp_path, "ci@build")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert list(read_trusted(public)) == [key.id]
    assert read_private(private).public_key().public_bytes_raw() == key.raw
    before = private.read_bytes()
    with pytest.raises(ConfigError, match="there already"):
        generate(tmp_path, "ci@build")
    public.unlink()
    with pytest.raises(ConfigError, match="there already"):
        generate(tmp_path, "ci@build")
    assert private.read_bytes() == before and not public.exists()
    with pytest.raises(ConfigError, match="name="):
        generate(tmp_path, "../x")


@pytest.mark.parametrize(
    ("text", "words"),
    (
        ("", "holds no key"),
        ("# only words\n", "holds no key"),
        ("rsa AAAA name\n", "line 1"),
        ("ed25519 AAAA name\n", "32 bytes"),
        ("ed25519 *** name\n", "line 1"),
        ("\n\ned25519 AAAA\n", "line 3"),
        (f"ed25519 {'A' * 43}= name until=tomorrow\n", "line 1"),
        (f"ed25519 {'A' * 43}= name since=2027-01-01\n", "until="),
    ),
)
def test_a_bad_file_of_trusted_keys_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trusted"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        read_trusted(path)
    assert f"trusted_keys={path}" in str(refused.value)


def test_a_bad_key_or_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ConfigError, match=r"signing_key=.*keygen"):
        read_private(path)
    path.write_text("key\n")
    with pytest.raises(ConfigError, match=r"signing_key=.*PEM"):
        read_private(path)
    with pytest.raises(ConfigError, match=r"revoked=.*line 1"):
        read_revoked(path)
