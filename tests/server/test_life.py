"""A daemon's life: ready file, sockets, second daemons, draining."""

from __future__ import annotations

import grp
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from coldstart import __version__
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb


def test_ready_file_socket_and_a_clean_end(start_daemon):
    daemon = start_daemon("--listen=tcp://127.0.0.1:0", "--insecure")
    assert daemon.ready["pid"] == daemon.process.pid
    assert daemon.ready["version"] == __version__
    unix, tcp = daemon.ready["addresses"]
    assert unix == daemon.address and not tcp.endswith(":0")
    assert daemon.ready["http"] == daemon.ready["health"] == ""
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o700
    assert daemon.stats().pid == daemon.process.pid
    assert daemon.stop() == 0
    assert not daemon.socket.exists() and not daemon.ready_file.exists()
    assert not list((daemon.store / "v1" / "nonces").iterdir())


def test_socket_mode_and_group(start_daemon):
    group = grp.getgrgid(os.getgid()).gr_name
    daemon = start_daemon("--socket-mode=0660", f"--socket-group={group}")
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660
    assert daemon.socket.stat().st_gid == os.getgid()
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o710


def test_a_path_with_spaces_and_percent_signs(tmp_path, start_daemon):
    address = f"{tmp_path}/a b%20c/d.sock"
    start_daemon(f"--listen=unix://{address}")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(address)


def second(daemon) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        daemon.command, env=daemon.environ, capture_output=True, text=True, timeout=60
    )


def test_a_second_daemon_is_refused_with_one_line(start_daemon):
    daemon = start_daemon()
    refused = second(daemon)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1 and "already listens" in refused.stderr
    assert f"pid {daemon.process.pid}" in refused.stderr
    assert daemon.ready_file.exists() and daemon.stats().pid == daemon.process.pid


def test_a_socket_that_somebody_else_listens_on_is_left_alone(start_daemon, tmp_path):
    place = tmp_path / "d" / "run"
    place.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(place / "c.sock"))
        stranger.listen(1)
        with pytest.raises(AssertionError, match="already listens"):
            start_daemon()
    assert (place / "c.sock").exists()


def test_a_file_in_the_sockets_place_is_left_alone(start_daemon, tmp_path):
    place = tmp_path / "d" / "run"
    place.mkdir(parents=True, mode=0o700)
    (place / "c.sock").write_text("precious")
    with pytest.raises(AssertionError, match="not a socket"):
        start_daemon()
    assert (place / "c.sock").read_text() == "precious"


def test_a_stale_socket_is_taken_over(start_daemon, asking, new_record):
    daemon = start_daemon()
    daemon.stop(signal.SIGKILL)
    assert daemon.socket.exists()
    daemon.start()
    assert asking(daemon.cache, new_record).lookup().WhichOneof("answer") == "lease"


def test_artifacts_survive_kill_minus_nine(start_daemon, asking, new_record, made):
    daemon = start_daemon()
    one = asking(daemon.cache, new_record)
    digest = one.publish(made.artifact(new_record), one.lookup().lease.lease_id).digest
    daemon.stop(signal.SIGKILL)
    daemon.start()
    again = asking(daemon.cache, new_record)
    assert again.lookup().WhichOneof("answer") == "hit"
    assert digest.encode() in again.fetch(digest)


def test_draining_sends_waiters_home_and_finishes_what_runs(start_daemon, asking, new_record, made):
    daemon = start_daemon("--drain-seconds=20")
    holder, waiter = (asking(daemon.cache, new_record) for _ in range(2))
    lease = holder.lookup().lease.lease_id
    waiter.lookup()
    good = made.artifact(new_record, raw=os.urandom(2_000_000))
    data = b"".join(good.payload.chunks())
    half_sent, go_on = threading.Event(), threading.Event()

    def parts():
        from coldstart import wire

        yield pb.PublishRequest(
            start=pb.PublishStart(
                lookup_id=holder.id,
                lease_id=lease,
                header=good.header.encode(),
                record=wire.record_to_pb(new_record),
            )
        )
        yield pb.PublishRequest(data=data[:1_000_000])
        half_sent.set()
        assert go_on.wait(30)
        yield pb.PublishRequest(data=data[1_000_000:])

    with ThreadPoolExecutor(2) as pool:
        publishing = pool.submit(lambda: daemon.cache.Publish(parts(), timeout=60))
        waiting = pool.submit(waiter.wait, 60.0)
        assert half_sent.wait(20)
        daemon.process.send_signal(signal.SIGTERM)
        assert waiting.result().WhichOneof("answer") == "wait"  # home, long before its time
        go_on.set()
        assert publishing.result().digest == good.header.digest
    assert daemon.stop() == 0
    daemon.start()
    assert asking(daemon.cache, new_record).lookup().WhichOneof("answer") == "hit"


