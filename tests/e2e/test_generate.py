"""A warmed plan is all that generating needs: a fresh process compiles nothing and computes the same, to the bit.

Compiles are counted in the compiler itself (PRELUDE), beneath the hook and every cache.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TOKENS = 32
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8]]

GENERATE = f"""
import hashlib
if os.environ.get("COLDSTART_ADDRESS"):
    import coldstart
    assert coldstart.install()
from coldstart.models.config import TINY
from coldstart.models.tiny_moe import TinyMoe
model = TinyMoe(TINY, jax.devices())
made = model.generate(model.params(), {PROMPTS}, {TOKENS})
hits = coldstart.report().hits if os.environ.get("COLDSTART_ADDRESS") else 0
say(
    compiles=COMPILES,
    hits=hits,
    tokens=made.tokens,
    shape=made.logits.shape,
    finite=bool(np.isfinite(made.logits).all()),
    logits=hashlib.sha256(made.logits.tobytes()).hexdigest(),
)
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_fresh_process_generates_without_a_compile(daemon, program) -> None:
    warm = [sys.executable, "-m", "coldstart.cli.main", "warm", "demo", "--target=cpu:16", "--json"]
    done = subprocess.run(
        [*warm, f"--address={daemon.address}"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["compiled"] == summary["distinct"] >= 8

    uncached = program(GENERATE, seconds=300).said
    hooked = program(GENERATE, seconds=300, COLDSTART_ADDRESS=daemon.address).said
    assert len(uncached["compiles"]) >= 2  # so the counter counts: a prefill and a decode step
    assert hooked["compiles"] == []
    assert hooked["hits"] == len(uncached["compiles"])
    assert uncached["shape"] == [TOKENS, len(PROMPTS), 512] and uncached["finite"]
    assert [len(tokens) for tokens in hooked["tokens"]] == [TOKENS] * len(PROMPTS)
    assert hooked["tokens"] == uncached["tokens"]
    assert hooked["logits"] == uncached["logits"]
