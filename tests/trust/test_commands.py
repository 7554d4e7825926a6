"""Keys on the command line, and commands that run a daemon inside of themselves."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from small_artifacts import make_artifact, make_record
from trust_keys import Keys
from trust_world import daemon, key

from coldstart.artifact import Artifact
from coldstart.store.disk import DiskTier
from coldstart.trust.keys import read_private, read_trusted


def coldstart(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("COLDSTART_")}
    command = [sys.executable, "-m", "coldstart.cli.main", *args]
    return subprocess.run(
        command, env={**kept, **environ}, capture_output=True, text=True, timeout=60
    )


def test_keygen_makes_a_pair_that_daemons_can_use(tmp_path: Path) -> None:
    done = coldstart("keygen", "signer", "--folder", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    private, public = Path(said["signing_key"]), Path(said["public"])
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert public.read_text() == said["trusted_line"] + "\n"
    assert list(read_trusted(public)) == [said["id"]] and read_private(private)

    again = coldstart("keygen", "signer", "--folder", str(tmp_path))
    assert again.returncode == 2 and "there already" in again.stderr
    plain = coldstart("keygen", "other", "--folder", str(tmp_path))
    assert plain.stdout == (tmp_path / "other.pub").read_text()  # can be appended to trusted keys
    assert "Example: " in coldstart("keygen", "--help").stdout.splitlines()[-1]


@pytest.fixture
def store(keys: Keys, tmp_path: Path) -> Path:
    """One artifact that is signed, and one that is not."""

    async def put() -> None:
        tier = DiskTier(tmp_path / "s")
        for word, signed in (("signed", True), ("unsigned", False)):
            made = make_artifact(word)
            header = await keys.sign(made.header) if signed else made.header
            await tier.put(Artifact(header, made.payload), make_record(word))
        await tier.close()

    asyncio.run(put())
    return tmp_path / "s"


def test_a_daemon_inside_of_a_command_has_the_environment_s_keys(keys: Keys, store: Path) -> None:
    trusting = {"COLDSTART_TRUSTED_KEYS": str(keys.trusted)}
    for word, environ, code in (
        ("signed", trusting, 0),
        ("unsigned", trusting, 1),
        ("unsigned", {}, 0),
    ):
        done = coldstart("lookup", key(word), "--store", f"disk://{store}", **environ)
        assert done.returncode == code, (word, done.stdout, done.stderr)


def test_a_store_is_verified_end_to_end(keys: Keys, store: Path) -> None:
    trusting = {"COLDSTART_TRUSTED_KEYS": str(keys.trusted)}
    done = coldstart("verify", "--store", f"disk://{store}", "--json", **trusting)
    assert done.returncode == 1, done.stderr
    assert "not to be believed: unsigned" in done.stdout and key("unsigned") in done.stdout
    assert coldstart("verify", "--store", f"disk://{store}").returncode == 0


def test_upkeep_takes_away_what_nobody_is_handed(keys: Keys, store: Path, tmp_path: Path) -> None:
    given = {"trusted_keys": keys.trusted}
    with daemon(tmp_path / "d", f"disk://{store}", **given) as world, world.client() as client:
        _, reply = client.lookup(make_record("unsigned"))
        assert reply.WhichOneof("answer") == "refused"
        done = coldstart("purge", "--address", world.address, "--key", key("unsigned"))
        assert done.returncode == 0, done.stderr
    assert len(list(store.glob("v1/objects/*/*.csa"))) == 1


def test_a_purge_by_producer_goes_by_the_signature_too(keys: Keys, store: Path) -> None:
    for pattern, left in (("uid:8@*", 2), ("uid:7@*", 1)):
        done = coldstart("purge", "--store", f"disk://{store}", "--producer", pattern)
        assert done.returncode == 0, done.stderr
        assert len(list(store.glob("v1/objects/*/*.csa"))) == left