def test_a_second_signal_does_not_wait(start_daemon, asking, new_record, made):
    daemon = start_daemon("--drain-seconds=300")
    blocked, let_go = threading.Event(), threading.Event()

    def parts():
        from coldstart import wire

        good = made.artifact(new_record)
        yield pb.PublishRequest(
            start=pb.PublishStart(
                lookup_id="x", header=good.header.encode(), record=wire.record_to_pb(new_record)
            )
        )
        blocked.set()
        let_go.wait(60)

    def publish() -> None:
        with pytest.raises(grpc.RpcError):
            daemon.cache.Publish(parts(), timeout=60)

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        assert blocked.wait(20)
        daemon.stats()  # a round trip later the publish has arrived too
        daemon.process.send_signal(signal.SIGTERM)
        while "draining" not in daemon.log.read_text():
            time.sleep(0.01)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(30) == 0
        let_go.set()
        publishing.result()


def test_a_port_in_use_is_one_line(start_daemon, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        for number, option in enumerate(("--listen=tcp://127.0.0.1", "--http=127.0.0.1")):
            with pytest.raises(AssertionError, match=f"127.0.0.1:{port}"):
                start_daemon(f"{option}:{port}", "--insecure", folder=f"p{number}")
            assert not (tmp_path / f"p{number}" / "run" / "c.sock").exists()
            said = (tmp_path / f"p{number}" / "log").read_text()
            assert said.count("coldstart: ") == 1 and "Traceback" not in said


def test_no_jax_in_the_daemon(tmp_path):
    """Everything that a daemon with all its sites imports, and a start and stop of it, in a fresh process."""
    script = """
import asyncio, sys
from coldstart.config import DaemonConfig
from coldstart.server.app import App
async def life(folder):
    config = DaemonConfig(listen=(f"unix://{folder}/r/s.sock",), store=(f"disk://{folder}/store",),
                          http="127.0.0.1:0", health="127.0.0.1:0")
    app = App(config)
    await app.start()
    await app.stop()
asyncio.run(life(sys.argv[1]))
bad = sorted(name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib", "libtpu"))
print(bad)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_health_and_reflection_services(shared_daemon):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    health = health_pb2_grpc.HealthStub(shared_daemon.channel)
    for service in ("", "coldstart.rpc.v1.Cache", "coldstart.rpc.v1.Admin"):
        reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    names = ProtoReflectionDescriptorDatabase(shared_daemon.channel).get_services()
    assert {"coldstart.rpc.v1.Cache", "coldstart.rpc.v1.Admin"} <= set(names)


def test_counts_are_true_and_finish_counts_once(start_daemon, asking, made):
    daemon = start_daemon()
    record = made.record("counted")
    first = asking(daemon.cache, record)
    first.publish(made.artifact(record, compile_seconds=7.0), first.lookup().lease.lease_id)
    for _ in range(3):
        first.finish(Outcome.MISS, Reason.COLD, compile_seconds=7.0)
    for _ in range(4):
        one = asking(daemon.cache, record)
        one.lookup()
        # what a client says of the seconds saved, and of a tier that doesn't exist, is not believed
        one.finish(Outcome.HIT, Reason.OK, tier="gold", compile_seconds=1e6, load_seconds=0.5)
    asking(daemon.cache, record).finish(Outcome.REFUSED, Reason.CALLBACKS)  # never asked the daemon
    stats = daemon.stats()
    assert {(c.outcome, c.reason, c.tier): c.count for c in stats.lookups} == {
        (pb.OUTCOME_MISS, pb.REASON_COLD, ""): 1,
        (pb.OUTCOME_HIT, pb.REASON_OK, "disk"): 4,
        (pb.OUTCOME_REFUSED, pb.REASON_CALLBACKS, ""): 1,
    }
    assert stats.compile_seconds == 7.0 and stats.compile_seconds_saved == 28.0
    assert stats.load_seconds == 2.0 and stats.open_lookups == 0 and stats.leases == 0
    (disk,) = stats.tiers
    assert (
        disk.artifacts == 1 and disk.operations["put.ok"] == 1 and disk.operations["get.hit"] == 4
    )


def test_finishing_without_publishing_gives_the_lease_back(start_daemon, asking, new_record):
    daemon = start_daemon()
    one, two = (asking(daemon.cache, new_record) for _ in range(2))
    one.lookup()
    assert two.lookup().WhichOneof("answer") == "wait"
    one.finish(Outcome.MISS, Reason.COLD)
    assert two.wait().WhichOneof("answer") == "lease"


def test_more_clients_than_a_shell_gives_descriptors(start_daemon, asking, new_record) -> None:
    """The soft limit is only what nobody asked to change."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        daemon = start_daemon()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    held: list[socket.socket] = []
    try:
        for _ in range(400):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].settimeout(10)
            held[-1].connect(str(daemon.socket))
        assert all(one.recv(9) for one in held)  # it speaks first: each was taken
        assert asking(daemon.cache, new_record).lookup().WhichOneof("answer") == "lease"
    finally:
        for one in held:
            one.close()


def test_a_ready_file_that_is_a_pipe_is_written_to_and_stays(tmp_path, start_daemon) -> None:
    """So is a device: by rename, a daemon of root's would take /dev/stdout away from everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        command = [sys.executable, "-m", "coldstart.cli.main", "daemon", f"--ready-file={pipe}"]
        command += [f"--listen=unix://{tmp_path}/s", f"--store=disk://{tmp_path}/store"]
        daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            assert select.select([reading], [], [], 30)[0]
            assert json.loads(os.read(reading, 10_000))["pid"] == daemon.pid
        finally:
            daemon.terminate()
            assert daemon.wait(30) == 0
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
