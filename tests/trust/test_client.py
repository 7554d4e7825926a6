"""A client with keys of its own loads only what is signed, whatever its daemon offers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="the client's tests need JAX")

from hooked import lookups, run
from processes import Daemon
from trust_keys import Keys

import coldstart
from coldstart.errors import ConfigError
from coldstart.outcomes import Outcome, Reason

HIT, MISS = (Outcome.HIT, Reason.OK), (Outcome.MISS, Reason.COLD)
REFUSED = (Outcome.REFUSED, Reason.ROLE)


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Daemon]:
    folder.mkdir(exist_ok=True)
    found = Daemon(folder)
    found.start(*flags)
    try:
        yield found
    finally:
        found.stop()


def run_hooked(daemon: Daemon, *, strict: bool = True) -> dict[tuple[Outcome, Reason], int]:
    """How the lookups of one run of the program ended."""
    assert coldstart.install(daemon.address, strict=strict)
    try:
        run()
        assert coldstart.flush()
        return dict(lookups())
    finally:
        coldstart.uninstall()


def test_only_what_is_signed_is_loaded(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing = f"--signing-key={keys.folder / 'one.key'}"
    with running(tmp_path / "u") as unsigned, running(tmp_path / "s", signing) as signed:
        for daemon in (unsigned, signed):
            assert MISS in run_hooked(daemon) and HIT in run_hooked(daemon)
        monkeypatch.setenv("COLDSTART_TRUSTED_KEYS", str(keys.trusted))
        assert set(run_hooked(signed)) == {HIT}
        # The daemon believes its store; this process doesn't, and compiles.
        ended = run_hooked(unsigned)
        assert HIT not in ended and (Outcome.ERROR, Reason.SIGNATURE) in ended
        assert unsigned.artifacts()  # nothing was taken from those who do
        monkeypatch.delenv("COLDSTART_TRUSTED_KEYS")
        assert set(run_hooked(unsigned)) == {HIT}

        monkeypatch.setenv("COLDSTART_TRUSTED_KEYS", str(keys.trusted))
        keys.revoked.write_text(f"key {next(iter(keys.verifier().keys))}\n")
        monkeypatch.setenv("COLDSTART_REVOKED", str(keys.revoked))
        assert HIT not in run_hooked(signed)


def test_keys_that_can_not_be_read_let_nothing_pass(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "d") as daemon:
        run_hooked(daemon)
        monkeypatch.setenv("COLDSTART_TRUSTED_KEYS", str(tmp_path / "none"))
        assert HIT not in run_hooked(daemon, strict=False)
        with pytest.raises(ConfigError, match="trusted_keys="):
            run_hooked(daemon)
