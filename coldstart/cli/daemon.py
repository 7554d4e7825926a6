"""`coldstart daemon`: read the settings, run a daemon until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from coldstart.config import DAEMON_SETTINGS, Setting, daemon_config

REPEATED = ("listen", "store")
FLAGS = ("insecure",)
MOST_DESCRIPTORS = 65_536
METAVARS = {
    "listen": "ADDRESS",
    "store": "URL",
    "http": "HOST:PORT",
    "http_token_file": "FILE",
    "redact": "0|1",
    "chips": "N",
    "health": "HOST:PORT",
    "ready_file": "FILE",
    "socket_mode": "OCTAL",
    "socket_group": "GROUP",
    "mode": "observe|exact|canonical",
    "leases": "auto|local|redis|gcs",
    "max_artifact": "SIZE",
    "spool_memory": "SIZE",
    "log": "text|json",
    "signing_key": "FILE",
    "trusted_keys": "FILE",
    "revoked": "FILE",
    "audit_file": "FILE",
    "readers": "NAMES",
    "writers": "NAMES",
    "admins": "NAMES",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_client_ca": "FILE",
    "tokens": "FILE",
    "namespace": "NAME",
    "generation": "NUMBER",
    "log_level": "LEVEL",
}


def _option(setting: Setting) -> click.Option:
    if setting.name in FLAGS:
        return click.Option(
            ["--" + setting.name.replace("_", "-"), setting.name],
            is_flag=True,
            default=None,
            help=f"{setting.help[0].upper()}{setting.help[1:]}.",
        )
    return click.Option(
        ["--" + setting.name.replace("_", "-"), setting.name],
        multiple=setting.name in REPEATED,
        metavar=METAVARS.get(setting.name, "SECONDS"),
        help=f"{setting.help[0].upper()}{setting.help[1:]}. For example {setting.example}.",
    )


def _take_descriptors() -> None:
    """As many file descriptors as may be had. Each client holds one, and shells give a thousand unless they are asked;
    a daemon that has none left can't even open its store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if resource.RLIM_INFINITY != soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run(config: Path | None, **flags: Any) -> None:
    """Serve the cache to the processes of this host.

    Settings come from --config, then from COLDSTART_ variables named as the options, then from the options.
    Without --listen: $COLDSTART_ADDRESS, else $XDG_RUNTIME_DIR/coldstart/coldstart.sock, else
    ~/.cache/coldstart/coldstart.sock. Without --store: disk://, with the folder ~/.cache/coldstart/store.
    The settings of processes that use it are listed by coldstart doctor.
    """
    settings = daemon_config(os.environ, file=config, flags=flags)
    from coldstart.server import app, logs

    logs.set_up(settings.log, settings.log_level)
    _take_descriptors()
    asyncio.run(app.run(settings))


daemon = click.Command(
    "daemon",
    callback=_run,
    help=_run.__doc__,
    params=[
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="TOML file with settings named as the options, with underscores.",
        ),
        *(_option(setting) for setting in DAEMON_SETTINGS),
    ],
    epilog="Example: coldstart daemon --store disk:///var/cache/coldstart?cs.limit=20GiB "
    "--http 127.0.0.1:9095",
)
