"""Reaching a daemon: the one that listens, or, where there is none, one in this process over the stores named."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from coldstart.client.client import CacheClient
from coldstart.config import (
    ADDRESS_FILE,
    CLIENT_SETTINGS,
    client_settings,
    default_address,
    default_store,
    trust_settings,
)
from coldstart.errors import ConfigError, DaemonAbsent

ADDRESS_HELP = (
    "The daemon's; default: $COLDSTART_ADDRESS, else /etc/coldstart/address, else where a daemon "
    "listens by default."
)
PATIENCE_SECONDS = 10.0  # a person waits; the daemon may be busy starting


@contextmanager
def daemon(address: str | None) -> Iterator[CacheClient]:
    """A client of a live daemon. Raises DaemonError, and ConfigError for what is no address."""
    if address:
        where = str(CLIENT_SETTINGS[0].read(address, "--address"))
    else:  # as the hook finds it: the environment, then the host's file
        where = client_settings(os.environ, address_file=ADDRESS_FILE).address or default_address(
            os.environ
        )
    client = CacheClient(where, holder=_holder())
    try:
        client.connect(PATIENCE_SECONDS)
        yield client
    finally:
        client.close()


@contextmanager
def daemon_or_store(
    address: str | None,
    stores: Sequence[str],
    *,
    only_look: bool = False,
    changes: bool = False,
) -> Iterator[CacheClient]:
    """A client of the live daemon; without one, of a daemon in this process, which is said on stderr.

    Naming stores asks for the latter; to `only_look`, they must be there: a mistyped folder is not made. What `changes`
    a store doesn't go to another one where the environment or the host's file names a daemon that isn't there.
    """
    if address is not None and stores:
        raise click.UsageError("give --address or --store; --store does without a daemon")
    if not stores:
        try:
            with daemon(address) as client:
                yield client
                return
        except DaemonAbsent as exc:
            if address is not None or (changes and _named_elsewhere()):
                raise  # it was asked for by name; another store is not what was meant
            click.echo(f"no daemon ({exc}); using the store directly", err=True)
    from coldstart.server.in_process import daemon_in_process

    urls = tuple(stores) or (default_store(os.environ),)
    if only_look:
        _must_be_there(urls if changes else stores)
    # What it publishes is signed, and what it hands out is checked, as by a daemon in this environment.
    trust = trust_settings(os.environ)
    with daemon_in_process(urls, **trust) as inner, daemon(inner) as client:
        click.echo(f"in-process daemon on {', '.join(urls)}", err=True)
        yield client


def _named_elsewhere() -> bool:
    return client_settings(os.environ, address_file=ADDRESS_FILE).address is not None


def _must_be_there(stores: Sequence[str]) -> None:
    from coldstart.store.urls import DiskStore, parse_store

    for url in stores:
        store = parse_store(url)
        if isinstance(store, DiskStore) and not store.path.is_dir():
            raise ConfigError(f"store {url!r}: there is no folder {store.path}; name a store")


def _holder() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/coldstart"
