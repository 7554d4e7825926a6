"""`coldstart top`: one look for scripts and pipes, and a terminal that is watched until Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

from processes import Daemon
from small_artifacts import make_record

from coldstart import wire
from coldstart.client.client import CacheClient
from coldstart.identity.key import key_of
from coldstart.rpc.v1 import cache_pb2 as pb

Run = Callable[..., subprocess.CompletedProcess[str]]
NAME = "[bold]prefill[/bold]\x1b[31m"


def missed(daemon: Daemon) -> str:
    """One program that missed and one that is being compiled; the key of the former."""
    record, busy = make_record("missed"), make_record("busy")
    client = CacheClient(daemon.address, holder="pod-1")
    request = pb.FinishRequest(
        lookup_id=uuid.uuid4().hex,
        key=key_of(record),
        outcome=pb.OUTCOME_MISS,
        reason=pb.REASON_COLD,
        program_name=NAME,
        compile_seconds=3.0,
    )
    client.finish(request)
    lookup = pb.LookupRequest(
        lookup_id=uuid.uuid4().hex, holder="pod-1", record=wire.record_to_pb(busy)
    )
    assert client.lookup(lookup, 10).HasField("lease")
    client.close()
    return key_of(record)


def test_one_look(coldstart: Run, daemon: Daemon) -> None:
    to = f"--address={daemon.address}"
    assert "nobody compiles" in coldstart("top", to).stdout
    key = missed(daemon)
    seen = json.loads(coldstart("top", to, "--json").stdout)
    (recent,), (live,), (program,) = seen["recent"], seen["live"], seen["programs"]
    assert (recent["key"], recent["reason"], recent["program_name"]) == (key, "cold", NAME)
    assert (live["program_name"], live["holder"], live["expected_seconds"]) == ("busy", "pod-1", 0)
    assert (program["count"], program["compile_seconds"]) == (1, 3.0)
    assert seen["seconds_ratio"]["value"] == 0 and seen["hit_ratio"]["whole"] == 1
    plain = coldstart("top", to, "--once")
    assert (
        plain.returncode == 0 and "busy" in plain.stdout and "[bold]prefill[/bold]" in plain.stdout
    )
    assert "\x1b" not in plain.stdout and key in plain.stdout


def test_a_terminal_is_kept_fresh_until_it_is_told_to_stop(daemon: Daemon) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "coldstart.cli.main", "top"]
    command += [f"--address={daemon.address}", "--every=0.2"]
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, stdin=theirs, start_new_session=True
    )
    os.close(theirs)
    seen, told, ends = b"", False, time.monotonic() + 60
    while time.monotonic() < ends and not (told and b"busy" in seen):
        seen += os.read(ours, 65536)
        if not told and b"nobody compiles" in seen:
            missed(daemon)
            told = True
    os.kill(process.pid, signal.SIGINT)
    while True:
        try:
            if not os.read(ours, 65536):
                break
        except OSError:  # the other end is closed
            break
    assert process.wait(20) == 0 and b"busy" in seen
    os.close(ours)


def test_without_a_daemon_it_says_so(coldstart: Run) -> None:
    done = coldstart("top", "--address=unix:///nowhere/c.sock")
    assert done.returncode == 1 and "no daemon at" in done.stderr and "Traceback" not in done.stderr
