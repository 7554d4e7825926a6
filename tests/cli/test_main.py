"""The group: help, exit codes, one line for each mistake."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coldstart import __version__
from coldstart.cli import main
from coldstart.config import DAEMON_SETTINGS, known_variables

KEY = f"cs1-{'0' * 64}"
PRESENT = ("daemon", "lookup", "stats")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_version_and_help(coldstart):
    done = coldstart("--version")
    assert (done.returncode, done.stdout) == (0, f"coldstart {__version__}\n")
    done = coldstart("--help")
    assert done.returncode == 0
    for name in main.COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("command", ("", *PRESENT))
def test_every_help_ends_with_an_example(coldstart, command):
    done = coldstart(*command.split(), "--help")
    last = done.stdout.strip().split("\n\n")[-1]
    assert last.strip().startswith("Example: coldstart"), done.stdout


MISTAKES = [
    (("daemon", "--stroe", "x"), {}, "--store"),
    (("daemon", "--store"), {}, "--store"),
    (("daemon", "extra"), {}, "extra"),
    (("deamon",), {}, "daemon"),
    (("daemon",), {"COLDSTART_STROE": "x"}, "COLDSTART_STORE"),
    (("stats",), {"COLDSTART_ADRESS": "x"}, "COLDSTART_ADDRESS"),
    (("daemon", "--mode", "fast"), {}, "canonical"),
    (("daemon", "--store", "/var/cache"), {}, "disk:///var/cache"),
    (("daemon", "--store", "disk:///tmp/x?limit=3"), {}, "cs.limit"),
    (("daemon", "--store", "floppy:///a"), {}, "disk://"),
    (("daemon", "--config", "/none.toml"), {}, "/none.toml"),
    (("daemon", "--socket-group", "no-such-group"), {}, "no such group"),
    (("stats", "--address", "http://x"), {}, "unix:///"),
    (("stats", "--address", "tcp://x"), {}, "host:port"),
    (("stats", "--address", "unix:relative"), {}, "unix:///"),
    (("lookup", "../etc/passwd"), {}, "not a key"),
    (("lookup",), {}, "KEY"),
    (("lookup", KEY, "--store", "disk:///no/such/store"), {}, "no folder"),
    (("explain", KEY, "--store", "disk:///tmp", "--address", "unix:///tmp/s"), {}, "--store"),
    (("explain", "--rules", KEY), {}, "alone"),
    (("daemon", "--listen", "x"), {}, "--listen='x'"),
    (("daemon", "--lease-seconds", "abc"), {}, "wants seconds"),
]


@pytest.mark.parametrize(("args", "environ", "word"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_two(coldstart, args, environ, word):
    done = coldstart(*args, **environ)
    assert done.returncode == 2, done.stderr
    assert word in one_line(done) and done.stdout == ""


def test_no_daemon_is_one_line_and_exit_one(coldstart, tmp_path):
    done = coldstart("stats", "--address", f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1 and "coldstart daemon" in one_line(done)


def test_service_links_are_ignored(coldstart, tmp_path):
    done = coldstart("stats", COLDSTART_PORT="tcp://10.0.0.1:80", COLDSTART_SERVICE_HOST="10.0.0.1")
    assert done.returncode == 1 and "no daemon" in one_line(done)


def test_a_missing_extra_says_what_to_install(tmp_path):
    script = (
        "import sys\nsys.modules['grpc_health'] = None\nfrom coldstart.cli.main import main\n"
        f"main(['daemon', '--listen', 'unix://{tmp_path}/s.sock'])"
    )
    environ = {n: v for n, v in os.environ.items() if not n.startswith("COLDSTART_")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'coldstart[daemon]'" in one_line(done)


def test_help_imports_no_grpc_and_no_jax():
    script = (
        "import sys\nfrom coldstart.cli.main import run\nrun(['--help'])\n"
        "print([m for m in ('grpc', 'jax', 'rich', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_every_setting_is_in_the_readme():
    from pathlib import Path

    import coldstart.server

    text = (Path(coldstart.server.__file__).parent / "README.md").read_text()
    for setting in DAEMON_SETTINGS:
        assert f"\n| `{setting.name}` |" in text, setting.name
    for name in known_variables():
        daemons = any(name == setting.variable for setting in DAEMON_SETTINGS)
        assert daemons or f"`{name}`" in text, name
