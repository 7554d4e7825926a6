"""The committed Python of the wire is what proto/ generates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-proto" / "bin" / "python"


@pytest.mark.skipif(
    not PYTHON.exists(), reason="no .venv-proto: `make test` or `make proto` makes it"
)
def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    subprocess.run([PYTHON, ROOT / ".ci" / "generate_proto.py", tmp_path], check=True, cwd=tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.py*")}
    committed = {
        path.relative_to(ROOT): path.read_bytes()
        for path in (ROOT / "coldstart" / "rpc").rglob("*_pb2*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert sorted(made) == sorted(committed)
    changed = [str(name) for name in sorted(made) if made[name] != committed[name]]
    assert not changed, "run `make proto` and commit"


def test_generated_code_asks_for_no_newer_runtime() -> None:
    """Newer generators write a check of the runtime's version, which would fail in the user's process."""
    for path in (ROOT / "coldstart" / "rpc").rglob("*_pb2*.py"):
        text = path.read_text()
        assert "ValidateProtobufRuntimeVersion" not in text, path
        assert "GRPC_GENERATED_VERSION" not in text, path
