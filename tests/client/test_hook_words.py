"""What the hook says where nobody looks for it: warnings, strict mode under JAX's own start, what wasn't stored."""

from __future__ import annotations

from typing import Any

import pytest
from hooked import run

import coldstart
from coldstart.client.outbox import Outbox
from coldstart.outcomes import Reason

pytestmark = pytest.mark.stacks


@pytest.mark.parametrize(
    "setting", [{"COLDSTART_ADRESS": "x"}, {"COLDSTART_MODE": "fast"}, {"COLDSTART_RULES": "-what"}]
)
def test_strict_mode_raises_a_bad_setting_at_the_first_compile(
    program: Any, tmp_path: Any, setting: dict[str, str]
) -> None:
    """JAX loads plug-ins in the middle of its start and swallows what they raise."""
    source = """
from coldstart.errors import ConfigError
jax.devices()
for _ in range(2):
    try:
        jax.jit(lambda x: x + 1)(1.0)
    except ConfigError as exc:
        say(words=str(exc))
    else:
        sys.exit(9)
"""
    (name,) = setting
    address = {"COLDSTART_ADDRESS": f"unix://{tmp_path}/s.sock"}
    ran = program(source, COLDSTART_STRICT="1", **address, **setting)
    assert name in ran.said["words"] or "what" in ran.said["words"]
    lenient = program(
        "say(value=float(jax.jit(lambda x: x + 1)(1.0)))",
        prelude="import warnings; warnings.simplefilter('always')\n"
        + __import__("processes").PRELUDE,
        COLDSTART_STRICT="0",
        **address,
        **setting,
    )
    assert lenient.said["value"] == 2.0
    assert "coldstart: " in lenient.stderr


def test_every_line_of_the_hook_says_whose_it_is(program: Any, tmp_path: Any) -> None:
    ran = program(
        "jax.jit(lambda x: x + 1)(1.0)",
        COLDSTART_ADDRESS=f"unix://{tmp_path}/nobody.sock",
        COLDSTART_STRICT="0",
    )
    lines = [line for line in ran.stderr.splitlines() if "without the cache" in line]
    assert len(lines) == 1 and lines[0].startswith("coldstart: ")


def test_what_the_daemon_does_not_store_is_counted(daemon: Any) -> None:
    daemon.stop()
    daemon.start("--max-artifact", "1KiB")
    assert coldstart.install(daemon.address, strict=True)
    try:
        run()
        assert coldstart.flush()
        report = coldstart.report()
        assert report is not None
        assert report.not_stored == {Reason.TOO_LARGE: 1}
        assert "compiled and not stored: too-large 1" in str(report)
    finally:
        coldstart.uninstall()


def test_what_does_not_fit_into_the_outbox_is_told_and_its_lease_is_let_go(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbox, "put", lambda self, what, job, holds_bytes=0: False)
    run(lambda x: x * 11)
    report = coldstart.report()
    assert report is not None and report.not_stored == {Reason.QUOTA: 1}
    assert hook.session().heartbeat._leases == {}
