"""Settings: what wins, what is refused, and that the message names the setting and a value that works."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from coldstart import config, wire
from coldstart.config import (
    CLIENT_SETTINGS,
    DAEMON_SETTINGS,
    ClientSettings,
    DaemonConfig,
    client_settings,
    daemon_config,
    default_address,
    default_store,
    unknown_settings,
)
from coldstart.errors import ConfigError

HOME = {"HOME": "/h/me"}


def test_every_setting_is_a_field_and_its_example_works():
    assert [s.name for s in DAEMON_SETTINGS] == [
        f.name for f in sorted(fields(DaemonConfig), key=lambda f: _place(f.name))
    ]
    for setting in (*DAEMON_SETTINGS, *CLIENT_SETTINGS):
        setting.read(setting.example, setting.variable)
    named = {s.name for s in CLIENT_SETTINGS} - {"rules"} | {"rules_off"}
    assert named == {f.name for f in fields(ClientSettings)}


def _place(name: str) -> int:
    return [s.name for s in DAEMON_SETTINGS].index(name)


def test_modes_are_those_of_the_wire():
    assert tuple(mode.value for mode in wire.Mode) == config.MODES


def test_defaults():
    made = daemon_config(HOME)
    assert made.listen == ("unix:///h/me/.cache/coldstart/coldstart.sock",)
    assert made.store == ("disk:///h/me/.cache/coldstart/store",)
    assert made.http is None and made.health is None and made.socket_mode == 0o600
    assert made == DaemonConfig(listen=made.listen, store=made.store)


def test_flags_beat_environment_beats_file(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('lease_seconds = 30\nmode = "exact"\nlog = "json"\n')
    environ = {**HOME, "COLDSTART_MODE": "observe", "COLDSTART_LOG": "text"}
    made = daemon_config(environ, file=file, flags={"log": "json", "store": (), "mode": None})
    assert (made.lease_seconds, made.mode, made.log) == (30, "observe", "json")
    assert made.heartbeat_seconds == 10  # the default proportion
    named = daemon_config({**HOME, "COLDSTART_CONFIG": str(file)})
    assert named.mode == "exact"


def test_toml_tables_of_stores(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(
        'listen = ["unix:///a/b.sock", "tcp://127.0.0.1:0"]\ninsecure = true\n'
        '[[store]]\nurl = "disk:///d"\nlimit = "20GiB"\n[[store]]\nurl = "memory://"\n'
    )
    made = daemon_config(HOME, file=file)
    assert made.store == ("disk:///d?cs.limit=20GiB", "memory://")
    assert made.listen == ("unix:///a/b.sock", "tcp://127.0.0.1:0")


def test_lists_in_the_environment():
    environ = {**HOME, "COLDSTART_STORE": "memory://,disk:///d", "COLDSTART_SOCKET_MODE": "0660"}
    made = daemon_config(environ)
    assert made.store == ("memory://", "disk:///d") and made.socket_mode == 0o660


BAD = [
    ("listen", ("relative.sock",)),
    ("listen", ("unix://relative.sock",)),
    ("listen", ("unix:///" + "x" * 200,)),
    ("listen", ("tcp://host",)),
    ("listen", ("tcp://host:99999",)),
    ("listen", ("http://host:80",)),
    ("store", ("/var/cache",)),
    ("store", ("",)),
    ("http", "9095"),
    ("http", "host:port"),
    ("health", "http://0.0.0.0:9096"),
    ("socket_mode", "rw"),
    ("socket_mode", "999"),
    ("mode", "canonicl"),
    ("lease_seconds", "soon"),
    ("lease_seconds", -1),
    ("lease_seconds", float("nan")),
    ("heartbeat_seconds", 0),
    ("min_compile_seconds", True),
    ("max_artifact", "many"),
    ("max_artifact", "0"),
    ("max_artifact", "4GB or so"),
    ("log", "xml"),
    ("log_level", "loud"),
    ("ready_file", ""),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named_with_one_that_works(name, value):
    with pytest.raises(ConfigError) as refused:
        daemon_config(HOME, flags={name: value})
    setting = DAEMON_SETTINGS[_place(name)]
    assert f"--{name.replace('_', '-')}=" in str(refused.value)
    assert setting.example in str(refused.value) and "\n" not in str(refused.value)


def test_settings_that_do_not_fit_each_other():
    for flags in (
        {"lease_seconds": 6, "heartbeat_seconds": 5},
        {"listen": ("unix:///a/b", "unix:///a/b")},
        {"store": ("memory://", "memory://")},
    ):
        with pytest.raises(ConfigError):
            daemon_config(HOME, flags=flags)
    twice = {"listen": ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), "insecure": True}
    assert len(daemon_config(HOME, flags=twice).listen) == 2  # two free ports


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('stroe = "x"', "did you mean store?"),
        ("lease-seconds = 3", "did you mean lease_seconds?"),
        ("not toml", "not TOML"),
        ("lease_seconds = [1]", "lease_seconds"),
        ("store = []", "store"),
        ("[[store]]\nlimit = 3", "store"),
    ],
)
def test_bad_files(tmp_path, text, word):
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=word) as refused:
        daemon_config(HOME, file=file)
    assert str(file) in str(refused.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        daemon_config(HOME, file=tmp_path / "none.toml")


UNKNOWN = {
    "COLDSTART_ADRESS": "COLDSTART_ADDRESS",
    "COLDSTART_STROE": "COLDSTART_STORE",
    "COLDSTART_DISABLED": "COLDSTART_DISABLE",
    "COLDSTART_": "",
}
SERVICE_LINKS = {
    "COLDSTART_PORT": "tcp://10.0.0.1:80",
    "COLDSTART_PORT_80_TCP": "tcp://10.0.0.1:80",
    "COLDSTART_PORT_80_TCP_ADDR": "10.0.0.1",
    "COLDSTART_SERVICE_HOST": "10.0.0.1",
    "COLDSTART_SERVICE_PORT": "80",
    "COLDSTART_SERVICE_PORT_GRPC": "80",
    "COLDSTART_DAEMON_PORT": "tcp://10.0.0.1:80",
    "COLDSTART_DAEMON_PORT_9095_TCP_PORT": "9095",
    "COLDSTART_DAEMON_SERVICE_HOST": "10.0.0.1",
}


@pytest.mark.parametrize(("name", "meant"), UNKNOWN.items())
def test_unknown_names(name, meant):
    (message,) = unknown_settings({name: "x", "OTHER": "y"})
    assert name in message and meant in message
    with pytest.raises(ConfigError):
        daemon_config({**HOME, name: "x"})


def test_service_links_are_nobodys_settings():
    assert unknown_settings(SERVICE_LINKS) == []
    assert daemon_config({**HOME, **SERVICE_LINKS}) == daemon_config(HOME)
    assert client_settings(SERVICE_LINKS, address_file=Path("/none")) == ClientSettings()
    assert unknown_settings({"COLDSTART_HTTP_PORT": "9095"})  # that one is a mistake


def test_known_names_are_not_unknown():
    assert unknown_settings(dict.fromkeys(config.known_variables(), "x")) == []


def test_client_settings(tmp_path):
    made = client_settings(
        {
            "COLDSTART_ADDRESS": "tcp://127.0.0.1:1",
            "COLDSTART_MODE": "Exact",
            "COLDSTART_RULES": "-one, -two",
            "COLDSTART_STRICT": "1",
            "COLDSTART_DISABLE": "0",
            "COLDSTART_VOLUME_ROOT": "/cache",
            "COLDSTART_NAMESPACE": "mine",
        }
    )
    assert made == ClientSettings(
        "tcp://127.0.0.1:1", "exact", ("one", "two"), True, False, Path("/cache"), "mine"
    )


def test_the_address_file(tmp_path):
    file = tmp_path / "address"
    assert client_settings({}, address_file=file).address is None
    file.write_text("unix:///run/c.sock\nmore\n")
    assert client_settings({}, address_file=file).address == "unix:///run/c.sock"
    environ = {"COLDSTART_ADDRESS": "unix:///other.sock"}
    assert client_settings(environ, address_file=file).address == "unix:///other.sock"
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match=str(file)):
        client_settings({}, address_file=file)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ADDRESS", "host:1"), ("MODE", "fast"), ("RULES", "one"), ("STRICT", "very")],
)
def test_bad_client_values(name, value):
    with pytest.raises(ConfigError, match=f"COLDSTART_{name}="):
        client_settings({f"COLDSTART_{name}": value})


def test_default_places():
    assert default_address({**HOME, "XDG_RUNTIME_DIR": "/run/user/7"}) == (
        "unix:///run/user/7/coldstart/coldstart.sock"
    )
    assert default_address({**HOME, "XDG_RUNTIME_DIR": "relative"}).startswith("unix:///h/me/")
    assert default_address({"COLDSTART_ADDRESS": "tcp://h:1"}) == "tcp://h:1"
    assert default_store({**HOME, "XDG_CACHE_HOME": "/c d"}) == "disk:///c%20d/coldstart/store"


def test_it_is_light():
    """The hook imports this inside the user's process."""
    script = (
        "import sys; before = set(sys.modules); import coldstart.config; "
        "print([m for m in set(sys.modules) - before if not m.startswith('coldstart') "
        "and m.partition('.')[0] not in sys.stdlib_module_names])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
