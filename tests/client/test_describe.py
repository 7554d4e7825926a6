"""Programs that no rule needed a descriptor for are described after their compile, so that misses can be explained."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import pytest
from hooked import lookups, run

import coldstart
from coldstart.client import jax_module, publisher
from coldstart.outcomes import Outcome, Reason

pytestmark = pytest.mark.stacks


def keys_of(daemon: Any) -> list[str]:
    names = {path.parent.name for path in daemon.store.rglob("*") if path.is_file()}
    return sorted(name for name in names if name.startswith("cs1-"))


@pytest.mark.usefixtures("hook")
def test_a_miss_is_explained_down_to_the_constant(
    daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "DESCRIBE_FROM_SECONDS", 0.0)
    for factor in (2.0, 3.0):
        run(lambda x, factor=factor: jnp.tanh(x) * factor)
    assert coldstart.flush()
    left, right = keys_of(daemon)
    command = [sys.executable, "-m", "coldstart.cli.main", "explain", left, right, "--json"]
    done = subprocess.run(
        [*command, f"--address={daemon.address}"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["first"] == "program"
    (shown,) = found["difference"]["shown"]
    assert shown["what"] == "attribute value"
    assert {"2.0" in shown["left"] or "3.0" in shown["left"]} == {True}
    # And the alias that came before the description is still one: nothing is compiled, nothing asked.
    run(lambda x: jnp.tanh(x) * 2.0)
    assert lookups() == {(Outcome.MISS, Reason.COLD): 2, (Outcome.HIT, Reason.OK): 1}


@pytest.mark.usefixtures("hook")
def test_short_compiles_are_not_described(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "DESCRIBE_FROM_SECONDS", 1e9)
    run()
    assert coldstart.flush()
    (key,) = keys_of(daemon)
    client = daemon.client()
    assert not client.descriptors(key).programs
    client.close()


@pytest.mark.usefixtures("hook")
def test_trouble_with_describing_is_nobodys_trouble(
    compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "DESCRIBE_FROM_SECONDS", 0.0)

    def broken(module: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(jax_module, "describe", broken)
    run()
    run()
    assert len(compiles) == 1
    assert lookups() == {(Outcome.MISS, Reason.COLD): 1, (Outcome.HIT, Reason.OK): 1}


@pytest.mark.usefixtures("hook")
def test_options_that_differ_are_named(daemon: Any) -> None:
    """Of the options only a hash is kept; what they were set by stands beside it."""
    for options in ({}, {"xla_cpu_enable_fast_math": True}):
        run(lambda x: jnp.tanh(x) * 5.0, compiler_options=options)
    assert coldstart.flush()
    left, right = keys_of(daemon)
    command = [sys.executable, "-m", "coldstart.cli.main", "explain", left, right]
    done = subprocess.run(
        [*command, f"--address={daemon.address}"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "options" in done.stdout and "xla_cpu_enable_fast_math=True" in done.stdout
