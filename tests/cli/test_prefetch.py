"""`coldstart lookup --prefetch`: what a list names comes from the slow tier to the fast one, longest compile first."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coldstart import artifact
from coldstart.cli import prefetch as module
from coldstart.client.client import CacheClient
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.server.in_process import daemon_in_process
from coldstart.store.disk import DiskTier

COUNT = 12


def record(n: int) -> KeyRecord:
    values = {
        "program": f"{n:064x}",
        "options": "o",
        "target": "cpu:test",
        "flags": "",
        "callbacks": "0",
    }
    return KeyRecord(tuple(Component(name, value) for name, value in values.items()))


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A store with artifacts that took 1 to COUNT seconds to compile, in no order."""
    root = tmp_path / "slow"

    async def fill() -> None:
        tier = DiskTier(root)
        for n in range(COUNT):
            made = artifact.make(
                b"x" * 1000 * (n + 1),
                key=key_of(record(n)),
                module_digest=record(n).module_digest,
                platform="cpu",
                target="cpu:test",
                partitions=1,
                replicas=1,
                callbacks=0,
                codec="raw",
                compile_seconds=1.0 + (5 * n) % COUNT,
            )
            await tier.put(made, record(n))
        await tier.close()

    asyncio.run(fill())
    return root


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """All of those, one of them twice, and a key that nobody has."""
    file = tmp_path / "keys"
    lines = [f"{key_of(record(n))}  # program {n}" for n in (*range(COUNT), 3, 99)]
    file.write_text("# of a plan\n\n" + "\n".join(lines) + "\n")
    return file


def test_everything_comes_to_the_first_tier_with_progress(coldstart, slow, keys, tmp_path):
    fast = f"disk://{tmp_path}/fast"
    done = coldstart(
        "lookup", "--prefetch", str(keys), "--store", fast, "--store", f"disk://{slow}", "--json"
    )
    assert done.returncode == 1, done.stderr  # one is nowhere
    data = json.loads(done.stdout)
    assert data.pop("seconds") > 0 and data.pop("bytes") > sum(1000 * (n + 1) for n in range(COUNT))
    assert data == {
        "keys": COUNT + 1,
        "present": COUNT,
        "fetched": COUNT,
        "failed": 0,
        "compile_seconds": sum(range(1, COUNT + 1)),
    }
    assert f"{COUNT}/{COUNT} cs1-" in done.stderr
    for n in range(COUNT):
        assert coldstart("lookup", key_of(record(n)), "--store", fast).returncode == 0
    keys.write_text("\n".join(key_of(record(n)) for n in range(COUNT)))
    again = coldstart("lookup", "--prefetch", str(keys), "--store", fast)
    assert again.returncode == 0 and f"{COUNT} of {COUNT} keys fetched" in again.stdout


def test_what_saves_most_comes_first(slow, keys, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 1)
    said: list[str] = []
    with daemon_in_process([f"disk://{slow}"]) as address, keys.open() as file:
        client = CacheClient(address, holder="test")
        done = module.prefetch(client, module.read_keys(file), lambda _, words: said.append(words))
        client.close()
    saved = [float(words.rpartition("saves ")[2].removesuffix(" s")) for words in said]
    assert saved == sorted(saved, reverse=True) and len(saved) == done.fetched == COUNT


@pytest.mark.parametrize(
    ("text", "words"), [("", "no keys"), ("# none\n", "no keys"), ("cs1-12\n", "is not a key")]
)
def test_a_list_that_is_none_is_a_mistake(coldstart, tmp_path, text, words):
    (tmp_path / "list").write_text(text)
    done = coldstart("lookup", "--prefetch", str(tmp_path / "list"))
    assert done.returncode == 2 and words in done.stderr


def test_a_key_or_a_list(coldstart, tmp_path):
    for arguments in ((), (key_of(record(0)), "--prefetch", "/dev/null")):
        done = coldstart("lookup", *arguments)
        assert done.returncode == 2 and "--prefetch" in done.stderr
