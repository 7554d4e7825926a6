"""Settings: frozen dataclasses, read from TOML, then the environment, then flags; a later one wins.

One table (`DAEMON_SETTINGS`, `CLIENT_SETTINGS`) says of every setting its name, what it may be and a value that
works; the TOML keys, the names of environment variables and the messages all come from it. A name that nobody
knows is an error with the nearest known one, in the CLI and the daemon; the hook only warns (`unknown_settings`).
Variables that Kubernetes makes for services (`COLDSTART_PORT=tcp://...`) are nobody's settings and are ignored.

Standard library only: the hook imports this inside the user's process.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coldstart import config_values as kinds
from coldstart.config_trust import ROWS as TRUST_ROWS
from coldstart.config_trust import TrustConfig
from coldstart.config_values import parse_address as parse_address
from coldstart.config_values import parse_host_port as parse_host_port
from coldstart.errors import ConfigError

PREFIX = "COLDSTART_"
SECRETS = ("REDIS_PASSWORD",)  # only in the environment; each is read by the part that needs it
ADDRESS_FILE = Path("/etc/coldstart/address")
MODES = ("observe", "exact", "canonical")  # ordered from the least to the most, as in wire.Mode

_SERVICE_LINK = re.compile(
    r"COLDSTART_(PORT|PORT_.*|SERVICE_.*|.+_SERVICE_HOST|.+_SERVICE_PORT(_.+)?|.+_PORT_\d+_(TCP|UDP|SCTP)(_.+)?)"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, however it is given."""

    name: str  # as a TOML key and a field; the environment's name is PREFIX + upper case
    parse: Callable[[Any], Any]  # raises ValueError with what is wanted
    example: str  # a value that works
    help: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def read(self, value: Any, where: str) -> Any:
        try:
            return self.parse(value)
        except (ValueError, TypeError) as exc:
            given = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            message = f"{where}={given!r}: {exc}; a value that works: {self.example}"
            raise ConfigError(message) from exc


DAEMON_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "listen",
        kinds.many(parse_address),
        "unix:///run/coldstart/coldstart.sock",
        "addresses that clients connect to; the Unix socket comes first; tcp://host:0 takes a free port",
    ),
    Setting(
        "store",
        kinds.many(kinds.store),
        "disk:///var/cache/coldstart?cs.limit=20GiB",
        "tiers that hold artifacts, fastest first",
    ),
    Setting("http", parse_host_port, "127.0.0.1:9095", "page and API for people; off unless given"),
    Setting(
        "http_token_file",
        kinds.path,
        "/etc/coldstart/http-token",
        "who knows the token in it may see page and API; needed where http is not a loopback address",
    ),
    Setting(
        "redact", kinds.flag, "1", "page and API show hashes instead of names, and no messages"
    ),
    Setting("chips", kinds.count, "4", "chips that one participant holds; for chip-hours saved"),
    Setting(
        "health",
        parse_host_port,
        "0.0.0.0:9096",
        "/healthz /readyz /startupz /metrics and nothing else; off unless given",
    ),
    Setting(
        "ready_file", kinds.path, "/run/coldstart/ready.json", "written once everything listens"
    ),
    Setting("socket_mode", kinds.octal, "0600", "permissions of the Unix socket"),
    Setting("socket_group", kinds.text, "coldstart", "group of the Unix socket and its folder"),
    Setting("mode", kinds.one_of(*MODES), "canonical", "the most that clients may do"),
    Setting(
        "lease_seconds",
        kinds.seconds(0.1, 3600),
        "15",
        "a lease lives this long without a heartbeat",
    ),
    Setting("heartbeat_seconds", kinds.seconds(0.02, 1200), "5", "how often holders renew a lease"),
    Setting(
        "leases",
        kinds.one_of("auto", "local", "redis", "gcs"),
        "auto",
        "who says who compiles: a store that daemons share (redis before gs), or this daemon for its clients",
    ),
    Setting(
        "min_compile_seconds",
        kinds.seconds(0, 3600),
        "0",
        "programs that compile faster are not stored even here, unless a plan names them",
    ),
    Setting(
        "negative_seconds",
        kinds.seconds(0, 86400),
        "60",
        "how long a failed compile is remembered; 0 forgets at once",
    ),
    Setting("pin_seconds", kinds.seconds(1, 3600), "30", "how long a hit is kept from eviction"),
    Setting(
        "lookup_seconds",
        kinds.seconds(0.1, 86400),
        "1800",
        "a lookup that is silent for longer is counted as error, lease-lost",
    ),
    Setting(
        "wait_seconds",
        kinds.seconds(0.1, 86400),
        "900",
        "the longest wait for a living holder whose compile has no record",
    ),
    Setting("max_artifact", kinds.size, "4GiB", "a larger artifact is refused"),
    Setting(
        "spool_memory",
        kinds.size,
        "1GiB",
        "of all publishes at once, in memory; without a disk store no artifact above a half of it is taken",
    ),
    Setting(
        "drain_seconds",
        kinds.seconds(0, 600),
        "10",
        "how long running calls may go on after SIGTERM",
    ),
    Setting("log", kinds.one_of("text", "json"), "text", "log lines as key=value or as JSON"),
    Setting(
        "log_level",
        kinds.one_of("debug", "info", "warning", "error"),
        "info",
        "the least that is logged",
    ),
    *(Setting(*row) for row in TRUST_ROWS),
)


