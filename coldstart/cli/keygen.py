"""`coldstart keygen`: a new pair of keys for signatures."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(epilog="Example: coldstart keygen signer-2027 --folder /etc/coldstart")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    show_default="here",
    metavar="FOLDER",
    help="Where the two files go.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def keygen(name: str, folder: Path, as_json: bool) -> int:
    """Make NAME.key, which signs, and NAME.pub, the line by which others trust it. Replaces no file.

    Give the first to daemons as signing_key, and put the second into the file that trusted_keys names.
    """
    from coldstart.trust.keys import generate

    private, public, key = generate(folder, name)
    if as_json:
        said = {"name": name, "id": key.id, "signing_key": str(private), "public": str(public)}
        click.echo(json.dumps({**said, "trusted_line": key.line()}, indent=2))
    else:
        click.echo(
            f"key {key.id}: {private} signs; keep it from everybody but the daemons that do",
            err=True,
        )
        click.echo(key.line())
    return 0
