"""`coldstart gc`: give room back now, instead of when somebody needs it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import click

from coldstart.cli import reach, selecting
from coldstart.client.client import CacheClient
from coldstart.errors import ConfigError, UnknownCall
from coldstart.rpc.v1 import admin_pb2
from coldstart.store.url_options import parse_size

A_CALL = 500  # artifacts


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """`10GiB`: bytes."""

    name = "size"

    def convert(self, value: object, param: object, ctx: object) -> int:
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ConfigError as exc:
            raise click.BadParameter(str(exc)) from exc


@click.command(epilog="Example: coldstart gc --unused-for 30d --limit 10GiB --dry-run")
@click.option(
    "--unused-for",
    type=selecting.AGE,
    metavar="AGE",
    help="What was last used so long ago, e.g. 30d.",
)
@click.option(
    "--limit",
    type=Size(),
    metavar="SIZE",
    help="The least recently used, until the tier holds no more.",
)
@click.option("--tier", default="disk", show_default=True, metavar="NAME", help="Where.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--store", "stores", multiple=True, metavar="URL", help="Do it here, without a daemon."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, with every artifact."
)
def gc(
    unused_for: float | None,
    limit: int | None,
    tier: str,
    dry_run: bool,
    address: str | None,
    stores: tuple[str, ...],
    as_json: bool,
) -> int:
    """Remove what crashes left, and artifacts that nobody used for long or that are over a limit.

    A store keeps to its own limit (cs.limit) without this. A tier that doesn't know when an artifact was used goes by
    when it was made. A dry run doesn't look for what crashes left. Exit code 1 where the tier couldn't be gone through.
    """
    listing = admin_pb2.ListStoredRequest(selection=admin_pb2.Selection(tiers=[tier]))
    with reach.daemon_or_store(address, stores, only_look=True, changes=True) as client:
        there = selecting.Told("gc: looking").hear(client, "ListStored", listing)
        going = list(_going(there.rows, unused_for, limit))
        told = selecting.Told("gc: removing")
        for start in range(0, len(going), A_CALL):
            some = going[start : start + A_CALL]
            told.hear(client, "Purge", _request(some, tier, dry_run))
        left = 0 if dry_run else _tidy(client)
    failed = there.failed + told.failed
    if as_json:
        click.echo(told.as_json(rows=True, dry_run=dry_run, leftovers=left))
    else:
        for line in told.lines("") if going else ("no artifact has to go",):
            click.echo(line)
        if left:
            click.echo(f"{left} files that crashes left are gone")
    return 1 if failed else 0


def _going(
    rows: Iterable[admin_pb2.UpkeepRow], unused_for: float | None, limit: int | None
) -> Iterator[admin_pb2.UpkeepRow]:
    """The least recently used first."""
    ordered = sorted(rows, key=_used)
    held = sum(row.bytes for row in ordered)
    for row in ordered:
        unused = unused_for is not None and _used(row) < time.time() - unused_for
        if unused or (limit is not None and held > limit):
            held -= row.bytes
            yield row


def _used(row: admin_pb2.UpkeepRow) -> float:
    return row.used_unix or row.created_unix


def _request(rows: list[admin_pb2.UpkeepRow], tier: str, dry_run: bool) -> admin_pb2.PurgeRequest:
    selection = admin_pb2.Selection(
        keys=[row.key for row in rows], digests=[row.digest for row in rows], tiers=[tier]
    )
    return admin_pb2.PurgeRequest(selection=selection, dry_run=dry_run)


def _tidy(client: CacheClient) -> int:
    try:
        return client.tidy()
    except UnknownCall as exc:
        raise ConfigError(f"the daemon at {client.address} is older than this command") from exc
