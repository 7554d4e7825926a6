"""`coldstart explain`: what a key was made of, what was stripped and why, and why two keys or two modules differ."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import click

from coldstart import wire, wire_descriptor
from coldstart.cli import explain_text, reach
from coldstart.client.client import CacheClient
from coldstart.config import client_settings
from coldstart.errors import InvalidRequest
from coldstart.identity import account, explain, rules
from coldstart.identity.key import KeyRecord, is_key
from coldstart.rpc.v1 import admin_pb2

MAX_DESCRIPTOR_BYTES = 512 << 20  # decompressed; the daemon takes no more than a tenth of it
SHOWN = 20
KEY = f"cs1-{'0123456789abcdef' * 4}"


@click.command(
    epilog=f"Examples: coldstart explain {KEY[:16]}... --nearest; coldstart explain rank0.mlir rank1.mlir"
)
@click.argument("what", nargs=-1, metavar="KEY [OTHER] | FILE [FILE]")
@click.option("--nearest", is_flag=True, help="Compare KEY with the key that it just missed.")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules: reason and proof.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=SHOWN,
    show_default=True,
    help="Differences that are shown.",
)
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--store", "stores", multiple=True, metavar="URL", help="Look here, without a daemon."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    what: tuple[str, ...],
    nearest: bool,
    list_rules: bool,
    limit: int,
    address: str | None,
    stores: tuple[str, ...],
    as_json: bool,
) -> int:
    """Explain a key, the difference of two keys, or of two modules dumped with lowered.as_text() (needs JAX).

    Exit code 1 where nothing is known of a key.
    """
    if list_rules:
        if what or nearest:
            raise click.UsageError("--rules lists all rules; give it alone")
        click.echo(json.dumps(_rules(), indent=2) if as_json else explain_text.rules_text(_rules()))
        return 0
    if not 1 <= len(what) <= 2 or (nearest and len(what) != 1):
        raise click.UsageError("give a key or two, or a file or two; --nearest goes with one key")
    if any(is_key(name) for name in what):
        for name in what:
            if not is_key(name):
                raise click.UsageError(f"{name!r} is not a key; a key is cs1- and 64 hex digits")
        with reach.daemon_or_store(address, stores, only_look=True) as client:
            found = _of_keys(client, what, nearest, limit)
    else:
        if nearest:
            raise click.UsageError("--nearest goes with a key; files are compared with each other")
        for name in what:
            if not Path(name).is_file():
                raise click.UsageError(
                    f"{name!r} is neither a key nor a file; a key is cs1- and 64 hex digits"
                )
        found = _of_files([Path(name) for name in what], limit)
    click.echo(json.dumps(found, indent=2) if as_json else explain_text.account_text(found, limit))
    sides = [side for side in (found["left"], found["right"]) if side is not None]
    return 0 if all(side["record"] or side["programs"] for side in sides) else 1


def _rules() -> list[dict[str, Any]]:
    return [
        {
            "name": rule.name,
            "version": rule.version,
            "kind": "rewrite" if rule in rules.REWRITES else "normal form",
            "changes_module": rule.changes_module,
            "reason": rule.reason,
            "proof": rule.proof,
        }
        for rule in rules.RULES
    ]


# --- keys ----------------------------------------------------------------------------------------


def _of_keys(
    client: CacheClient, keys: tuple[str, ...], nearest: bool, limit: int
) -> dict[str, Any]:
    if nearest:
        near = client.nearest(keys[0]).keys
        if not near:
            raise InvalidRequest("the daemon was asked for no other key since it started")
        keys = (keys[0], near[0].key)
    sides, programs = [], []
    for key in keys:
        reply = client.record(key)
        record = wire.record_from_pb(reply.record) if reply.found else None
        side, analysed = _side(key, record, client.descriptors(key))
        sides.append(side)
        programs.append(analysed)
    pair = programs[0][:2] if len(keys) == 1 else [p[0] for p in programs if p]
    difference = account.difference_account(pair[0], pair[1], limit) if len(pair) == 2 else None
    return account.account(sides[0], sides[1] if len(sides) == 2 else None, difference)


def _side(
    key: str, record: KeyRecord | None, reply: admin_pb2.GetDescriptorReply
) -> tuple[dict[str, Any], list[explain.Program]]:
    """A key's account, and its raw programs, latest first."""
    in_force = dict(record.versions).get("rules", "") if record is not None else ""
    off, unknown = explain.off_by(in_force)
    notes = []
    if unknown:
        notes.append(
            f"made under rules that are not of this version: {', '.join(unknown)}; what is said to be stripped is "
            "what this version would strip"
        )
    analysed, accounts = [], []
    for raw in reply.programs:
        program = explain.program(_descriptor(raw.descriptor), off) if raw.descriptor else None
        if program is not None:
            analysed.append(program)
        accounts.append(
            account.program_account(program, raw_digest=raw.raw_digest, abandoned=raw.abandoned)
        )
    side = account.side_account(
        key, record=record, programs=accounts, remembered=reply.remembered, notes=notes
    )
    return side, analysed


def _descriptor(kept: bytes) -> Any:
    """Of somebody else's making, by way of the daemon: checked as when it came."""
    try:
        data = zlib.decompressobj().decompress(kept, MAX_DESCRIPTOR_BYTES)
        return wire_descriptor.descriptor_from_bytes(data)
    except zlib.error as exc:
        raise InvalidRequest(
            "the daemon's descriptor can't be read; is it of another version?"
        ) from exc


# --- files ---------------------------------------------------------------------------------------


def _of_files(paths: list[Path], limit: int) -> dict[str, Any]:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is run, so no accelerator is taken
    from coldstart.client import jax_dumps

    off = client_settings(os.environ).rules_off
    sides, programs = [], []
    for path in paths:
        dump = jax_dumps.read(path, off)
        program = explain.program(dump.descriptor, off)
        programs.append(program)
        sides.append(
            account.side_account(
                str(path),
                program_digest=dump.program_digest,
                programs=[account.program_account(program)],
                remembered=1,
                notes=dump.notes,
            )
        )
    if len(sides) == 1:
        return account.account(sides[0])
    difference = account.difference_account(programs[0], programs[1], limit)
    return account.account(sides[0], sides[1], difference)
