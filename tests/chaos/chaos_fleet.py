"""Fleet: the processes of a chaos run, what is done to them, and their end.

Three daemons, each with a disk of its own, and the Redis and the bucket that they share; between each daemon and each
of those a proxy of its own. Six clients, two for each daemon, of which one reads files by path and one by stream; when
a client's life is over another one starts. Whatever happens, everything is ended by its pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos_log import Log
from chaos_plan import CLIENTS, DAEMONS, Fault, Plan
from chaos_starvation import starvation_noted
from fault_proxy import FaultProxy
from gcs_proxy import GcsProxy
from gcs_server import GcsServer
from redis_server import RedisServer

BUCKET = "chaos"
EVERYTHING = "cs.min_compile_seconds=0"  # its programs compile in no time
START_SECONDS = 30.0
LEASE_SECONDS = 3.0
LIFE_SECONDS = (8.0, 16.0)  # of one client process
ENVIRONMENT = ("PATH", "HOME", "LANG")


class Daemon:
    """One daemon process after the other, on one socket and one disk."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        name: str,
        stores: tuple[str, ...],
        bucket_url: str,
        leases: str = "auto",
    ) -> None:
        self.name = name
        self.leases = leases
        self.folder = folder
        self.address = f"unix://{folder}/s"
        self._log = log
        self._stores = (f"disk://{folder}/store", *stores)
        self._environ = {n: os.environ[n] for n in ENVIRONMENT if n in os.environ}
        self._environ["STORAGE_EMULATOR_HOST"] = bucket_url
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def start(self) -> None:
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "coldstart.cli.main", "daemon"]
        command += [f"--listen={self.address}", f"--ready-file={ready}", "--drain-seconds=2"]
        command += [f"--lease-seconds={LEASE_SECONDS}", f"--heartbeat-seconds={LEASE_SECONDS / 4}"]
        command += [f"--store={url}" for url in self._stores]
        command += [f"--leases={self.leases}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environ, stderr=log, stdout=log)
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.name} did not get ready"
            time.sleep(0.01)  # a file has no event to wait for
        self._log("daemon-up", daemon=self.name, pid=self.process.pid)

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ended, whatever it takes."""
        if self.process is None:
            return
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self._log("stuck", daemon=self.name)
            self.process.kill()
            self.process.wait(20)


class Fleet:
    """All of it. `start`, `run`, `heal`, `close`."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.logs = folder / "events"
        self.logs.mkdir()
        self.log = Log(self.logs / "harness.jsonl", "harness")
        self._undo = contextlib.ExitStack()
        self._undo.callback(self.log.close)
        self._dice = random.Random(f"fleet {plan.seed}")
        self._births = [0] * CLIENTS  # client processes that were started, by slot
        self.clients: dict[int, subprocess.Popen[bytes]] = {}
        self.daemons: list[Daemon] = []
        self.began = 0.0
        self.trouble: list[str] = []  # of the harness itself
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)  # by target

    def start(self) -> None:
        folder = self.folder
        for name in ("redis", "gcs"):
            (folder / name).mkdir()
        self.redis = RedisServer(folder / "redis")
        self._undo.callback(self.redis.stop)
        self.redis.start()
        self.gcs = GcsServer(folder / "gcs")
        self.gcs_front = GcsProxy(self.gcs.url)
        self._undo.callback(self.gcs_front.close)
        self._undo.callback(self.gcs.stop)
        self.gcs.start(self.gcs_front.url)
        self.gcs.make_bucket(BUCKET)
        self.links: dict[str, FaultProxy] = {}
        for number in range(DAEMONS):
            for name, port in (("redis", self.redis.port), ("gcs", self.gcs_front.port)):
                self.links[f"{name}-link:{number}"] = proxy = FaultProxy(("127.0.0.1", port))
                self._undo.callback(proxy.close)
            self.daemons.append(self._daemon(number))
            self.daemons[-1].start()

    def _daemon(self, number: int) -> Daemon:
        redis, gcs = self.links[f"redis-link:{number}"], self.links[f"gcs-link:{number}"]
        hasty = self.plan.hasty
        stores = (
            f"redis://127.0.0.1:{redis.port}/0?{EVERYTHING}" + "&cs.timeout=1s" * hasty,
            f"gs://{BUCKET}/fleet?{EVERYTHING}" + "&cs.timeout=2s" * hasty,
        )
        url = f"http://127.0.0.1:{gcs.port}"
        folder, name = self.folder / f"d{number}", f"daemon:{number}"
        daemon = Daemon(folder, self.log, name, stores, url, self.plan.leases)
        self._undo.callback(daemon.stop)
        return daemon

    def newcomer(self) -> Daemon:
        """A daemon that has nothing but the bucket: what it hands out is what the bucket says."""
        stores = (f"gs://{BUCKET}/fleet?{EVERYTHING}&cs.timeout=2s",)
        url = f"http://127.0.0.1:{self.gcs_front.port}"
        daemon = Daemon(self.folder / "new", self.log, "newcomer", stores, url)
        self._undo.callback(daemon.stop)
        daemon.start()
        return daemon

    # --- the run -------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults by the plan, clients all the time. When it returns everything is healed and no client runs."""
        self._undo.callback(self._end_clients)
        facts = {"seed": self.plan.seed, "seconds": self.plan.seconds, "leases": self.plan.leases}
        self.began = self.log("begun", **facts)
        self._undo.enter_context(starvation_noted(self.log, self.daemons))
        faults = [
            threading.Thread(target=self._suffer, args=(number, fault), daemon=True)
            for number, fault in enumerate(self.plan.faults)
        ]
        for fault in faults:
            fault.start()
        try:
            while time.monotonic() < self.began + self.plan.seconds:
                self._tend()
                time.sleep(0.05)
        finally:
            for fault in faults:
                fault.join(90)
        deadline = time.monotonic() + 60
        while self.clients and time.monotonic() < deadline:
            self._tend(again=False)
            time.sleep(0.05)
        for slot in self.clients:
            self.trouble.append(f"client {slot} did not end within 60 s")
        self._end_clients()

    def _tend(self, *, again: bool = True) -> None:
        """Note the clients that ended, and start others."""
        for slot, process in tuple(self.clients.items()):
            code = process.poll()
            if code is not None:
                self.log("client-gone", client=self._name(slot), code=code)
                del self.clients[slot]
        for slot in range(CLIENTS) if again else ():
            if slot not in self.clients:
                self._births[slot] += 1
                until = time.monotonic() + self._dice.uniform(*LIFE_SECONDS)
                until = min(until, self.began + self.plan.seconds)
                daemon = self.daemons[slot % DAEMONS]
                self.clients[slot] = self.client(
                    self._name(slot), daemon, rank=slot, by_path=slot < DAEMONS, until=until
                )

    def _name(self, slot: int) -> str:
        return f"{slot}.{self._births[slot]}"

    def client(
        self,
        who: str,
        daemon: Daemon,
        *,
        rank: int = 0,
        by_path: bool = True,
        until: float = 0.0,
        keys: list[int] | None = None,
    ) -> subprocess.Popen[bytes]:
        """A client process; with `keys` one that asks for those once."""
        settings = self.plan.to_json() | {
            "who": who,
            "rank": rank,
            "log": str(self.logs / f"{who}.jsonl"),
            "daemon": daemon.name,
            "address": daemon.address,
            "volume_root": "" if by_path else "/nowhere",
            "began": self.began,
            "until": until,
            "keys": keys,
        }
        path = self.logs / f"{who}.json"
        path.write_text(json.dumps(settings))
        environ = {n: os.environ[n] for n in ENVIRONMENT if n in os.environ}
        command = [sys.executable, str(Path(__file__).with_name("chaos_client.py")), str(path)]
        with (self.logs / f"{who}.stderr").open("ab") as stderr:
            return subprocess.Popen(command, env=environ, stderr=stderr)

    def _end_clients(self) -> None:
        for process in self.clients.values():
            process.kill()
            process.wait(20)
        self.clients.clear()

    # --- faults --------------------------------------------------------------------------------

    def _suffer(self, number: int, fault: Fault) -> None:
        """One fault, from its time on until it is healed."""
        time.sleep(max(0.0, self.began + fault.at - time.monotonic()))
        facts: dict[str, Any] = {"number": number, "target": fault.target, "kind": fault.kind}
        place, _, which = fault.target.partition(":")
        if place == "client":
            facts["client"] = self._name(int(which))
        with self._turns[fault.target]:  # the one before may not be healed on a slow machine
            self.log("fault", **facts)
            try:
                with self._break(place)(fault.kind, which):
                    time.sleep(fault.seconds)
            except Exception as exc:
                self.trouble.append(f"fault {fault}: {exc!r}")
            self.log("healed", **facts)

    def _break(self, place: str) -> Callable[[str, str], contextlib.AbstractContextManager[None]]:
        return {
            "daemon": self._break_daemon,
            "redis": lambda kind, which: self._break_server(self.redis, kind),
            "gcs": self._break_gcs,
            "redis-link": lambda kind, which: self._break_link(f"redis-link:{which}", kind),
            "gcs-link": lambda kind, which: self._break_link(f"gcs-link:{which}", kind),
            "client": self._break_client,
        }[place]

    @contextlib.contextmanager
    def _break_daemon(self, kind: str, which: str) -> Iterator[None]:
        daemon = self.daemons[int(which)]
        if kind == "freeze":
            daemon.send(signal.SIGSTOP)
            yield
            daemon.send(signal.SIGCONT)
            return
        daemon.stop(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        if kind == "kill":
            yield
            daemon.start()
        else:  # as an upgrade does it: at once
            daemon.start()
            yield

    @contextlib.contextmanager
    def _break_server(self, server: Any, kind: str, *start: str) -> Iterator[None]:
        if kind == "freeze":
            server.freeze()
            yield
            server.thaw()
        else:
            server.stop()
            yield
            server.start(*start)

    @contextlib.contextmanager
    def _break_gcs(self, kind: str, which: str) -> Iterator[None]:
        if kind != "refuse":
            with self._break_server(self.gcs, kind, self.gcs_front.url):
                yield
            return
        self.gcs_front.fail(status=503)
        yield
        self.gcs_front.heal()

    @contextlib.contextmanager
    def _break_link(self, name: str, kind: str) -> Iterator[None]:
        link = self.links[name]
        if kind == "refuse":
            link.refuse()
        elif kind == "silence":
            link.black_hole()
        elif kind == "slow":
            link.slow(delay_seconds=0.1)
        else:
            link.cut(after_bytes=self._dice.randrange(200, 20_000))
        yield
        link.heal()
        if kind == "silence":
            link.drop()  # as a network that is back does, sooner or later

    @contextlib.contextmanager
    def _break_client(self, kind: str, which: str) -> Iterator[None]:
        process = self.clients.get(int(which))
        if process is None:
            yield
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        yield
        if kind == "freeze" and process.poll() is None:
            process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End everything, in the reverse order of its start."""
        self._undo.close()
