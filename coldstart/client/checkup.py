"""A check-up of this host: does a JAX process started here use the cache, and if not, what to do.

Settings and the daemon are looked at in this process, which needs no JAX; what needs it runs in child processes
(`jax_checkup`), because a device can often be opened once only and a broken installation may crash. JSON, as
`to_json` makes it (fields are added, never renamed; tests/cli/golden/doctor.json holds names and types):

    ok              no check is a problem; the command's exit code
    settings[]      the client's settings in force: value, and whether the environment, the file or nobody gave it
    checks[]        status is ok, note (works, worth knowing), problem, or skipped; fix says what to do
    jax, target     of a process started here; null where there is none
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from coldstart import __version__, wire
from coldstart.client import host
from coldstart.client.link import Link
from coldstart.config import (
    ADDRESS_FILE,
    CLIENT_SETTINGS,
    PREFIX,
    ClientSettings,
    client_settings,
    default_address,
    known_variables,
    unknown_settings,
)
from coldstart.errors import ColdstartError, ConfigError
from coldstart.identity.key import SCHEME
from coldstart.rpc.v1 import cache_pb2 as pb

CHILD_SECONDS = 180.0
KEPT = re.compile(rf"{PREFIX}(NAMESPACE|VOLUME_ROOT|TRUSTED_KEYS|REVOKED|TLS_\w+|TOKEN_FILE)")
DROPS_ALL_SECONDS = 30.0  # a threshold above this leaves hardly any program to keep
STACKS = {"0.10": "A", "0.11": "B", "0.12": "C"}  # see README: constraints-a.txt, -b.txt, -c.txt
PLUGIN = "coldstart.client.jax_plugin"

Status = Literal["ok", "note", "problem", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting of the client, and who gave it."""

    name: str
    variable: str
    value: str  # "" : not set
    source: str  # environment, file or default


