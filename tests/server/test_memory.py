"""What a daemon holds in memory while much goes through it: bounded by streams, not by sizes."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from coldstart import wire
from coldstart.artifact import Header
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc
from coldstart.server.cache_servicer import FETCH_BYTES

MIB = 1 << 20
SIZE = 600 * MIB
CLIENTS = 100
SECONDS = 900.0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak(threading.Thread):
    """The most that a process had resident, looked at often."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._done = pid, threading.Event()
        self.bytes = resident_bytes(pid)

    def run(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, resident_bytes(self._pid))

    def stop(self) -> int:
        self._done.set()
        self.join(10)
        return self.bytes


def publish_large(cache: cache_pb2_grpc.CacheStub, record, header: Header, block: bytes) -> str:
    upload = uuid.uuid4().hex
    start = pb.PublishStart(
        lookup_id=upload, header=header.encode(), record=wire.record_to_pb(record)
    )
    request = pb.UploadRequest(upload_id=upload, start=start)
    for _ in range(SIZE // len(block)):
        request.data = block
        cache.Upload(request, timeout=120)
        request = pb.UploadRequest(upload_id=upload)
    request.last = True
    return cache.Upload(request, timeout=300).published.digest


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_clients_and_600_mib(start_daemon, made) -> None:
    """One publishes; then a hundred fetch it by stream at once, each on a channel of its own. All have begun before any
    has ended, half of them read slowly, and every tenth reads to the end."""
    daemon = start_daemon()
    record = made.record("large")
    block = os.urandom(MIB)
    digest = hashlib.sha256()
    for _ in range(SIZE // MIB):
        digest.update(block)
    small = made.artifact(record, raw=b"x", codec="raw").header
    header = replace(small, payload_bytes=SIZE, raw_bytes=SIZE, digest=digest.hexdigest())
    before = resident_bytes(daemon.process.pid)
    publishing = Peak(daemon.process.pid)
    publishing.start()
    assert publish_large(daemon.cache, record, header, block) == header.digest
    published = publishing.stop() - before

    before = resident_bytes(daemon.process.pid)
    fetching = Peak(daemon.process.pid)
    fetching.start()
    begun, go_on = threading.Semaphore(0), threading.Event()
    read = [0] * CLIENTS
    whole: list[str] = []

    def fetch(n: int) -> None:
        with grpc.insecure_channel(
            daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            request = pb.FetchRequest(lookup_id=f"l{n}", key=header.key, digest=header.digest)
            call = cache_pb2_grpc.CacheStub(channel).Fetch(request, timeout=SECONDS)
            hashed = hashlib.sha256()
            for number, chunk in enumerate(call):
                if number:
                    read[n] += len(chunk.data)
                    if n % 10 == 0:
                        hashed.update(chunk.data)
                if number == 2:
                    begun.release()
                    go_on.wait(SECONDS)
                if n % 10 and read[n] >= 60 * MIB:
                    call.cancel()
                    return
                if n % 2:
                    time.sleep(0.005)
            whole.append(hashed.hexdigest())

    threads = [threading.Thread(target=fetch, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for _ in range(CLIENTS):
        assert begun.acquire(timeout=300)
    go_on.set()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    fetched = fetching.stop() - before
    assert whole == [header.digest] * (CLIENTS // 10)
    assert min(read) >= 60 * MIB
    limit = 2 * FETCH_BYTES * CLIENTS + 100 * MIB
    print(
        f"\npublish: +{published / MIB:.0f} MiB; {CLIENTS} streams, {sum(read) / MIB:.0f} MiB read: "
        f"+{fetched / MIB:.0f} MiB; limit {limit / MIB:.0f} MiB"
    )
    assert published < 2 * MIB + 100 * MIB  # of one stream, in pieces of 1 MiB
    assert fetched < limit
