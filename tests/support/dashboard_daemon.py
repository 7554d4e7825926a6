"""A daemon process with its page, and lookups made by hand to fill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType

from small_artifacts import make_artifact, make_record

from coldstart import wire
from coldstart.client.client import CacheClient
from coldstart.identity.key import key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

START_SECONDS = 30


class Shown:
    """`http` is where its page is."""

    def __init__(self, folder: Path, *flags: str, **environ: str) -> None:
        self.address = f"unix://{folder}/d.sock"
        self.store = folder / "store"
        ready = folder / "ready.json"
        command = [sys.executable, "-m", "coldstart.cli.main", "daemon", "--http=127.0.0.1:0"]
        command += ["--health=127.0.0.1:0", f"--listen={self.address}", f"--ready-file={ready}"]
        if not any(flag.startswith("--store") for flag in flags):
            command.append(f"--store=disk://{self.store}")
        with (folder / "log").open("ab") as log:
            environ = {**os.environ, **environ}
            command += flags
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        ends = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert self.process.poll() is None and time.monotonic() < ends, (
                folder / "log"
            ).read_text()
            time.sleep(0.02)
        said = json.loads(ready.read_text())
        self.http, self.health = said["http"], said["health"]
        self.client = CacheClient(self.address, holder="test")

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)

    def lease(self, name: str, holder: str = "pod-1/7/python") -> tuple[str, str]:
        """Begin to compile: lookup and lease."""
        lookup = uuid.uuid4().hex
        record = wire.record_to_pb(make_record(name))
        request = pb.LookupRequest(lookup_id=lookup, holder=holder, record=record)
        return lookup, self.client.lookup(request, 10).lease.lease_id

    def publish(self, name: str, lookup: str = "", lease: str = "", seconds: float = 2.0) -> str:
        """A miss that compiled; the key."""
        if not lookup:
            lookup, lease = self.lease(name)
        record = make_record(name)
        made = make_artifact(name, name.encode() * 20, compile_seconds=seconds, created_unix=1.7e9)
        start = pb.PublishStart(
            lookup_id=lookup,
            lease_id=lease,
            header=made.header.encode(),
            record=wire.record_to_pb(record),
        )
        self.client.publish(start, made.payload.chunks(), 10)
        self.finish(name, Outcome.MISS, Reason.COLD, lookup=lookup, seconds=seconds)
        return key_of(record)

    def finish(
        self, name: str, outcome: Outcome, reason: Reason, *, lookup: str = "", seconds: float = 0.0
    ) -> None:
        request = pb.FinishRequest(
            lookup_id=lookup or uuid.uuid4().hex,
            key=key_of(make_record(name)),
            outcome=wire.outcome_to_pb(outcome),
            reason=wire.reason_to_pb(reason),
            program_name=name,
            compile_seconds=seconds,
            tier="disk" if outcome is Outcome.HIT else "",
        )
        self.client.finish(request, 10)
