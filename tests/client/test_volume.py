"""Files that a daemon hands over by path: what is no regular file inside the volume is not even opened for long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart import artifact
from coldstart.client import volume
from coldstart.errors import ArtifactCorrupt


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
    with pytest.raises(ArtifactCorrupt, match="no regular file"):
        artifact.open_file(path)
    with pytest.raises(ArtifactCorrupt, match="no regular file"):
        list(artifact.FilePayload(path, 0, 10).chunks())


@pytest.mark.parametrize(
    "relative", ["../x", "/etc/passwd", "a\0b", "a/../../x", "link", "a" * 5000]
)
def test_paths_out_of_the_volume(tmp_path: Path, relative: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc/passwd")
    if len(relative) < 1000:
        with pytest.raises(ArtifactCorrupt):
            volume.inside(root, relative)
    assert volume.proof(root, relative) == b""


@pytest.mark.timeout(20)
def test_a_proof_is_read_from_a_nonce_and_from_nothing_else(tmp_path: Path) -> None:
    nonces = tmp_path / "v1" / "nonces"
    nonces.mkdir(parents=True)
    (nonces / "n").write_bytes(b"n" * 32)
    (nonces / "long").write_bytes(b"n" * 1000)
    (tmp_path / "secret").write_bytes(b"s" * 32)
    (nonces / "linked").symlink_to(tmp_path / "secret")
    os.mkfifo(nonces / "pipe")
    assert volume.proof(tmp_path, "v1/nonces/n") == b"n" * 32
    for other in (
        "secret",
        "v1/nonces/long",
        "v1/nonces/linked",
        "v1/nonces/pipe",
        "v1/nonces",
        "",
    ):
        assert volume.proof(tmp_path, other) == b"", other
