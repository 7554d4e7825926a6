"""A runtime that is not JAX against a real daemon: what may be shared is, what may not never."""

from __future__ import annotations

import ast
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import views_runtime as views
from processes import Daemon
from views_runtime import Obtained, Participant, Program, View, attention

from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import descriptor_pb2 as graph

OFFSETS = range(0, 16 * 32, 32)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests but those that count."""
    found = Daemon(tmp_path_factory.mktemp("d"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def one(shared: Daemon, request: pytest.FixtureRequest) -> Iterator[Participant]:
    """With keys of its own."""
    made = Participant(shared.address, options=request.node.name)
    yield made
    made.close()


def memory(rank: int) -> dict[str, np.ndarray]:
    """What lies in one participant's buffers; nobody else's holds the same."""
    random = np.random.default_rng(rank)
    return {name: random.standard_normal(16 * 32) for name in ("q", "k")}


def check(obtained: Obtained, program: Program, rank: int) -> None:
    """It computes what this participant's own source says."""
    ours = views.run(obtained.executable, memory(rank))
    for a, b in zip(ours, views.run(views.compiled(program), memory(rank)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_client_knows_the_wire_only() -> None:
    tree = ast.parse(Path(views.__file__).read_text())
    named = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    ours = {name for name in named if name.startswith("coldstart")}
    assert ours == {
        f"coldstart.rpc.v1.{name}" for name in ("cache_pb2", "cache_pb2_grpc", "descriptor_pb2")
    }


def test_sparse_participants_compile_once(daemon) -> None:
    """16 offsets, one key: the first compiles, the others load its bytes, and all compute what they should."""
    obtained = []
    for rank, offset in enumerate(OFFSETS):
        participant = Participant(daemon.address)
        program = attention(offset)
        obtained.append(participant.obtain(program))
        participant.close()
        check(obtained[-1], program, rank)
    assert len({o.key for o in obtained}) == 1
    assert [o.how for o in obtained] == ["lease"] + ["hit"] * 15
    assert sum(o.compiles for o in obtained) == 1
    assert len({o.executable for o in obtained}) == 1
    assert obtained[0].rewrites == () and obtained[1].rewrites == ("unread-fragment-offset",)
    assert len(daemon.artifacts()) == 1


def test_dense_participants_compile_each(daemon) -> None:
    obtained = []
    for rank, offset in enumerate(OFFSETS):
        participant = Participant(daemon.address)
        program = attention(offset, dense=True)
        obtained.append(participant.obtain(program))
        participant.close()
        check(obtained[-1], program, rank)
    assert len({o.key for o in obtained}) == 16 == sum(o.compiles for o in obtained)
    assert not any(o.rewrites for o in obtained)


def test_participants_that_start_together_compile_once(daemon) -> None:
    start, obtained = threading.Barrier(16), []

    def participate(offset: int) -> None:
        participant = Participant(daemon.address)
        start.wait()
        obtained.append(participant.obtain(attention(offset)))
        participant.close()

    threads = [threading.Thread(target=participate, args=(offset,)) for offset in OFFSETS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({o.key for o in obtained}) == 1 and len(obtained) == 16
    assert sum(o.compiles for o in obtained) == 1
    assert Counter(o.how for o in obtained)["lease"] == 1


def third(offset: int, **other: object) -> Program:
    """With another view of q as a third input, which no op takes."""
    program = attention(offset)
    inputs = (*program.inputs, View("q", **other))
    return replace(program, inputs=inputs, outputs=(3,))


def op(offset: int, **changed: object) -> Program:
    program = attention(offset)
    return replace(program, ops=(replace(program.ops[0], **changed),))


def reader(offset: int) -> Program:
    """A second op that reads the fragment."""
    program = attention(offset)
    dense = attention(offset, dense=True).ops[0]
    return replace(program, ops=(program.ops[0], dense), outputs=(2, 3))


LIVE = {
    "aliased": lambda o: attention(o, alias_output=0),
    "donated": lambda o: attention(o, donated=True),
    "another view of its buffer is donated": lambda o: third(o, donated=True),
    "another view of its buffer is aliased": lambda o: third(o, alias_output=0),
    "an output as well": lambda o: replace(attention(o), outputs=(2, 0)),
    "backwards": lambda o: attention(o + 31, strides=(8, -1)),
    "read by another op": reader,
    "read as far as anybody knows": lambda o: op(o, reads=(graph.READ_UNKNOWN, graph.READ_YES)),
    "no read set": lambda o: op(o, reads=()),
    "half a read set": lambda o: op(o, reads=(graph.READ_NO,)),
    "an op with an effect": lambda o: op(o, effect=graph.EFFECT_EFFECT),
}


@pytest.mark.parametrize("what", LIVE)
def test_a_fragment_that_may_matter_is_never_shared(one: Participant, what: str) -> None:
    programs = [LIVE[what](offset) for offset in (32, 64)]
    obtained = [one.obtain(program) for program in programs]
    assert obtained[0].key != obtained[1].key and not any(o.rewrites for o in obtained)
    for rank, (o, program) in enumerate(zip(obtained, programs, strict=True)):
        assert o.how == "lease"
        check(o, program, rank)


def test_an_untouched_third_view_keeps_nobody_from_sharing(one: Participant) -> None:
    """The twin of two rows above: it is the donation that matters, not the view."""
    assert len({one.obtain(third(offset)).key for offset in (32, 64)}) == 1


def test_a_pure_op_with_a_read_set_is_read_by_its_read_set(one: Participant) -> None:
    assert len({one.obtain(op(o, effect=graph.EFFECT_PURE)).key for o in (32, 64)}) == 1


OTHER = {
    "offset read": attention(32, dense=True),
    "size": attention(32, sizes=(2, 8)),
    "stride": attention(32, strides=(16, 1)),
    "dtype": attention(32, dtype="bf16"),
    "buffer": replace(attention(32), inputs=(View("v", 32), View("k"))),
    "attribute": op(32, attributes=(("branch", "sparse"), ("top_k", "2"))),
    "op": op(32, name="attend2"),
    "result type": op(32, type="bf16[4,8]"),
    "read set": op(32, reads=(graph.READ_NO, graph.READ_NO)),
    "operands": op(32, operands=(1, 1)),
    "outputs": replace(attention(32), outputs=(2, 2)),
    "inputs": replace(attention(32), inputs=(*attention(32).inputs, View("k", 8)), outputs=(3,)),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_program_is_never_shared(one: Participant, what: str) -> None:
    assert one.ask(OTHER[what]).key != one.ask(attention(32)).key


@pytest.mark.parametrize(
    "other",
    [{"target": "views-cpu;compiler=views-1.1"}, {"options": "O3"}, {"flags": "-f"}],
    ids=str,
)
def test_another_component_is_never_shared(one: Participant, other: dict) -> None:
    elsewhere = Participant(one.address, **{"options": one.options, **other})
    first, second = one.ask(attention(32)), elsewhere.ask(attention(32))
    assert first.key != second.key
    assert first.record.components[0] == second.record.components[0]
    elsewhere.close()


def test_names_are_for_people(one: Participant) -> None:
    assert one.ask(replace(attention(32), name="b")).key == one.ask(attention(32)).key


def test_exact_participants_keep_to_themselves(one: Participant) -> None:
    """Who allows no rewrites doesn't load what was compiled under some, even where its own program has none."""
    exact = Participant(one.address, options=one.options, mode=pb.MODE_EXACT)
    keys = [exact.obtain(attention(offset)).key for offset in (0, 32, 64)]
    assert len({*keys, one.obtain(attention(0)).key}) == 4
    again = exact.obtain(attention(0))
    assert again.how == "hit" and again.key == keys[0] and not again.rewrites
    exact.close()


# --- what a client can't do ----------------------------------------------------------------------


def test_a_publish_is_checked_against_what_the_daemon_made(one: Participant) -> None:
    """Another program's digest, record or target under this key: refused, and the lease goes on."""
    asked, other = one.ask(attention(32), "first"), one.ask(attention(32, dense=True), "second")
    lease = asked.lease.lease_id
    executable = views.compiled(attention(32))
    good = one.header(asked, executable)
    for header, record in (
        (one.header(other, executable), asked.record),
        (good, other.record),
        (good.replace(b'"target":"views', b'"target":"other'), asked.record),
        (
            good.replace(asked.record.components[0].value[-64:].encode(), b"0" * 64),
            asked.record,
        ),
    ):
        start = pb.PublishStart(lookup_id="first", lease_id=lease, header=header, record=record)
        with pytest.raises(grpc.RpcError) as refused:
            one.cache.Upload(
                pb.UploadRequest(upload_id="u", start=start, data=executable, last=True)
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert one._publish("first", lease, asked, executable).digest
    assert one.ask(attention(64)).HasField("hit")


def components(**values: str) -> list[pb.Component]:
    return [pb.Component(name=name, value=value) for name, value in values.items()]


def test_a_client_does_not_choose_the_program(one: Participant) -> None:
    descriptor = views.describe(attention(32)).SerializeToString()
    rest = {"options": "O2", "target": views.TARGET, "flags": "", "callbacks": "0"}
    for values, word in (
        ({"program": "0" * 64, **rest}, "leave the component out"),
        ({**rest, "program": "0" * 64}, "leave the component out"),
        ({**rest, "target": ""}, "target is empty"),
        ({"target": "t", "options": "", "flags": "", "callbacks": "0"}, "in this order"),
        ({}, "in this order"),
    ):
        record = pb.KeyRecord(scheme="cs1", components=components(**values))
        request = pb.LookupRequest(
            lookup_id="choose", final_program=pb.FinalProgram(descriptor=descriptor, record=record)
        )
        with pytest.raises(grpc.RpcError) as refused:
            one.cache.Lookup(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert word in refused.value.details()


def test_a_raw_digest_leads_no_final_program_anywhere(one: Participant) -> None:
    """What a client calls the same is not the same: the name it asked by first is not an alias of the key."""
    raw = "ab" * 32
    for lookup_id, program in (("a", attention(32, dense=True)), ("b", attention(64, dense=True))):
        by_raw = pb.LookupRequest(
            lookup_id=lookup_id, host=pb.Host(mode=pb.MODE_CANONICAL), raw_digest=raw
        )
        assert one.cache.Lookup(by_raw).HasField("need_descriptor")
        assert one.ask(program, lookup_id).HasField("lease")


def test_one_id_is_one_program(one: Participant) -> None:
    one.ask(attention(32), "same")
    assert one.ask(attention(64), "same").HasField("lease")  # the same key
    with pytest.raises(grpc.RpcError) as refused:
        one.ask(attention(64, dense=True), "same")
    assert "a new compile request takes a new lookup id" in refused.value.details()
