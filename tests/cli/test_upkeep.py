"""`purge`, `verify` and `gc` as an operator runs them: with a daemon and without, their JSON, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Daemon
from small_artifacts import make_artifact, make_record

from coldstart import wire
from coldstart.client.client import CacheClient
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.store.disk import DiskTier

Run = Callable[..., subprocess.CompletedProcess[str]]


def fill(root: Path, names: str = "abc") -> dict[str, tuple[str, str]]:
    """name -> key, digest; the first was used longest ago."""

    async def put() -> dict[str, tuple[str, str]]:
        disk = DiskTier(root)
        made = {}
        for n, name in enumerate(names):
            artifact, record = (
                make_artifact(name, name.encode() * 99, compile_seconds=2.0),
                make_record(name),
            )
            await disk.put(artifact, record)
            header = artifact.header
            made[name] = (header.key, header.digest)
            stamp = time.time() - 86400 * (10 - n) + 3600
            os.utime(root / disk.relative_path(header.digest, header.key), (stamp, stamp))
        await disk.close()
        return made

    return asyncio.run(put())


def names_left(root: Path) -> set[str]:
    async def look() -> set[str]:
        disk = DiskTier(root)
        found = {kept.header.program_name async for kept in disk.scan()}
        await disk.close()
        return found

    return asyncio.run(look())


def test_purge_through_a_daemon(coldstart: Run, daemon: Daemon) -> None:
    made = fill(daemon.store)
    to = f"--address={daemon.address}"
    dry = coldstart("purge", to, "--program=a", "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    found = json.loads(dry.stdout)
    assert found["dry_run"] is True and found["negatives"] == 0 and found["failed"] == []
    (row,) = found["artifacts"]
    assert (row["key"], row["digest"]) == made["a"] and row["outcome"] == "meant"
    assert found["tiers"] == {
        "disk": {
            "meant": {
                "artifacts": 1,
                "bytes": row["bytes"],
                "compile_seconds": row["compile_seconds"],
            }
        }
    }
    assert names_left(daemon.store) == {"a", "b", "c"}
    done = coldstart("purge", to, "--program=a")
    assert done.returncode == 0 and done.stdout.startswith("disk: 1 removed, ")
    assert names_left(daemon.store) == {"b", "c"}
    client = CacheClient(daemon.address, holder="test")
    answer = client.batch(pb.BatchRequest(keys=[made["a"][0], made["b"][0]])).answers
    assert [a.state for a in answer] == [pb.KEY_STATE_ABSENT, pb.KEY_STATE_PRESENT]
    client.close()
    nothing = coldstart("purge", to, "--program=a")
    assert nothing.returncode == 0 and nothing.stdout == "nothing there is meant\n"
    everything = coldstart("purge", to, "--all")
    assert everything.returncode == 0 and names_left(daemon.store) == set()


def test_negative_entries_are_forgotten(coldstart: Run, daemon: Daemon) -> None:
    client = CacheClient(daemon.address, holder="test")
    leased = ask(client)
    failure = pb.FailRequest(
        lease_id=leased.lease.lease_id, kind=pb.REASON_NEGATIVE_COMPILE, message="it won't"
    )
    client.fail(failure)
    assert ask(client).HasField("refused")
    dry = coldstart("purge", f"--address={daemon.address}", "--negative", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "negative entries are not counted in a dry run\n")
    assert ask(client).HasField("refused")
    done = coldstart("purge", f"--address={daemon.address}", "--negative")
    assert (done.returncode, done.stdout) == (0, "1 negative entries forgotten\n")
    assert ask(client).HasField("lease")
    client.close()


def ask(client: CacheClient) -> Any:
    record = wire.record_to_pb(make_record("fails"))
    return client.lookup(pb.LookupRequest(lookup_id=uuid.uuid4().hex, record=record), 10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "say which artifacts are meant, or --all"),
        (("--tier=disk",), "say which artifacts are meant, or --all"),
        (("--all", "--program=a"), "contradict"),
        (("--key=x",), "'x' is not a key"),
        (("--rule=no-such",), "no rule is called 'no-such'"),
        (("--older-than=soon",), "'soon' is no age"),
        (("--producer=",), "--producer is empty"),
        (("--program=a", "--tier=tape"), "no tier is called 'tape'"),
    ],
)
def test_purge_refuses_in_one_line(
    coldstart: Run, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    fill(tmp_path / "store")
    done = coldstart("purge", f"--store=disk://{tmp_path}/store", *options)
    assert done.returncode in (1, 2) and words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and names_left(tmp_path / "store") == {"a", "b", "c"}


def test_verify_without_a_daemon(coldstart: Run, tmp_path: Path) -> None:
    root = tmp_path / "store"
    made = fill(root)
    store = f"--store=disk://{root}"
    sound = coldstart("verify", store)
    assert sound.returncode == 0 and "disk: 3 sound, " in sound.stdout
    (path,) = (root / "v1" / "objects").glob(f"*/{made['b'][1]}-*")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    found = coldstart("verify", store, "--json")
    assert found.returncode == 1
    (bad,) = json.loads(found.stdout)["bad"]
    assert (bad["key"], bad["outcome"], bad["program_name"]) == (made["b"][0], "bad", "b")
    assert names_left(root) == {"a", "b", "c"}
    aside = coldstart("verify", store, "--put-aside")
    assert aside.returncode == 1 and f"disk: {made['b'][0]}" in aside.stdout
    assert names_left(root) == {"a", "c"} and len(list((root / "v1" / "quarantine").iterdir())) == 1
    assert coldstart("verify", store).returncode == 0


def test_gc_takes_what_was_used_longest_ago(coldstart: Run, tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, "abcd")
    (root / "v1" / "objects" / "aa").mkdir(exist_ok=True)
    store = f"--store=disk://{root}"
    dry = coldstart("gc", store, "--unused-for=8d", "--dry-run")
    assert dry.returncode == 0 and dry.stdout.startswith("disk: 2 would go, ")
    assert names_left(root) == set("abcd")
    done = coldstart("gc", store, "--unused-for=8d", "--json")
    assert (
        done.returncode == 0
        and json.loads(done.stdout)["tiers"]["disk"]["removed"]["artifacts"] == 2
    )
    assert names_left(root) == {"c", "d"}
    rest = json.loads(coldstart("gc", store, "--limit=1", "--json").stdout)
    assert rest["tiers"]["disk"]["removed"]["artifacts"] == 2 and names_left(root) == set()
    none = coldstart("gc", store, "--limit=1GiB")
    assert (none.returncode, none.stdout) == (0, "no artifact has to go\n")


def test_a_mistyped_store_is_not_made(coldstart: Run, tmp_path: Path) -> None:
    for command in ("gc", "verify", "purge"):
        options = ["--all"] if command == "purge" else []
        done = coldstart(command, f"--store=disk://{tmp_path}/nowhere", *options)
        assert done.returncode == 2 and "there is no folder" in done.stderr
    assert not (tmp_path / "nowhere").exists()
