"""`coldstart lookup`: whether a key has an artifact, and the record that the key was made of; or fetch many ahead."""

from __future__ import annotations

import json
from typing import TextIO

import click

from coldstart import wire
from coldstart.cli import prefetch as ahead
from coldstart.cli import reach
from coldstart.client.host import cpu_features
from coldstart.identity.key import is_key
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.wire import KeyState


@click.command(epilog=f"Example: coldstart lookup cs1-{'0123456789abcdef' * 4}")
@click.argument("key", required=False)
@click.option(
    "--prefetch",
    metavar="FILE",
    type=click.File(),
    help="Instead of KEY: bring what these keys name, one a line, to the daemon's disk.",
)
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--store", "stores", multiple=True, metavar="URL", help="Look here, without a daemon."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def lookup(
    key: str | None,
    prefetch: TextIO | None,
    address: str | None,
    stores: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the state of KEY and its record. Exit code 1 where there is no artifact that this host can load.

    With --prefetch: exit code 1 where not every key's artifact could be fetched.
    """
    if (key is None) == (prefetch is None):
        raise click.UsageError("give a KEY, or --prefetch FILE with many")
    if prefetch is not None:
        keys = ahead.read_keys(prefetch)
        with reach.daemon_or_store(address, stores) as client:
            done = ahead.prefetch(client, keys, _say)
        ahead.show(done, as_json=as_json)
        return 0 if done.complete else 1
    assert key is not None
    if not is_key(key):
        raise click.UsageError(f"{key!r} is not a key; a key is cs1- and 64 hex digits")
    with reach.daemon_or_store(address, stores, only_look=True) as client:
        host = pb.Host(cpu_features=cpu_features())
        answer = client.batch(pb.BatchRequest(keys=[key], host=host)).answers[0]
        reply = client.record(key)
    state = wire.key_state_from_pb(answer.state)
    record = json.loads(wire.record_from_pb(reply.record).to_json()) if reply.found else None
    if as_json:
        click.echo(
            json.dumps(
                {
                    "key": key,
                    "state": state.value,
                    "digest": answer.digest,
                    "compile_seconds": answer.compile_seconds,
                    "record": record,
                },
                indent=2,
            )
        )
    else:
        other = state is KeyState.ABSENT and reply.found
        click.echo(f"{key}: {state.value}{' for the CPU of this host' if other else ''}")
        if answer.digest:
            click.echo(f"  digest           {answer.digest}")
            click.echo(f"  compile seconds  {answer.compile_seconds:.3g}")
        if record is None:
            click.echo("  no record")
        else:
            click.echo(f"  name             {record['program_name'] or 'none'}")
            for component in record["components"]:
                detail = f"  ({component['detail']})" if component["detail"] else ""
                click.echo(f"  {component['name']:<16} {component['value'] or 'none'}{detail}")
            for name, version in record["versions"].items():
                click.echo(f"  version          {name} {version}")
            for note in dict.fromkeys(record["notes"]):  # one for each attribute of an op
                click.echo(f"  note             {note}")
    return 0 if state is KeyState.PRESENT else 1


def _say(done: ahead.Prefetched, words: str) -> None:
    click.echo(f"{done.fetched + done.failed}/{done.present} {words}", err=True)
