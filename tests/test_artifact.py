"""The artifact format: what is written is read back, and nothing else is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coldstart import artifact
from coldstart.artifact import Artifact, BytesPayload, FilePayload, Header
from coldstart.errors import ArtifactCorrupt, ArtifactError, ArtifactMismatch

ABOUT = {
    "key": "cs1-" + "a" * 64,
    "module_digest": "b" * 64,
    "platform": "cpu",
    "target": "cpu:16",
    "partitions": 16,
    "replicas": 1,
    "callbacks": 0,
    "cpu_features": ("avx2", "fma"),
    "compile_seconds": 1.25,
    "program_name": "grüße",
}
RAW = b"executable " * 40


def whole(made: Artifact) -> bytes:
    return made.header.prefix() + b"".join(made.payload.chunks())


def read_back(data: bytes) -> tuple[Header, bytes]:
    """As a loader does: header, then payload, both checked."""
    header, offset = artifact.read_header(data)
    return header, artifact.decode(Artifact(header, BytesPayload(data[offset:])))


@pytest.mark.parametrize("codec", artifact.CODECS)
def test_round_trip(codec: str, tmp_path: Path) -> None:
    made = artifact.make(RAW, codec=codec, **ABOUT)
    data = whole(made)
    assert read_back(data) == (made.header, RAW)
    (tmp_path / "a.csa").write_bytes(data)
    found = artifact.open_file(tmp_path / "a.csa")
    assert found.header == made.header and artifact.decode(found) == RAW
    assert isinstance(found.payload, FilePayload)
    assert found.payload.offset == len(made.header.prefix()) == len(data) - made.payload.size_bytes
    assert list(found.payload.chunks(7)) == list(made.payload.chunks(7))


def test_the_grammar() -> None:
    """Byte by byte, so that another language could read it."""
    made = artifact.make(b"raw bytes", codec="raw", **ABOUT)
    data = whole(made)
    size = int.from_bytes(data[4:8], "big")
    body = data[8 : 8 + size]
    assert data[:4] == b"CSA1"
    assert json.loads(body)["digest"] == hashlib.sha256(b"raw bytes").hexdigest()
    assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    assert data[8 + size : 40 + size] == hashlib.sha256(body).digest()
    assert data[40 + size :] == b"raw bytes"


@pytest.mark.parametrize("codec", artifact.CODECS)
def test_every_truncation_is_refused(codec: str, tmp_path: Path) -> None:
    data = whole(artifact.make(RAW, codec=codec, **ABOUT))
    path = tmp_path / "a.csa"
    for size in range(len(data)):
        with pytest.raises(ArtifactCorrupt):
            read_back(data[:size])
        path.write_bytes(data[:size])
        with pytest.raises(ArtifactCorrupt):
            artifact.open_file(path)


@pytest.mark.parametrize("codec", artifact.CODECS)
def test_every_bit_flip_is_refused(codec: str) -> None:
    data = bytearray(whole(artifact.make(b"executable", codec=codec, **ABOUT)))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArtifactError) as caught:
            read_back(bytes(data))
        if not isinstance(caught.value, ArtifactCorrupt):  # another magic is another format
            assert bit < 32 and caught.value.reason == "format"
        data[bit // 8] ^= 1 << bit % 8
    assert read_back(bytes(data))[1] == b"executable"


@pytest.mark.parametrize("more", [b"\x00", b"x" * 100])
def test_bytes_after_the_end_are_refused(more: bytes, tmp_path: Path) -> None:
    data = whole(artifact.make(RAW, **ABOUT)) + more
    with pytest.raises(ArtifactCorrupt):
        read_back(data)
    (tmp_path / "a.csa").write_bytes(data)
    with pytest.raises(ArtifactCorrupt, match="payload is"):
        artifact.open_file(tmp_path / "a.csa")


def test_a_recompressed_payload_is_refused_though_it_decodes_to_the_same() -> None:
    made = artifact.make(RAW, **ABOUT)
    other = zstandard.ZstdCompressor(level=19, write_checksum=False).compress(RAW)
    with pytest.raises(ArtifactCorrupt):
        artifact.decode(Artifact(made.header, BytesPayload(other)))
    fixed = dataclasses.replace(made.header, payload_bytes=len(other))
    with pytest.raises(ArtifactCorrupt, match="digest"):
        artifact.decode(Artifact(fixed, BytesPayload(other)))


def test_an_unknown_codec_is_refused_and_never_guessed() -> None:
    made = artifact.make(RAW, **ABOUT)
    with pytest.raises(ArtifactMismatch, match=r"'lz4'.*zstd, raw") as caught:
        artifact.decode(Artifact(dataclasses.replace(made.header, codec="lz4"), made.payload))
    assert caught.value.reason == "codec"
    with pytest.raises(ArtifactMismatch, match="lz4"):
        artifact.make(RAW, codec="lz4", **ABOUT)


def test_the_header_is_the_truth_about_the_codec() -> None:
    """A raw payload that happens to be a zstd frame stays as it is."""
    frame = zstandard.ZstdCompressor().compress(RAW)
    assert artifact.decode(artifact.make(frame, codec="raw", **ABOUT)) == frame
    made = artifact.make(RAW, codec="raw", **ABOUT)
    with pytest.raises(ArtifactCorrupt, match="decompressed"):
        artifact.decode(Artifact(dataclasses.replace(made.header, codec="zstd"), made.payload))


def test_another_format_is_refused_as_such() -> None:
    newer = dataclasses.replace(artifact.make(RAW, **ABOUT).header, format=2)
    with pytest.raises(ArtifactMismatch, match="format 2") as caught:
        artifact.read_header(newer.prefix())
    assert caught.value.reason == "format"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"null", b'{"format":1}', b"\xff", b"1"])
def test_a_header_that_is_hashed_but_is_none_is_refused(body: bytes) -> None:
    prefix = b"CSA1" + len(body).to_bytes(4, "big") + body + hashlib.sha256(body).digest()
    with pytest.raises(ArtifactError):
        artifact.read_header(prefix)


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csa").write_bytes(b"CSA1\xff\xff\xff\xff" + b"x" * 100)
    with pytest.raises(ArtifactCorrupt, match="limit is 1048576"):
        artifact.open_file(tmp_path / "a.csa")


def test_a_payload_that_decodes_to_another_size_is_refused() -> None:
    made = artifact.make(RAW, **ABOUT)
    for size in (len(RAW) - 1, len(RAW) + 1):
        with pytest.raises(ArtifactCorrupt):
            artifact.decode(
                Artifact(dataclasses.replace(made.header, raw_bytes=size), made.payload)
            )


def test_the_variant_is_of_the_features_alone() -> None:
    header = artifact.make(RAW, **ABOUT).header
    assert header.variant == hashlib.sha256(b"avx2,fma").hexdigest()[:16]
    assert dataclasses.replace(header, compile_seconds=9.0).variant == header.variant
    assert dataclasses.replace(header, cpu_features=("avx2",)).variant != header.variant
    assert dataclasses.replace(header, cpu_features=()).variant == ""


@given(
    raw=st.binary(max_size=300),
    codec=st.sampled_from(artifact.CODECS),
    name=st.text(max_size=20),
    features=st.lists(st.text(min_size=1, max_size=5), max_size=3),
    seconds=st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_header_and_payload_come_back(
    raw: bytes, codec: str, name: str, features: list[str], seconds: float
) -> None:
    about = ABOUT | {
        "program_name": name,
        "cpu_features": tuple(features),
        "compile_seconds": seconds,
    }
    try:
        made = artifact.make(raw, codec=codec, **about)
        data = whole(made)
    except UnicodeEncodeError:
        return
    assert read_back(data) == (made.header, raw)
    assert artifact.read_header(data)[0].encode() == made.header.encode()
