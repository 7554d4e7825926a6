"""Canonicalization in worker processes: it stalls nobody, and nothing that it is fed takes the daemon with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from coldstart import wire
from coldstart.errors import InvalidDescriptor
from coldstart.identity.descriptor import DescriptorBuilder, GraphDescriptor, Read
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import descriptor_pb2
from coldstart.server.answers import Canonicalized, Rewrite
from coldstart.server.canonicalizer import COMMAND, MAX_DESCRIPTOR_BYTES, Canonicalizer
from coldstart.server.canonicalizer_worker import canonicalize_bytes
from coldstart.wire_descriptor import descriptor_to_pb


def fragments(layers: int = 1, ops: int = 2, rank: int = 1) -> GraphDescriptor:
    """Layers with a slice that a kernel never reads, and `ops` more ops each."""
    builder = DescriptorBuilder("test", "layers")
    text = builder.string
    program, _ = builder.node(text("builtin.module"))
    top, _ = builder.open_region(program)
    function, _ = builder.node(text("func.func"))
    builder.function(function, "main", public=True)
    tensor = text("tensor<8x256xf32>")
    body, q = builder.open_region(function, [tensor, tensor])
    builder.input()
    builder.input()
    x = q + 1
    for layer in range(layers):
        start = rank * 8 + layer
        _, cut = builder.node(
            text("stablehlo.slice"),
            [q],
            [tensor],
            [
                (text("limit_indices"), text(f"array<i64: {start + 8}, 256>")),
                (text("start_indices"), text(f"array<i64: {start}, 0>")),
                (text("strides"), text("array<i64: 1, 1>")),
            ],
        )
        kernel, x = builder.node(text("stablehlo.custom_call"), [cut, x], [tensor])
        builder.read(kernel, 0, Read.UNREAD, "no use")
        builder.read(kernel, 1, Read.READ, "used")
        for _ in range(ops):
            _, x = builder.node(text("stablehlo.tanh"), [x], [tensor])
    builder.node(text("func.return"), [x])
    builder.close_region(body)
    builder.close_region(top)
    return builder.build()


def message(*arguments: int) -> descriptor_pb2.GraphDescriptor:
    return descriptor_to_pb(fragments(*arguments))


def encoded(*arguments: int) -> bytes:
    return message(*arguments).SerializeToString()


@contextlib.asynccontextmanager
async def canonicalizer(**options: object) -> AsyncIterator[Canonicalizer]:
    made = Canonicalizer(**options)
    try:
        yield made
    finally:
        await made.close()


def stub(tmp_path: Path, body: str) -> tuple[str, ...]:
    """A worker that does something else: `body` runs for each request, before `answer()`."""
    script = tmp_path / "stub.py"
    script.write_text(
        "import os, sys, time\n"
        "from coldstart.server.frames import read_frame, write_frame\n"
        "def answer(peak=0):\n"
        "    write_frame(sys.stdout.buffer, b'{\"rewrites\": []}', peak.to_bytes(8, 'big') + b'kept')\n"
        "while (frame := read_frame(sys.stdin.buffer)) is not None:\n"
        + "".join(f"    {line}\n" for line in body.splitlines())
    )
    return (sys.executable, str(script))


# --- one process and its life --------------------------------------------------------------------


async def test_a_dead_slice_is_rewritten_and_the_descriptor_kept() -> None:
    async with canonicalizer() as canonicalize:
        found = await canonicalize(encoded())
        assert [r.attribute for r in found.rewrites] == ["start_indices", "limit_indices"]
        assert found.rewrites[0] == Rewrite(
            "unread-fragment-offset",
            "main",
            0,
            "start_indices",
            "array<i64: 0, 0>",
            "stablehlo.custom_call never reads operand 0 (no use)",
        )
        assert zlib.decompress(found.kept) == encoded()
        await canonicalize(encoded())
        assert (canonicalize.done, canonicalize.started) == (2, 1)


async def test_an_announced_descriptor_finds_a_worker_that_was_started_meanwhile() -> None:
    async with canonicalizer() as canonicalize:
        canonicalize.warm()
        canonicalize.warm()
        assert (await canonicalize(encoded())).rewrites
        assert canonicalize.started == 1


async def test_jobs_share_two_workers() -> None:
    async with canonicalizer() as canonicalize:
        found = await asyncio.gather(*(canonicalize(encoded(1, 2, rank)) for rank in range(1, 9)))
        assert len({f.kept for f in found}) == 8 and canonicalize.started == 2


async def test_a_slow_job_is_abandoned_and_its_worker_replaced(tmp_path: Path) -> None:
    gate = tmp_path / "slow"
    gate.touch()
    command = stub(tmp_path, f"while os.path.exists({str(gate)!r}): time.sleep(0.01)\nanswer()")
    async with canonicalizer(command=command, workers=1, job_seconds=0.5) as canonicalize:
        assert "longer than 0.5 s" in (await canonicalize(b"x")).abandoned
        gate.unlink()
        canonicalize._job_seconds = 30
        assert await canonicalize(b"x") == Canonicalized((), b"kept")
        assert canonicalize.abandoned == {"slow": 1} and canonicalize.started == 2


async def test_a_crashed_worker_is_replaced(tmp_path: Path) -> None:
    command = stub(tmp_path, "os._exit(3) if frame[1] == b'crash' else answer()")
    async with canonicalizer(command=command, workers=1) as canonicalize:
        assert "ended" in (await canonicalize(b"crash")).abandoned
        assert not (await canonicalize(b"fine")).abandoned
        assert canonicalize.abandoned == {"died": 1}


async def test_a_worker_that_was_killed_while_idle_costs_nobody_an_answer() -> None:
    async with canonicalizer(workers=1) as canonicalize:
        await canonicalize(encoded())
        process = canonicalize._idle[0]._process
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        assert (await canonicalize(encoded())).rewrites
        assert canonicalize.started == 2 and not canonicalize.abandoned


async def test_a_worker_that_has_grown_is_replaced(tmp_path: Path) -> None:
    command = stub(tmp_path, "answer(peak=1000)")
    async with canonicalizer(command=command, workers=1, grown_bytes=999) as canonicalize:
        await canonicalize(b"")
        await canonicalize(b"")
        assert canonicalize.started == 2 and not canonicalize.abandoned


async def test_a_worn_worker_serves_until_its_successor_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldstart.server.canonicalizer.MAX_JOBS", 3)
    gate, began = tmp_path / "gate", tmp_path / "began"
    began.touch()
    # The first process answers at once; each later one only once the gate is open.
    command = stub(
        tmp_path,
        f"if not globals().get('first') and os.path.getsize({str(began)!r}):\n"
        f"    while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        f"if not globals().get('first'): open({str(began)!r}, 'a').write('x')\n"
        "first = True\n"
        "answer()",
    )
    async with canonicalizer(command=command, workers=1) as canonicalize:
        for _ in range(6):
            await canonicalize(b"x")
        assert canonicalize.started == 2  # one serves on, one is on its way
        old = canonicalize._idle[0]
        gate.touch()
        while canonicalize._spare is None:
            await asyncio.sleep(0.01)
        await canonicalize(b"x")
        assert canonicalize._idle != [old] and old.jobs == 7
        await canonicalize(b"x")
        assert old.jobs == 7 and not canonicalize.abandoned
        await asyncio.wait_for(old._process.wait(), 20)


async def test_idle_workers_end() -> None:
    async with canonicalizer(idle_seconds=0.0) as canonicalize:
        await canonicalize(encoded())
        process = canonicalize._idle[0]._process
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert canonicalize._idle == []


async def test_more_than_may_wait_is_turned_away_at_once(tmp_path: Path) -> None:
    gate = tmp_path / "slow"
    gate.touch()
    command = stub(tmp_path, f"while os.path.exists({str(gate)!r}): time.sleep(0.01)\nanswer()")
    async with canonicalizer(command=command, workers=1, queue_seconds=0.0) as canonicalize:
        first = asyncio.create_task(canonicalize(b""))
        await asyncio.sleep(0)
        assert "waiting" in (await canonicalize(b"")).abandoned
        gate.unlink()
        assert not (await first).abandoned and canonicalize.abandoned == {"busy": 1}


async def test_a_caller_that_goes_takes_its_job_along(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = stub(tmp_path, f"open({str(started)!r}, 'w').close()\ntime.sleep(600)")
    async with canonicalizer(command=command, workers=1) as canonicalize:
        job = asyncio.create_task(canonicalize(b""))
        while not started.exists():
            await asyncio.sleep(0.01)  # a file has no event to wait for
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job
        assert not canonicalize._turns.locked() and not canonicalize._idle


async def test_workers_see_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    out = tmp_path / "environ"
    command = stub(tmp_path, f"open({str(out)!r}, 'w').write(' '.join(os.environ))\nanswer()")
    async with canonicalizer(command=command) as canonicalize:
        await canonicalize(b"")
    assert {"SECRET", "HOME", "PATH"}.isdisjoint(out.read_text().split())


async def test_memory_is_limited() -> None:
    command = (*COMMAND[:-1], str(400 << 20))
    big = message()
    big.operands.extend([0] * 40_000_000)  # four bytes each, once it is parsed
    data = big.SerializeToString()
    del big
    assert len(data) < MAX_DESCRIPTOR_BYTES
    async with canonicalizer(command=command, workers=1) as canonicalize:
        assert (await canonicalize(encoded())).rewrites
        try:
            refused = (await canonicalize(data)).abandoned
        except InvalidDescriptor as exc:  # where the parser itself notices
            refused = str(exc)
        assert refused
        assert (await canonicalize(encoded())).rewrites


# --- hostile descriptors -------------------------------------------------------------------------


def spoiled(edit: Callable[[descriptor_pb2.GraphDescriptor], object]) -> bytes:
    one = message()
    edit(one)
    return one.SerializeToString()


def self_calling() -> bytes:
    builder = DescriptorBuilder("test")
    text = builder.string
    program, _ = builder.node(text("builtin.module"))
    top, _ = builder.open_region(program)
    for name in ("main", "other"):
        function, _ = builder.node(text("func.func"))
        builder.function(function, name, public=name == "main")
        body, _ = builder.open_region(function)
        call, _ = builder.node(text("func.call"))
        builder.call(call, 1)
        builder.node(text("func.return"))
        builder.close_region(body)
    builder.close_region(top)
    return descriptor_to_pb(builder.build()).SerializeToString()


def nested(depth: int) -> bytes:
    one = message()
    del one.regions.owner[1:], one.regions.first_node[1:], one.regions.end_node[1:]
    del one.regions.first_argument[1:], one.regions.arguments[1:]
    return spoiled(
        lambda m: (
            m.regions.owner.extend(range(2, depth)),
            m.regions.first_node.extend(range(3, depth + 1)),
            m.regions.end_node.extend([6] * (depth - 2)),
            m.regions.first_argument.extend([0] * (depth - 2)),
            m.regions.arguments.extend([0] * (depth - 2)),
        )
    )


HOSTILE = {
    "empty": b"",
    "random bytes": random.Random(1).randbytes(5000),
    "a truncated message": encoded()[:-7],
    "another message": pb.HelloRequest(holder="x").SerializeToString(),
    "calls in a cycle": self_calling(),
    "an operand that doesn't exist": spoiled(lambda m: m.operands.__setitem__(0, 10**9)),
    "a string that doesn't exist": spoiled(lambda m: m.nodes.op.__setitem__(2, 4_000_000_000)),
    "a use before the definition": spoiled(lambda m: m.operands.__setitem__(0, 4)),
    "two definitions": spoiled(lambda m: m.nodes.first_result.__setitem__(3, 2)),
    "columns of two lengths": spoiled(lambda m: m.nodes.effect.append(0)),
    "a region that ends outside": spoiled(lambda m: m.regions.end_node.__setitem__(1, 4000)),
    "regions that nest for ever": nested(5000),
    "a region that owns itself": spoiled(lambda m: m.regions.owner.__setitem__(1, 4)),
    "an entry that doesn't exist": spoiled(lambda m: setattr(m, "entry", 7)),
    "a version of tomorrow": spoiled(lambda m: setattr(m, "version", 99)),
    "a fragment without a buffer": spoiled(lambda m: m.inputs.fragments.add(buffer=10**6)),
    "a million fragments": spoiled(
        lambda m: m.inputs.fragments.extend([descriptor_pb2.Fragment()] * 100_000)
    ),
    "counts that overflow": spoiled(lambda m: m.nodes.results.__setitem__(2, 2**31)),
    "millions of strings": spoiled(lambda m: m.strings.extend([""] * 5_000_000)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_descriptor_is_invalid(what: str) -> None:
    answer, kept = canonicalize_bytes(HOSTILE[what])
    assert list(answer) == ["invalid"] and answer["invalid"] and not kept


def test_mutated_descriptors_never_fail_otherwise() -> None:
    """Bit flips of a sound one: an answer, or INVALID_ARGUMENT."""
    rng, sound = random.Random(7), encoded(3, 3)
    kinds = set()
    for _ in range(1500):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        answer, _ = canonicalize_bytes(bytes(data))
        kinds.add(next(iter(answer)))
    assert kinds == {"rewrites", "invalid"}


def describe(daemon, data: bytes, lookup_id: str, raw_digest: str = "") -> pb.LookupReply:
    host = pb.Host(mode=pb.MODE_CANONICAL)
    if raw_digest:
        daemon.cache.Lookup(
            pb.LookupRequest(lookup_id=lookup_id, host=host, raw_digest=raw_digest), timeout=30
        )
    request = pb.LookupRequest(lookup_id=lookup_id, host=host, descriptor=data)
    return daemon.cache.Lookup(request, timeout=30)


def test_the_daemon_says_invalid_argument_and_goes_on(shared_daemon) -> None:
    for number, data in enumerate([*HOSTILE.values(), b"\0" * (MAX_DESCRIPTOR_BYTES + 1)]):
        with pytest.raises(grpc.RpcError) as caught:
            describe(shared_daemon, data, f"hostile-{number}")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert describe(shared_daemon, encoded(), "sound").rewrites.rewrites


def test_a_big_descriptor_stalls_nobody(shared_daemon, new_record, asking) -> None:
    """While workers canonicalize 19 000 ops again and again, others' lookups are answered: many of them per job."""
    big = encoded(80, 238)
    describe(shared_daemon, big, "first")  # starts a worker
    other = asking(shared_daemon.cache, new_record)
    done, answered = threading.Event(), []

    def canonicalize() -> None:
        for number in range(4):
            assert describe(shared_daemon, big, f"big-{number}").rewrites.rewrites
        done.set()

    thread = threading.Thread(target=canonicalize)
    thread.start()
    while not done.is_set():
        answered.append(other.lookup().WhichOneof("answer"))
    thread.join()
    # Were it done on the loop, a lookup would be answered between two jobs only: about one for each.
    assert set(answered) == {"lease"} and len(answered) > 20


