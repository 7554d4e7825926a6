"""`coldstart verify`: read a whole store as whoever loads from it would."""

from __future__ import annotations

from typing import Any

import click

from coldstart.cli import reach, selecting
from coldstart.rpc.v1 import admin_pb2

BAD = ("bad", "aside")


@click.command(epilog="Example: coldstart verify --tier disk --put-aside")
@selecting.options
@click.option(
    "--put-aside", is_flag=True, help="Bad copies go; the next hit is another tier's, or a compile."
)
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--store", "stores", multiple=True, metavar="URL", help="Do it here, without a daemon."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, with every bad artifact."
)
def verify(
    put_aside: bool,
    address: str | None,
    stores: tuple[str, ...],
    as_json: bool,
    **chosen: Any,
) -> int:
    """Read artifacts in full and check size, digest, header and key record.

    Reads every byte of every tier, those of a bucket too, unless --tier says where. A copy whose damage shows in its
    header is put aside by the tier that finds it, whatever the options. Exit code 1 where something is bad, or a tier
    couldn't be gone through.
    """
    request = admin_pb2.VerifyRequest(selection=selecting.selection(**chosen), put_aside=put_aside)
    with reach.daemon_or_store(address, stores, only_look=True, changes=True) as client:
        told = selecting.Told("verify").hear(client, "Verify", request)
    bad = [row for row in told.rows if row.outcome in BAD]
    if as_json:
        rows = [selecting.row_json(row) for row in bad]
        click.echo(told.as_json(rows=False, bad=rows))
    else:
        for row in bad:
            click.echo(f"{row.tier}: {row.key} {row.digest[:12]} {row.outcome}: {row.detail}")
        for line in told.lines("there is nothing to check"):
            click.echo(line)
    return 1 if bad or told.failed else 0
