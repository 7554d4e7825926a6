"""Where commands look for the daemon when nobody says: as the hook does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coldstart.cli import reach
from coldstart.errors import ConfigError, DaemonAbsent


@pytest.fixture
def host_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "address"
    monkeypatch.setattr(reach, "ADDRESS_FILE", file)
    return file


def test_the_hosts_file_is_read(daemon: Any, host_file: Path) -> None:
    host_file.write_text(f"{daemon.address}\n")
    with reach.daemon(None) as client:
        assert client.address == daemon.address


def test_the_environment_goes_before_it(
    daemon: Any, host_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_file.write_text("unix:///nobody/listens.sock\n")
    monkeypatch.setenv("COLDSTART_ADDRESS", daemon.address)
    with reach.daemon(None) as client:
        assert client.address == daemon.address


def test_what_is_wrong_with_it_is_said(host_file: Path) -> None:
    host_file.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=str(host_file)), reach.daemon(None):
        pass
    host_file.unlink()
    with pytest.raises(DaemonAbsent), reach.daemon("unix:///nobody/listens.sock"):
        pass