# --- what is remembered --------------------------------------------------------------------------


def test_the_second_process_gets_the_rewrites_without_a_descriptor(shared_daemon) -> None:
    digest = "ab" * 31 + "01"
    first = describe(shared_daemon, encoded(), "alias-1", digest)
    request = pb.LookupRequest(
        lookup_id="alias-2", host=pb.Host(mode=pb.MODE_CANONICAL), raw_digest=digest
    )
    assert shared_daemon.cache.Lookup(request, timeout=30).rewrites == first.rewrites
    request.host.mode = pb.MODE_EXACT
    request.lookup_id = "alias-3"
    reply = shared_daemon.cache.Lookup(request, timeout=30)
    assert reply.WhichOneof("answer") == "rewrites" and not reply.rewrites.rewrites


def test_an_alias_of_another_mode_is_ignored(start_daemon) -> None:
    exact = start_daemon("--mode=exact")
    reply = describe(exact, encoded(), "exact", "ab" * 32)
    assert reply.mode == pb.MODE_EXACT and not reply.rewrites.rewrites
    # Nothing was canonicalized, so a hostile descriptor is not looked at either.
    assert not describe(exact, b"\xff", "bytes").rewrites.rewrites


def test_raw_programs_are_found_by_key(shared_daemon, new_record) -> None:
    from coldstart.identity.key import key_of
    from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc

    admin = admin_pb2_grpc.AdminStub(shared_daemon.channel)
    key = key_of(new_record)
    for rank in (1, 2):
        describe(shared_daemon, encoded(1, 2, rank), f"by-key-{rank}", f"{rank:064x}")
        shared_daemon.cache.Lookup(
            pb.LookupRequest(lookup_id=f"by-key-{rank}", record=wire.record_to_pb(new_record)),
            timeout=30,
        )
    reply = admin.GetDescriptor(admin_pb2.GetDescriptorRequest(key=key), timeout=30)
    assert [p.raw_digest for p in reply.programs] == [f"{2:064x}", f"{1:064x}"]
    assert zlib.decompress(reply.programs[1].descriptor) == encoded(1, 2, 1)
    assert reply.remembered == 2 and reply.programs[0].rewrites[0].rule == "unread-fragment-offset"
    one = admin.GetDescriptor(admin_pb2.GetDescriptorRequest(key=key, limit=1), timeout=30)
    assert len(one.programs) == 1 and one.remembered == 2
    # A record is known of what was only asked for.
    assert shared_daemon.cache.GetRecord(pb.GetRecordRequest(key=key), timeout=30).found


async def test_a_daemon_in_a_large_process_keeps_its_workers() -> None:
    """What a worker inherits through fork and exec says nothing about what it holds."""
    ballast = bytearray(600 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    async with canonicalizer(workers=1) as canonicalize:
        for _ in range(3):
            await canonicalize(encoded())
        assert canonicalize.started == 1
    del ballast
