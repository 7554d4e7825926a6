"""`coldstart doctor`: does a JAX process started here use the cache, and if not, what to do. See client/checkup.py."""

from __future__ import annotations

import json
import os

import click

from coldstart.cli import reach
from coldstart.client.checkup import Checkup, check_up
from coldstart.config import parse_address
from coldstart.errors import ConfigError

MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM", "skipped": "skipped"}


@click.command(
    epilog="Example: coldstart doctor --address unix:///run/coldstart/coldstart.sock",
    context_settings={"allow_interspersed_args": False},  # what follows PROGRAM is its own
)
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def doctor(address: str | None, as_json: bool, program: tuple[str, ...]) -> int:
    """Check settings, daemon and JAX, and pass a program through the cache from one process to another.

    PROGRAM is a JAX script with its arguments: it is run once, to see how its compiles fare. Exit code 1 where
    something is a problem.
    """
    if address is not None:
        try:
            parse_address(address)
        except ValueError as exc:
            example = "unix:///run/coldstart/coldstart.sock"
            raise ConfigError(
                f"--address={address!r}: {exc}; a value that works: {example}"
            ) from None
    if program and not os.path.isfile(program[0]):
        raise click.UsageError(f"{program[0]!r} is not a script that can be read")
    found = check_up(os.environ, address=address, program=program)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found)
    return 0 if found.ok else 1


def _show(found: Checkup) -> None:
    click.echo("settings in force")
    for setting in found.settings:
        click.echo(f"  {setting.variable:<22} {setting.value or '-':<44} {setting.source}")
    click.echo("checks")
    for check in found.checks:
        click.echo(f"  {MARKS[check.status]:<8} {check.name:<16} {check.message}")
        if check.fix:
            click.echo(f"  {'':<8} {'':<16} -> {check.fix}")
    if found.jax is not None:
        click.echo(f"target of a process here: {json.dumps(found.jax['target'], sort_keys=True)}")
