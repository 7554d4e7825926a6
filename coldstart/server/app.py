"""The daemon: config → tiers → lookups → servicers → grpc.aio, and back down again.

Composition root: the only place of the server that knows the concrete classes. `start` listens, `stop` drains:
no new calls, waiters are sent home, running calls may finish for a while, the store is flushed, the socket goes.
No JAX anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from coldstart import __version__
from coldstart.config import DaemonConfig
from coldstart.dashboard import report
from coldstart.errors import ColdstartError
from coldstart.outcomes import Reason
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc
from coldstart.server.admin_servicer import AdminServicer
from coldstart.server.audit import Audit
from coldstart.server.boards import open_board
from coldstart.server.cache_servicer import CacheServicer
from coldstart.server.canonicalizer import Canonicalizer
from coldstart.server.history import STEP_SECONDS, History
from coldstart.server.holdings import Holdings, OperationCounts, Place
from coldstart.server.interceptors import Edge
from coldstart.server.inventory import Inventory
from coldstart.server.logs import say
from coldstart.server.lookups import Lookups
from coldstart.server.notary import open_notary
from coldstart.server.passes import open_door, open_passes
from coldstart.server.peers import open_peers
from coldstart.server.sockets import SocketPlace
from coldstart.server.standing import CallCounts, Standing, counted
from coldstart.server.tally import Tally
from coldstart.server.tls import Certificates, open_certificates
from coldstart.server.upkeep import Upkeep
from coldstart.store.chain import ChainTier
from coldstart.store.disk_layout import LAYOUT
from coldstart.store.urls import disk_of, open_store, redis_of

if TYPE_CHECKING:  # needs an extra
    from coldstart.store.redis import RedisTier

log = logging.getLogger("coldstart.server")

MAX_MESSAGE_BYTES = 64 << 20  # a descriptor of 100 000 nodes fits; artifacts come in chunks
SWEEP_SECONDS = 1.0
HISTORY = "history.sqlite"  # beside the disk store's folders
# The store's own upkeep: not urgent, as readers heal what they meet.
FIRST_JANITOR_SECONDS, JANITOR_SECONDS = 60.0, 6 * 3600.0

SERVICES = (
    cache_pb2.DESCRIPTOR.services_by_name["Cache"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
)


class App:
    """One daemon. `start`, then `stop` once; both on the same event loop."""

    def __init__(self, config: DaemonConfig) -> None:
        self.config = config
        self.addresses: tuple[str, ...] = ()  # as clients write them, free ports filled in
        self.http_address = ""
        self.health_address = ""
        self.stopping = False
        self._places: list[SocketPlace] = []
        self._undo = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Listen everywhere, then say so in the ready file.

        Raises:
            ConfigError, ColdstartError: one line that says what to change. Nothing is left behind.
        """
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def _start(self) -> None:
        config = self.config
        for address in config.listen:  # first of all: is another daemon here?
            if address.startswith("unix://"):
                place = SocketPlace(
                    Path(address.removeprefix("unix://")),
                    mode=config.socket_mode,
                    group=config.socket_group,
                )
                place.take()
                self._undo.callback(place.release)
                self._places.append(place)
        counts = OperationCounts()
        self.tally = Tally()
        audit = Audit(self.tally, config.audit_file)
        self._undo.callback(audit.close)
        notary = await open_notary(config, audit)
        self._peers = open_peers(config, audit)
        self._certificates = open_certificates(config, audit.trouble)
        chain = await asyncio.to_thread(
            open_store,
            config.store,
            recorder=counts,
            namespace=config.namespace,
            generation=config.generation,
            gate=notary.gate,
        )
        self._chain = chain
        self._undo.push_async_callback(chain.close)
        if isinstance(chain, ChainTier):
            chain.resume()
        self.holdings = Holdings(chain, disk_of(chain), counts, _places_of(config.store))
        kept, board = open_board(
            config.leases,
            config.store,
            chain,
            counts,
            self._leases_changed,
            namespace=config.namespace,
            generation=config.generation,
        )
        self._undo.push_async_callback(board.close)
        self.canonicalizer = Canonicalizer()
        self._undo.push_async_callback(self.canonicalizer.close)
        self.lookups = Lookups(
            config,
            self.holdings,
            board,
            self.tally,
            canonicalize=self.canonicalizer,
            notary=notary,
        )
        self.upkeep = Upkeep(chain, self.lookups.forget_negatives, notary.gate, self.lookups.purged)
        self.calls = CallCounts()
        self.inventory = Inventory(self.upkeep)
        self._undo.push_async_callback(self.inventory.close)
        self.standing = Standing(self.lookups, self.holdings, self.tally, self.calls)
        self.standing.leases_kept = kept
        redis = redis_of(chain)
        if redis is not None:
            redis.link.on_change.append(self._redis_changed)
            redis.link.start()  # a daemon starts without it, and says so
            if kept == "redis":
                self._count_the_fleet(redis)
        self._health = HealthServicer()
        await self._listen()
        self._sweeper = asyncio.create_task(self._sweep())
        self._undo.callback(self._sweeper.cancel)
        self._undo.callback(asyncio.create_task(self.standing.loop_lag.run()).cancel)
        self._janitor = asyncio.create_task(self._keep_tidy())
        self._undo.callback(self._janitor.cancel)
        await self._remember()
        await self._serve_http()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._write_ready()
        say(
            log,
            "ready",
            version=__version__,
            pid=os.getpid(),
            addresses=",".join(self.addresses),
            http=self.http_address,
            health=self.health_address,
            store=",".join(place.url for place in _places_of(config.store)),
            mode=config.mode,
        )

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain and leave. Running calls may finish within `grace_seconds` (default: drain_seconds)."""
        grace = self.config.drain_seconds if grace_seconds is None else grace_seconds
        say(log, "draining", open_lookups=self.lookups.open_lookups, grace_seconds=grace)
        self.stopping = True
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.lookups.close()
        await self._server.stop(grace)
        await self._undo.aclose()
        say(log, "stopped")

    async def abort(self) -> None:
        """Cut the running calls off; `stop`, which waits for them, then goes on."""
        await self._server.stop(0)

    async def _listen(self) -> None:
        config = self.config
        self._server = aio.server(
            interceptors=(Edge(self.calls, check=self._peers.check),),
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),  # a second daemon on the port is told so
            ),
        )
        server = self._server
        self._undo.push_async_callback(server.stop, 0)
        cache_pb2_grpc.add_CacheServicer_to_server(
            CacheServicer(self.lookups, config, self.holdings, self._peers), server
        )
        admin_pb2_grpc.add_AdminServicer_to_server(
            AdminServicer(self.standing, self.lookups, self.upkeep, self.holdings.tidy), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server
        )
        addresses: list[str] = []
        for place in self._places:
            self._bind(place.birthplace(), f"unix://{place.path}")
            await self._open_door(place)
            place.move_in()
            addresses.append(f"unix://{place.path}")
        for address in config.listen:
            if address.startswith("tcp://"):
                host = address.removeprefix("tcp://")
                port = self._bind(host, address, self._certificates)
                addresses.append(f"tcp://{host.rpartition(':')[0]}:{port}")
        self.addresses = self.standing.addresses = tuple(addresses)
        await server.start()

    async def _open_door(self, place: SocketPlace) -> None:
        """Where a list or a signature says who somebody is, callers of the socket can show it."""
        if not self._peers.roles.listed and self.config.signing_key is None:
            return
        if self._peers.passes is None:  # one key does for all sockets: passes are read in one place
            self._peers.passes = open_passes(place.path)
        door = await open_door(self._peers.passes, place.door_birthplace())
        self._undo.callback(door.close)

    def _bind(
        self, grpc_address: str, address: str, certificates: Certificates | None = None
    ) -> int:
        try:
            if certificates is not None:
                port = self._server.add_secure_port(grpc_address, certificates.credentials())
            else:
                port = self._server.add_insecure_port(grpc_address)
        except RuntimeError as exc:
            raise ColdstartError(
                f"can't listen at {address}: {exc}; is it in use? Port 0 takes a free one"
            ) from exc
        return int(port)

    async def _serve_http(self) -> None:
        if self.config.http is None and self.config.health is None:
            return
        # Only when asked: their libraries take a moment to import.
        from coldstart.server import page, web

        sites = ((self.config.health, web.health_app), (self.config.http, page.page_app))
        for where, make in sites:
            if where is None:
                continue
            site = web.Site(make(self), where)
            address = await site.start()
            self._undo.push_async_callback(site.stop)
            if make is web.health_app:
                self.health_address = address
            else:
                self.http_address = address

    async def _remember(self) -> None:
        """Keep what is counted, minute by minute: beside the disk store where there is one."""
        disk = disk_of(self._chain)
        path = None if disk is None else disk.root / LAYOUT / HISTORY
        self.history = await asyncio.to_thread(History, path)
        self._undo.callback(self.history.close)
        self._undo.callback(self.write_history)  # the last of it

        async def keep() -> None:
            while True:
                await asyncio.sleep(STEP_SECONDS)
                await asyncio.to_thread(self.write_history)

        self._undo.callback(asyncio.create_task(keep()).cancel)

    def write_history(self) -> None:
        """Blocking."""
        tally = self.tally
        lookups = {(o.value, r.value, t): float(n) for (o, r, t), n in dict(tally.lookups).items()}
        totals = report.totals(lookups, tally.compile_seconds_saved, tally.compile_seconds)
        self.history.add(time.time(), totals)

    def _count_the_fleet(self, redis: RedisTier) -> None:
        from coldstart.lease.fleet_counts import FleetCounts  # its library is optional

        fleet = FleetCounts(redis.link, lambda: counted(self.tally))
        self.standing.fleet = lambda: fleet.sums
        self._undo.push_async_callback(fleet.push)  # the last of it
        self._undo.callback(asyncio.create_task(fleet.run()).cancel)

    def _redis_changed(self, words: str) -> None:
        """Tell that Redis went down, or with "" that it answers."""
        level = logging.WARNING if words else logging.INFO
        say(log, "redis down" if words else "redis up", level=level, error=words)
        kind = Reason.TIER_DOWN.value if words else "tier-up"
        self.tally.event(kind, f"redis: {words or 'answers again'}")

    def _leases_changed(self, words: str) -> None:
        self.standing.leases_trouble = words
        kind, message = ("leases-alone", words) if words else ("leases-shared", "as before")
        say(log, kind, level=logging.WARNING if words else logging.INFO, error=words)
        self.tally.event(kind, message)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        self.serving = status == health_pb2.HealthCheckResponse.SERVING
        for service in ("", *SERVICES):
            await self._health.set(service, status)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.lookups.sweep()
            except ColdstartError as exc:
                say(log, "sweep failed", level=logging.WARNING, error=exc)

    async def _keep_tidy(self) -> None:
        """Give back the room of what crashes left in the store."""
        await asyncio.sleep(FIRST_JANITOR_SECONDS)
        while True:
            try:
                removed = await self.holdings.tidy()
                if removed:
                    say(log, "tidied", removed=removed)
            except ColdstartError as exc:
                say(log, "tidying failed", level=logging.WARNING, error=exc)
            await asyncio.sleep(JANITOR_SECONDS)

    def _write_ready(self) -> None:
        if self.config.ready_file is None:
            return
        ready = {
            "addresses": list(self.addresses),
            "http": self.http_address,
            "health": self.health_address,
            "pid": os.getpid(),
            "version": __version__,
        }
        path, text = self.config.ready_file, json.dumps(ready) + "\n"
        try:
            if path.exists() and not path.is_file():  # a pipe, or a device: never to be replaced
                _write_into(path, text)
                return
            _write_by_rename(path, text)
        except OSError as exc:
            raise ColdstartError(
                f"ready_file={path} can't be written ({exc.strerror}); "
                "name a file in a folder that you may write"
            ) from exc
        self._undo.callback(path.unlink, missing_ok=True)


async def run(config: DaemonConfig) -> None:
    """A daemon until SIGTERM or SIGINT; a second signal ends it without waiting for running calls."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    app = App(config)
    await app.start()
    await stop.wait()
    draining = asyncio.create_task(app.stop())
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        await app.abort()
    hurrying.cancel()
    await draining


def _places_of(urls: tuple[str, ...]) -> list[Place]:
    """Tier names and their URLs without what may be secret."""
    places = []
    for url in urls:
        scheme, _, rest = url.partition("://")
        name = {"gs": "gcs"}.get(scheme, scheme)
        shown = rest.rpartition("@")[2].partition("?")[0]
        places.append(Place(name, f"{scheme}://{shown}"))
    return places


def _write_into(path: Path, text: str) -> None:
    handle = os.open(
        path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    )  # a pipe that nobody reads says so
    with os.fdopen(handle, "w") as file:
        file.write(text)


def _write_by_rename(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