@dataclass(frozen=True, slots=True)
class DaemonConfig(TrustConfig):
    """What a daemon runs with. Fields are the settings of `DAEMON_SETTINGS`, which document them."""

    listen: tuple[str, ...]
    store: tuple[str, ...]
    http: str | None = None
    http_token_file: Path | None = None
    redact: bool = False
    chips: int = 1
    health: str | None = None
    ready_file: Path | None = None
    socket_mode: int = 0o600
    socket_group: str | None = None
    mode: str = "canonical"
    lease_seconds: float = 15.0
    heartbeat_seconds: float = 5.0
    leases: str = "auto"
    min_compile_seconds: float = 0.0
    negative_seconds: float = 60.0
    pin_seconds: float = 30.0
    lookup_seconds: float = 1800.0
    wait_seconds: float = 900.0
    max_artifact: int = 4 << 30
    spool_memory: int = 1 << 30
    drain_seconds: float = 10.0
    log: str = "text"
    log_level: str = "info"

    def validated(self) -> DaemonConfig:
        """Itself, once the settings fit each other."""
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ConfigError(
                f"heartbeat_seconds={self.heartbeat_seconds:g} leaves no room for a lost heartbeat in "
                f"lease_seconds={self.lease_seconds:g}; a value that works: {self.lease_seconds / 3:g}"
            )
        fixed = [address for address in self.listen if not address.endswith(":0")]
        if len(set(fixed)) != len(fixed):
            raise ConfigError(f"listen names one address twice: {', '.join(fixed)}; name it once")
        if len(set(self.store)) != len(self.store):
            raise ConfigError(f"store names one tier twice: {', '.join(self.store)}; name it once")
        self.check_trust()
        if self.http is not None and self.http_token_file is None and not is_loopback(self.http):
            raise ConfigError(
                f"http={self.http!r} can be reached from other hosts, and would show names to anybody; give "
                "http_token_file, or a value that works: 127.0.0.1:9095"
            )
        self.check_transport(self.listen)
        return self


