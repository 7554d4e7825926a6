"""What is vendored is what its authors published, with their licence."""

from __future__ import annotations

import hashlib
import importlib.resources

VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_vendored_files_are_unchanged() -> None:
    folder = importlib.resources.files("coldstart.dashboard") / "page" / "vendor"
    for name, digest in VENDORED.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    assert "MIT License" in (folder / "uPlot.LICENSE").read_text()
    assert {path.name for path in folder.iterdir()} == {*VENDORED, "uPlot.LICENSE", "README.md"}
