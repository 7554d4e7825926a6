"""Durability of the whole daemon: killed fifty times under load, and its system calls in order up to the reply (I4)."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest

from coldstart import wire
from coldstart.artifact import open_file, verify
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

KILLS = 50
PUBLISHERS = 4


def content(name: str) -> bytes:
    """What is stored under a name: some pieces long, different for each."""
    return hashlib.sha256(name.encode()).digest() * 8000  # 256 000 bytes


class Publishing(threading.Thread):
    """Publishes one artifact after the other in unary calls, until the daemon is gone."""

    def __init__(self, address: str, made, prefix: str) -> None:
        super().__init__(name=f"publishing-{prefix}")
        self._address, self._made, self._prefix = address, made, prefix
        self.acknowledged: dict[str, str] = {}  # name -> digest
        self.tried = 0

    def run(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            cache = cache_pb2_grpc.CacheStub(channel)
            while True:
                name = f"{self._prefix}-{self.tried}"
                self.tried += 1
                try:
                    self.acknowledged[name] = self._publish(cache, name)
                except grpc.RpcError:
                    return

    def _publish(self, cache: cache_pb2_grpc.CacheStub, name: str) -> str:
        record = self._made.record(name)
        one = self._made.artifact(record, raw=content(name), codec="raw")
        start = pb.PublishStart(
            lookup_id=name, header=one.header.encode(), record=wire.record_to_pb(record)
        )
        request = pb.UploadRequest(upload_id=name, start=start)
        for data in one.payload.chunks(64_000):
            request.data = data
            cache.Upload(request, timeout=30)
            request = pb.UploadRequest(upload_id=name)
        request.last = True
        return cache.Upload(request, timeout=30).published.digest


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_fifty_kills_under_load_lose_nothing_that_was_acknowledged(
    start_daemon, asking, made
) -> None:
    choose = random.Random(50)
    daemon = start_daemon()
    acknowledged: dict[str, str] = {}
    tried = 0
    for life in range(KILLS):
        threads = [Publishing(daemon.address, made, f"{life}-{n}") for n in range(PUBLISHERS)]
        for thread in threads:
            thread.start()
        time.sleep(choose.uniform(0.05, 0.6))  # anywhere inside a publish, or several
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(20)
        daemon.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
            tried += thread.tried
        new = {name: digest for t in threads for name, digest in t.acknowledged.items()}
        acknowledged |= new
        daemon.start()
        for name, digest in choose.sample(sorted(new.items()), min(3, len(new))):
            one = asking(daemon.cache, made.record(name))
            hit = one.lookup().hit
            assert hit.header and digest in hit.header.decode()
            assert one.fetch(digest).endswith(content(name))
    # Every one of them, from the files themselves.
    found = {}
    for path in (daemon.store / "v1" / "objects").rglob("*.csa"):
        whole = open_file(path)
        assert verify(whole) == content(whole.header.program_name), path
        found[whole.header.program_name] = whole.header.digest
    assert acknowledged.items() <= found.items()
    keys = [one for n, one in enumerate(sorted(acknowledged)) if n % 7 == 0]
    for name in keys:
        assert asking(daemon.cache, made.record(name)).lookup().WhichOneof("answer") == "hit"
    stale = _stale(daemon.store)
    print(f"\n{KILLS} kills: {tried} tried, {len(acknowledged)} acknowledged, all there and right")
    assert stale == []
    assert len(acknowledged) > KILLS  # it was under load
    assert tried - len(acknowledged) >= KILLS  # and killed inside of publishes


def _stale(store: Path) -> list[Path]:
    """Temporary files once the start's sweep is over; nothing is being published."""
    deadline = time.monotonic() + 30
    while True:
        left = [path for path in (store / "v1" / "tmp").iterdir() if path.suffix != ".owner"]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


CALLS = "trace=write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,sendmsg"


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
def test_the_reply_comes_after_the_last_sync(start_daemon, asking, made, tmp_path) -> None:
    """write → fsync → rename → fsync(folder) for each of the three files, in order, then the reply: as the kernel
    saw it."""
    daemon = start_daemon()
    one = asking(daemon.cache, made.record("traced"))
    artifact = made.artifact(one.record, raw=content("traced"), codec="raw")
    asking(daemon.cache, made.record("before")).publish(made.artifact(made.record("before")))
    trace = tmp_path / "trace"
    tracer = subprocess.Popen(
        [
            "strace",
            "-f",
            "-y",
            "-s",
            "1000",
            "-e",
            CALLS,
            "-o",
            str(trace),
            "-p",
            str(daemon.process.pid),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    assert "attached" in tracer.stderr.readline()
    digest = one.publish(artifact).digest
    tracer.send_signal(signal.SIGINT)
    tracer.communicate(timeout=30)
    events = _events(trace.read_text(), digest)
    print("\n" + "\n".join(events))
    assert [event for event in events if not event.startswith("write")] == [
        "fsync tmp/spool",
        "rename tmp/spool objects",
        "fsync objects/xx",
        "fsync tmp/file",
        "rename tmp/file records",
        "fsync records/xx",
        "fsync tmp/file",
        "link tmp/file keys",
        "fsync keys/xx/key",
        "fsync keys/xx",
        "reply",
    ]
    written = [n for n, event in enumerate(events) if event == "write tmp/spool"]
    assert written and max(written) < events.index("fsync tmp/spool")
    assert events.index("write tmp/file") < events.index("fsync tmp/file")


def _events(trace: str, digest: str) -> list[str]:
    """The calls that durability and the reply consist of, in the order in which they ended (a reply: began)."""
    begun: dict[str, str] = {}
    found: list[str] = []
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.startswith("sendmsg") and digest in call:
            found.append("reply")
            continue
        if call.endswith("<unfinished ...>"):
            begun[thread] = call
            continue
        if "resumed>" in call:
            call = begun.pop(thread, "") + call
        if "/store/v1/" not in call or "= -1" in call:
            continue
        name = re.match(r"[a-z0-9]+", call)
        places = [_place(path) for path in re.findall(r"/store/v1/([^\"<>]*)", call)]
        if name is None or places[0].startswith("keys/xx/key/"):
            continue
        word = {"renameat2": "rename", "renameat": "rename", "linkat": "link"}.get(
            name[0], name[0].replace("pwrite64", "write").replace("writev", "write")
        )
        places = (
            [places[-2], places[-1].partition("/")[0]] if word in ("rename", "link") else places[:1]
        )
        # The shard folders may be new: their parents are synced before anything is in them.
        if word == "fsync" and places[0] in ("objects", "keys", "records"):
            continue
        found.append(" ".join([word, *places]))
    return found


def _place(path: str) -> str:
    path = re.sub(r"^tmp/.*\.spool$", "tmp/spool", path)
    path = re.sub(r"^tmp/[0-9a-f]{16}-[0-9a-f]{16}$", "tmp/file", path)
    path = re.sub(r"/cs1-[0-9a-f]{64}", "/key", path)
    return re.sub(r"/[0-9a-f]{2}(?=/|$)", "/xx", path)