def is_loopback(where: str) -> bool:
    """Whether only this host reaches it. `where`: host:port."""
    host = where.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def daemon_config(
    environ: Mapping[str, str],
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> DaemonConfig:
    """The daemon's settings: defaults, then `file`, then the environment, then `flags` (None: not given).

    Raises:
        ConfigError: names the setting, and a value that would work.
    """
    refuse_unknown(environ)
    if file is None and environ.get(PREFIX + "CONFIG"):
        file = Path(environ[PREFIX + "CONFIG"])
    values: dict[str, Any] = {
        "listen": (default_address(environ),),
        "store": (default_store(environ),),
    }
    table = _read_toml(file) if file is not None else {}
    for setting in DAEMON_SETTINGS:
        if setting.name in table:
            values[setting.name] = setting.read(table[setting.name], f"{file}: {setting.name}")
        if environ.get(setting.variable):
            values[setting.name] = setting.read(environ[setting.variable], setting.variable)
        given = (flags or {}).get(setting.name)
        if given is not None and given != ():
            values[setting.name] = setting.read(given, "--" + setting.name.replace("_", "-"))
    if "heartbeat_seconds" not in values and "lease_seconds" in values:
        values["heartbeat_seconds"] = values["lease_seconds"] / 3  # the default proportion
    return DaemonConfig(**values).validated()


def trust_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says of signatures and of the place that they are for, for a daemon inside of a command."""
    names = ("signing_key", "trusted_keys", "revoked", "namespace", "generation")
    return {
        setting.name: setting.read(environ[setting.variable], setting.variable)
        for setting in DAEMON_SETTINGS
        if setting.name in names and environ.get(setting.variable)
    }


def _read_toml(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        table = tomllib.loads(file.read_text())
    except OSError as exc:
        raise ConfigError(
            f"--config={file}: {exc.strerror or exc}; give a readable TOML file"
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"--config={file}: not TOML: {exc}") from exc
    known = [setting.name for setting in DAEMON_SETTINGS]
    for name in table:
        if name not in known:
            raise ConfigError(
                f"{file}: unknown setting {name!r}{kinds.did_you_mean(name, known)}; known: {', '.join(known)}"
            )
    return table


CLIENT_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "address",
        parse_address,
        "unix:///run/coldstart/coldstart.sock",
        "the daemon; without it the hook stays inactive",
    ),
    Setting(
        "mode",
        kinds.one_of(*MODES),
        "canonical",
        "observe: key and record, never load; exact: no rewrites; canonical: the default",
    ),
    Setting("rules", kinds.rules_off, "-unread-fragment-offset", "rules that are switched off"),
    Setting("strict", kinds.flag, "1", "raise where the hook would fall back to compiling"),
    Setting("disable", kinds.flag, "1", "the hook stays inactive whatever else is set"),
    Setting("volume_root", kinds.path, "/cache", "where this process sees the daemon's disk"),
    Setting("namespace", kinds.name, "team-a", "who shares with whom"),
    Setting(
        "trusted_keys",
        kinds.path,
        "/etc/coldstart/trusted-keys",
        "public keys, a line each: nothing is loaded that none of them signed",
    ),
    Setting("revoked", kinds.path, "/etc/coldstart/revoked", "what is believed no longer"),
    Setting(
        "tls_ca",
        kinds.path,
        "/etc/coldstart/ca.crt",
        "who signs the certificates of daemons at tcp:// addresses; without it they are called in the clear",
    ),
    Setting("tls_cert", kinds.path, "/etc/coldstart/tls.crt", "shown to a daemon at tcp://"),
    Setting("tls_key", kinds.path, "/etc/coldstart/tls.key", "its private key"),
    Setting("token_file", kinds.path, "/etc/coldstart/token", "holds what is shown instead"),
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a hooked process runs with. Fields are the settings of `CLIENT_SETTINGS`, which document them."""

    address: str | None = None  # None: inactive
    mode: str | None = None  # None: not set; canonical where that is allowed
    rules_off: tuple[str, ...] = ()
    strict: bool = False
    disable: bool = False
    volume_root: Path | None = None  # None: the root that the daemon names
    namespace: str = ""
    trusted_keys: Path | None = None
    revoked: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None


def client_settings(
    environ: Mapping[str, str], *, address_file: Path = ADDRESS_FILE
) -> ClientSettings:
    """The hook's settings. Unknown names are for `unknown_settings`.

    The address comes from COLDSTART_ADDRESS, else from the first line of `address_file`.

    Raises:
        ConfigError: a value that can't be used.
    """
    values: dict[str, Any] = {}
    for setting in CLIENT_SETTINGS:
        if environ.get(setting.variable):
            name = "rules_off" if setting.name == "rules" else setting.name
            values[name] = setting.read(environ[setting.variable], setting.variable)
    if "address" not in values:
        try:
            line = address_file.read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError):
            line = ""
        if line:
            values["address"] = CLIENT_SETTINGS[0].read(line, str(address_file))
    return ClientSettings(**values)


def known_variables() -> tuple[str, ...]:
    """Every environment variable of ours."""
    names = {setting.variable for setting in (*DAEMON_SETTINGS, *CLIENT_SETTINGS)}
    return tuple(sorted(names | {PREFIX + name for name in ("CONFIG", *SECRETS)}))


def unknown_settings(environ: Mapping[str, str]) -> list[str]:
    """One message for each variable that looks like a setting of ours and is none."""
    known = known_variables()
    return [
        f"unknown setting {name}{kinds.did_you_mean(name, known)}; unset it, or see `coldstart daemon --help`"
        for name in sorted(environ)
        if name.startswith(PREFIX)
        and name not in known
        and not _is_service_link(name, environ[name])
    ]


def refuse_unknown(environ: Mapping[str, str]) -> None:
    """Raises ConfigError for the first unknown name."""
    for message in unknown_settings(environ):
        raise ConfigError(message)


def default_address(environ: Mapping[str, str]) -> str:
    """Where clients look and the daemon listens when nobody says otherwise."""
    if environ.get(PREFIX + "ADDRESS"):
        return str(CLIENT_SETTINGS[0].read(environ[PREFIX + "ADDRESS"], PREFIX + "ADDRESS"))
    if environ.get("XDG_RUNTIME_DIR", "").startswith("/"):
        return f"unix://{environ['XDG_RUNTIME_DIR'].rstrip('/')}/coldstart/coldstart.sock"
    return f"unix://{_home(environ)}/.cache/coldstart/coldstart.sock"


def default_store(environ: Mapping[str, str]) -> str:
    """The embedded default: a disk tier in the user's cache folder."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):
        cache = f"{_home(environ)}/.cache"
    return f"disk://{quote(cache.rstrip('/'))}/coldstart/store"


def _home(environ: Mapping[str, str]) -> str:
    return (environ.get("HOME") or os.path.expanduser("~")).rstrip("/")


def _is_service_link(name: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value) is not None