@dataclass(slots=True)
class Checkup:
    """What was found, in the order in which it was looked at."""

    address: str | None = None
    settings: list[SettingInForce] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    jax: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return all(check.status != "problem" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        jax = self.jax
        names = ("jax", "jaxlib", "platform", "devices")
        return {
            "version": __version__,
            "ok": self.ok,
            "address": self.address,
            "settings": [asdict(setting) for setting in self.settings],
            "checks": [asdict(check) for check in self.checks],
            "jax": {name: jax[name] for name in names} if jax else None,
            "target": jax["target"] if jax else None,
        }


def check_up(
    environ: Mapping[str, str],
    *,
    address: str | None = None,
    program: Sequence[str] = (),
    address_file: Path = ADDRESS_FILE,
) -> Checkup:
    """Look at everything; never raises for what it finds.

    Args:
        address: the daemon's, where it isn't the one of the settings.
        program: a JAX script with its arguments, run once to see how its compiles fare.
    """
    found = Checkup()
    settings = _settings(found, environ, address, address_file)
    hello = _daemon(found, settings)
    _jax(found, environ)
    if hello is None or found.jax is None or not found.jax["seam_found"]:
        missing = "a daemon" if hello is None else "a JAX that the hook fits"
        found.checks.append(Check("self-test", "skipped", f"needs {missing}"))
    elif wire.mode_from_pb(hello.mode) is wire.Mode.OBSERVE:
        found.checks.append(
            Check("self-test", "skipped", "a daemon in mode observe stores nothing")
        )
    else:
        found.checks.extend(_self_test(environ, settings, hello.min_compile_seconds))
    if program and found.jax is not None:
        found.checks.extend(_program(environ, settings, program))
    return found


# --- settings ------------------------------------------------------------------------------------


def _settings(
    found: Checkup, environ: Mapping[str, str], address: str | None, address_file: Path
) -> ClientSettings:
    add = found.checks.append
    settings = ClientSettings()
    try:
        settings = client_settings(environ, address_file=address_file)
    except ConfigError as exc:
        add(_advised("settings", str(exc)))
    for message in unknown_settings(environ):
        add(_advised("settings", message))
    if not found.checks:
        add(Check("settings", "ok", "every setting is known and can be used"))
    for setting in CLIENT_SETTINGS:
        value = getattr(settings, "rules_off" if setting.name == "rules" else setting.name)
        given = bool(environ.get(setting.variable))
        source = "environment" if given else "default"
        if setting.name == "address" and value is not None and not given:
            source = "file"
        found.settings.append(SettingInForce(setting.name, setting.variable, _text(value), source))
    links = _service_links(environ)
    if links:
        listed = ", ".join(links[:3]) + (f" and {len(links) - 3} more" if len(links) > 3 else "")
        add(Check("service-links", "ok", f"ignored, Kubernetes made them: {listed}"))
    if settings.disable:
        add(Check("disable", "problem", "COLDSTART_DISABLE switches the hook off", "unset it"))
    add(_address(settings, address, default_address({**environ, "COLDSTART_ADDRESS": ""})))
    found.address = (
        address or settings.address or default_address({**environ, "COLDSTART_ADDRESS": ""})
    )
    return ClientSettings(
        address=found.address,
        rules_off=settings.rules_off,
        volume_root=settings.volume_root,
        namespace=settings.namespace,
        trusted_keys=settings.trusted_keys,
        revoked=settings.revoked,
    )


def _advised(name: str, message: str) -> Check:
    """A problem from one of our messages, which say what is wrong and, after a semicolon, what to do."""
    wrong, _, fix = message.partition("; ")
    return Check(name, "problem", wrong, fix)


def _address(settings: ClientSettings, address: str | None, default: str) -> Check:
    if settings.address is None:
        fix = f"export COLDSTART_ADDRESS={address or default}, or call coldstart.install(address)"
        message = (
            f"no address is set, so the hook stays inactive; {address or default} is tried here"
        )
        return Check("address", "note" if address else "problem", message, fix)
    if address and address != settings.address:
        message = f"processes here use {settings.address}; {address} is tried as asked"
        return Check("address", "note", message)
    return Check("address", "ok", f"processes here use {settings.address}")


def _text(value: object) -> str:
    if value is None or value is False or value == ():
        return ""
    if isinstance(value, tuple):
        return ",".join(f"-{name}" for name in value)
    return "1" if value is True else str(value)


def _service_links(environ: Mapping[str, str]) -> list[str]:
    known = known_variables()
    ours = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    return [name for name in ours if not unknown_settings({name: environ[name]})]


# --- the daemon ----------------------------------------------------------------------------------


def _daemon(found: Checkup, settings: ClientSettings) -> pb.HelloReply | None:
    """Checks of the daemon; its greeting, or None where it can't be used."""
    assert settings.address is not None
    add = found.checks.append
    link = Link(settings.address, holder=host.holder(), volume_root=settings.volume_root)
    try:
        client = link.client()
    except ColdstartError as exc:
        add(_advised("daemon", str(exc)))
        return None
    hello = link.hello
    client.close()
    about = f"version {hello.daemon_version}, scheme {hello.scheme}, mode {wire.mode_from_pb(hello.mode).value}"
    if hello.scheme != SCHEME:
        fix = f"use one version on both sides; this client makes {SCHEME} keys"
        add(Check("daemon", "problem", about, fix))
        return None
    other = hello.daemon_version != __version__
    note = f"; this client has version {__version__}" if other else ""
    add(Check("daemon", "note" if other else "ok", about + note))
    if link.volume is not None:
        add(Check("volume", "ok", f"artifacts come by path below {link.volume}"))
    elif hello.volume.nonce_path:
        message = (
            f"the daemon's disk {hello.volume.root} is not visible here; artifacts come by stream"
        )
        fix = "mount it here and set COLDSTART_VOLUME_ROOT, to save a copy of each"
        add(Check("volume", "note", message, fix))
    else:
        add(Check("volume", "ok", "the daemon gives no paths; artifacts come by stream"))
    add(_threshold(hello.min_compile_seconds))
    return hello


def _threshold(seconds: float) -> Check:
    if seconds <= 0:
        return Check("threshold", "ok", "programs are kept however fast they compile")
    message = (
        f"programs that compile in less than {seconds:g} s are not kept, unless a plan names them"
    )
    if seconds < DROPS_ALL_SECONDS:
        return Check("threshold", "note", message)
    fix = "give the daemon a lower min_compile_seconds (COLDSTART_MIN_COMPILE_SECONDS=0 keeps all)"
    return Check("threshold", "problem", f"{message}: that drops nearly everything", fix)


# --- JAX -----------------------------------------------------------------------------------------


def _jax(found: Checkup, environ: Mapping[str, str]) -> None:
    add = found.checks.append
    if find_spec("jax") is None:
        add(Check("jax", "problem", "jax is not installed here", "pip install 'coldstart[jax]'"))
        return
    without_us = {name: text for name, text in environ.items() if not name.startswith(PREFIX)}
    said = _child(without_us, "facts")
    if "error" in said:
        fix = (
            "see whether `python -c 'import jax; print(jax.devices())'` works; where another process holds the device, "
            "JAX_PLATFORMS=cpu leaves it alone"
        )
        add(Check("jax", "problem", f"a process here can't use JAX: {said['error']}", fix))
        return
    found.jax = said
    stack = STACKS.get(".".join(said["jax"].split(".")[:2]))
    named = f" (stack {stack})" if stack else ""
    devices = f"{said['devices']} {said['platform']} device" + "s" * (said["devices"] != 1)
    add(Check("jax", "ok", f"JAX {said['jax']}{named} on {devices}"))
    if not said["seam_found"]:
        add(
            Check(
                "seam",
                "problem",
                said["seam_problem"],
                "use a JAX of constraints-a.txt, -b.txt or -c.txt",
            )
        )
    elif not said["seam_known"]:
        add(Check("seam", "note", f"{said['seam_problem']}: the hook only observes"))
    else:
        add(Check("seam", "ok", "JAX's compile function is there and takes what the hook knows"))
    add(_plugin())
    add(_stock_cache(said["stock_cache"]))


def _plugin() -> Check:
    points = [point for point in entry_points(group="jax_plugins") if point.value == PLUGIN]
    if points:
        return Check("plugin", "ok", "JAX loads the hook by itself (entry point in jax_plugins)")
    message = "JAX can't find the hook by itself: no entry point of ours in jax_plugins"
    fix = "pip install coldstart, or call coldstart.install() before the first compile"
    return Check("plugin", "problem", message, fix)


def _stock_cache(stock: Mapping[str, Any]) -> Check:
    if not stock["directory"]:
        return Check("jax-cache", "ok", "JAX's own cache is off; it may be on as well")
    message = (
        f"JAX's own cache is on too, in {stock['directory']}; "
        f"it keeps what compiles in {stock['min_compile_seconds']:g} s or more"
    )
    if stock["min_compile_seconds"] < DROPS_ALL_SECONDS:
        return Check("jax-cache", "ok", message)
    fix = "lower jax_persistent_cache_min_compile_time_secs"
    return Check("jax-cache", "problem", f"{message}: that drops nearly everything", fix)


# --- write, read, load ---------------------------------------------------------------------------


def _self_test(
    environ: Mapping[str, str], settings: ClientSettings, threshold: float
) -> Iterator[Check]:
    """A new program is compiled and published by one process, and loaded by a second one."""
    kept = {name: text for name, text in environ.items() if not name.startswith(PREFIX)}
    unwanted = ("JAX_COMPILATION_CACHE_DIR",)  # so that it can't answer in our place
    kept = {name: text for name, text in kept.items() if name not in unwanted}
    kept |= {"COLDSTART_ADDRESS": str(settings.address), "COLDSTART_STRICT": "1"}
    kept |= {name: text for name, text in environ.items() if KEPT.fullmatch(name) and text}
    options = [f"--token={secrets.randbelow(2**31)}"]
    if threshold > 0:
        options.append("--planned")
    fix = "the daemon's log and `coldstart stats` say more"

    first = _child(kept, "store", options=options)
    fault = _fault(first, compiles=1, lookup="miss cold")
    if not fault and not first["published"]:
        fault = "compiled, but the daemon did not take it"
    if fault:
        yield Check("self-test-store", "problem", f"a new program in a first process: {fault}", fix)
        yield Check("self-test-load", "skipped", "nothing was stored")
        return
    seconds = first["compile_seconds"]
    yield Check(
        "self-test-store",
        "ok",
        f"a new program compiled in {seconds:.2f} s and was sent to the daemon",
    )
    second = _child(kept, "load", options=options)
    fault = _fault(second, compiles=0, lookup="hit ok")
    if fault:
        yield Check(
            "self-test-load", "problem", f"the same program in a second process: {fault}", fix
        )
        return
    yield Check(
        "self-test-load",
        "ok",
        "a second process loaded it with 0 compiles and an equal result, though its hook came after its first compile",
    )


def _fault(said: Mapping[str, Any], *, compiles: int, lookup: str) -> str:
    """What is wrong with one half of the self test; "" if nothing."""
    if "error" in said:
        return str(said["error"])
    if not said["right"]:
        return "its result is wrong"
    if said["compiles"] != compiles or lookup not in said["lookups"]:
        ended = ", ".join(f"{name} {count}" for name, count in said["lookups"].items()) or "none"
        return f"{said['compiles']} compiles instead of {compiles}; lookups: {ended}"
    return ""


# --- a program of the user's ---------------------------------------------------------------------


def _program(
    environ: Mapping[str, str], settings: ClientSettings, program: Sequence[str]
) -> Iterator[Check]:
    said = _child(environ, "program", program=program)
    trouble = said.get("error") or said["problem"]
    if trouble:
        yield Check("program", "problem", f"{program[0]}: {trouble}", "run it without the doctor")
        return
    ended = ", ".join(f"{name} {count}" for name, count in said["lookups"].items()) or "none"
    about = f"{program[0]}: {said['compiles']} compiles; Coldstart's lookups: {ended}"
    stock, early = said["stock_cache"], said["before_any_cache"]
    if not said["hooked"] and not said["compiles"]:
        yield Check("program", "note", f"{program[0]}: it compiled nothing")
        return
    if not said["hooked"] and not stock["directory"]:
        fix = f"export COLDSTART_ADDRESS={settings.address}"
        yield Check("program", "problem", f"{about}; no cache was enabled in it", fix)
        return
    yield Check("program", "ok", about)
    if early:
        message = f"compiled before a cache was enabled, and so kept by none: {early}"
        fix = "set COLDSTART_ADDRESS before the process starts, or enable the cache before the first compile"
        yield Check("program-early", "problem", message, fix)
    if stock["latched_off"]:
        message = "JAX's own cache was enabled after the first compile, when JAX had decided to do without"
        fix = "enable it before the first compile"
        yield Check("program-early", "problem", message, fix)
    if stock["directory"] and not stock["files"] and said["compiles"]:
        message = (
            f"JAX's own cache kept nothing: every program is below its thresholds of "
            f"{stock['min_compile_seconds']:g} s and {stock['min_entry_bytes']} bytes"
        )
        fix = "lower jax_persistent_cache_min_compile_time_secs and _min_entry_size_bytes"
        yield Check("program-kept", "problem", message, fix)
    small = sum(n for name, n in said["lookups"].items() if name.endswith(" too-small"))
    if small and small == sum(said["lookups"].values()):
        message = f"the daemon keeps none of its {small} programs: each compiles too fast"
        yield Check(
            "program-kept", "problem", message, "give the daemon a lower min_compile_seconds"
        )


# --- child processes -----------------------------------------------------------------------------


def _child(
    environ: Mapping[str, str],
    what: str,
    *,
    options: Sequence[str] = (),
    program: Sequence[str] = (),
) -> dict[str, Any]:
    """What `jax_checkup` said; {"error": ...} where it could not say anything."""
    with tempfile.TemporaryDirectory(prefix="coldstart-doctor-") as folder:
        out = Path(folder, "out.json")
        module = "coldstart.client.jax_checkup"
        command = [sys.executable, "-m", module, f"--out={out}", *options, what, *program]
        try:
            done = subprocess.run(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=CHILD_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"it took longer than {CHILD_SECONDS:g} s"}
        if not out.exists():
            lines = done.stdout.decode(errors="replace").strip().splitlines()
            return {"error": f"exit {done.returncode}: {lines[-1] if lines else 'it said nothing'}"}
        said: dict[str, Any] = json.loads(out.read_text())
        return said
