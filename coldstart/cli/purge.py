"""`coldstart purge`: take artifacts away, by what they are, from every tier that this daemon can write."""

from __future__ import annotations

from typing import Any

import click

from coldstart.cli import reach, selecting
from coldstart.rpc.v1 import admin_pb2


@click.command(epilog="Example: coldstart purge --compiler 'libtpu 0.0.48' --dry-run")
@selecting.options
@click.option(
    "--negative", is_flag=True, help="Also the notes that a compile failed; alone: only those."
)
@click.option(
    "--all", "everything", is_flag=True, help="Everything; needed where nothing is selected."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--store", "stores", multiple=True, metavar="URL", help="Do it here, without a daemon."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, with every artifact."
)
def purge(
    negative: bool,
    everything: bool,
    dry_run: bool,
    address: str | None,
    stores: tuple[str, ...],
    as_json: bool,
    **chosen: Any,
) -> int:
    """Take artifacts away. All options that are given must hold; one that is given twice, either.

    Clients compile what is gone when they need it next; one that was just promised a file gets it. The daemons of other
    hosts keep what is on their own disks: purge there too. Exit code 1 where a tier couldn't be gone through.
    """
    selection = selecting.selection(**chosen)
    if selecting.is_empty(selection) and not everything and not negative:
        raise click.UsageError("say which artifacts are meant, or --all")
    if everything and not selecting.is_empty(selection):
        raise click.UsageError("--all and a selection contradict each other; give one")
    request = admin_pb2.PurgeRequest(
        selection=selection, dry_run=dry_run, everything=everything, negatives=negative
    )
    with reach.daemon_or_store(address, stores, only_look=True, changes=True) as client:
        told = selecting.Told("purge").hear(client, "Purge", request)
    if as_json:
        click.echo(told.as_json(rows=True, dry_run=dry_run, negatives=told.negatives))
    else:
        for line in (
            told.lines("nothing there is meant")
            if not (negative and not told.rows and not told.failed)
            else ()
        ):
            click.echo(line)
        if negative and dry_run:
            click.echo("negative entries are not counted in a dry run")
        elif negative:
            click.echo(f"{told.negatives} negative entries forgotten")
    return 1 if told.failed else 0
