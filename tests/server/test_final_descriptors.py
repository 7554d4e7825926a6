"""Final descriptors: proto/README.md's example as it stands there, hostile ones, and what `explain` says of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import views_runtime as views
from google.protobuf import text_format
from views_runtime import attention

from coldstart import wire
from coldstart.config import DaemonConfig
from coldstart.errors import InvalidRequest
from coldstart.identity.final import Described
from coldstart.lease.board import MemoryLeaseBoard
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import descriptor_pb2 as graph
from coldstart.server.answers import Asker, Canonicalized, NoRewrites
from coldstart.server.canonicalizer_worker import canonicalize_bytes
from coldstart.server.frames import Job
from coldstart.server.holdings import Holdings, OperationCounts, Place
from coldstart.server.lookups import Lookups
from coldstart.server.tally import Ending, Tally
from coldstart.store.memory import MemoryTier

README = (Path(__file__).parents[2] / "proto" / "README.md").read_text()


def example(name: str, message):
    """A block of proto/README.md, as a message."""
    (text,) = re.findall(rf"```textproto\n# {name}\n(.*?)```", README, re.DOTALL)
    return text_format.Parse(text, message)


def descriptor() -> graph.GraphDescriptor:
    return example("GraphDescriptor", graph.GraphDescriptor())


def record() -> pb.KeyRecord:
    return example("KeyRecord", pb.KeyRecord())


def ask(daemon, one: graph.GraphDescriptor | bytes, beside: pb.KeyRecord | None = None, **more):
    data = one if isinstance(one, bytes) else one.SerializeToString()
    program = pb.FinalProgram(descriptor=data, record=beside or record())
    host = pb.Host(mode=more.pop("mode", pb.MODE_CANONICAL))
    request = pb.LookupRequest(
        lookup_id=more.pop("lookup_id", uuid.uuid4().hex), host=host, final_program=program, **more
    )
    return daemon.cache.Lookup(request, timeout=60)


def refused(daemon, *asked, **more) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        ask(daemon, *asked, **more)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = caught.value.details()
    assert details and "\n" not in details and len(details) < 1000
    return details


# --- the documentation ---------------------------------------------------------------------------


def test_the_example_is_answered_as_documented(shared_daemon) -> None:
    reply = ask(shared_daemon, descriptor())
    reply.lease.lease_id = "..."
    assert reply == example("LookupReply", pb.LookupReply())
    # Whoever comes next is told who compiles; the example's asker gave no name.
    assert ask(shared_daemon, descriptor()).wait.holder == "somebody unnamed"


def test_the_test_client_emits_the_example() -> None:
    assert views.describe(attention(32)) == descriptor()


# The messages that proto/README.md names, and what brings them about.
SPOILT: dict[str, Callable[[graph.GraphDescriptor, pb.KeyRecord], object]] = {
    "it can't be parsed as a GraphDescriptor": lambda d, r: None,  # cut short below
    "the descriptor of a final_program says final = true: no module stands behind it": (
        lambda d, r: d.ClearField("final")
    ),
    "3 bytes of it are fields that aren't known here; leave them out, or update the daemon": (
        lambda d, r: d.MergeFromString(b"\x98\x06\x05")  # field 99
    ),
    "strings[0] is the empty string": lambda d, r: d.strings.pop(0),
    "the columns of nodes differ in length (4)": lambda d, r: d.nodes.effect.append(0),
    "nodes.operands doesn't add up to the 3 operands given": (
        lambda d, r: d.nodes.operands.__setitem__(3, 0)
    ),
    "a value is used before its definition or out of its scope": (
        lambda d, r: d.operands.__setitem__(1, 2)
    ),
    "1 inputs are given for 2 arguments of the entry": (
        lambda d, r: (d.inputs.alias_output.pop(), d.inputs.donated.pop(), d.inputs.fragments.pop())
    ),
    "the fragment of input 0 has other numbers of sizes and strides": (
        lambda d, r: d.inputs.fragments[0].sizes.append(1)
    ),
    "reads are not sorted by operand": lambda d, r: d.reads.operand.__setitem__(0, 2),
    "target is empty; it says what is compiled for and with which build of the compiler": (
        lambda d, r: r.components[1].ClearField("value")
    ),
    "the program of a final program is made from its descriptor; leave the component out": (
        lambda d, r: r.components.add(name="program", value="0" * 64)
    ),
}


def test_every_error_that_is_documented_is_tried() -> None:
    table = README.split("| message | what is wrong |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE) == list(SPOILT)


@pytest.mark.parametrize("message", SPOILT)
def test_an_error_reads_as_documented(shared_daemon, message: str) -> None:
    one, beside = descriptor(), record()
    SPOILT[message](one, beside)
    data = one.SerializeToString()
    assert refused(shared_daemon, data[:-3] if "parsed" in message else data, beside) == message


# --- beside the example --------------------------------------------------------------------------


def test_a_final_descriptor_is_not_asked_about_as_one_that_steers(shared_daemon) -> None:
    request = pb.LookupRequest(
        lookup_id="steering",
        host=pb.Host(mode=pb.MODE_CANONICAL),
        descriptor=descriptor().SerializeToString(),
    )
    with pytest.raises(grpc.RpcError) as caught:
        shared_daemon.cache.Lookup(request)
    assert "asked about as final_program" in caught.value.details()


def test_attributes_have_one_spelling(shared_daemon) -> None:
    one = descriptor()
    one.attributes.name.append(8)
    one.attributes.value.append(9)
    one.nodes.attributes[2] = 2
    assert "stands there twice" in refused(shared_daemon, one)


def test_another_namespace_or_mode(shared_daemon, start_daemon) -> None:
    documented = example("LookupReply", pb.LookupReply()).key
    reply = ask(shared_daemon, descriptor(), namespace="theirs")
    assert (reply.refused.reason, reply.key) == (pb.REASON_ROLE, documented)
    watching = start_daemon("--mode=observe")
    seen = ask(watching, descriptor())
    assert seen.refused.reason == pb.REASON_MODE_OBSERVE
    assert seen.record.components[0].value.startswith("final:exact:")
    assert watching.stats().leases == 0


async def test_a_lookup_that_ends_while_it_is_canonicalized_takes_no_lease() -> None:
    board = MemoryLeaseBoard()
    config = DaemonConfig(listen=("unix:///x",), store=("memory://",))
    holdings = Holdings(MemoryTier(), None, OperationCounts(), [Place("memory", "memory://")])

    class Slow(NoRewrites):
        async def __call__(self, descriptor: bytes, job: Job = Job.REWRITES) -> Canonicalized:
            assert job is Job.FINAL
            await lookups.finish("ended", "", Ending(Outcome.REFUSED, Reason.UNSHAREABLE))
            return Canonicalized(final=Described("0" * 64, (), "1" * 64))

    lookups = Lookups(config, holdings, board, Tally(), canonicalize=Slow())
    parts = wire.final_parts_from_pb(record())
    with pytest.raises(InvalidRequest, match="has ended"):
        await lookups.ask_final(Asker("ended"), b"", parts)
    assert lookups.open_leases == 0 == lookups.open_lookups
    await board.close()


def test_what_can_t_be_canonicalized_has_no_key(start_daemon) -> None:
    """More rewrites than are sent: refused, and the reason says that it is no fault of the descriptor."""
    daemon = start_daemon()
    views_ = [views.View("q", 32) for _ in range(20_001)]
    many = views.Program((*views_, views.View("k")), (), (20_001,))
    reply = ask(daemon, views.describe(many))
    assert reply.refused.reason == pb.REASON_UNSHAREABLE and not reply.key
    assert "20001 rewrites" in reply.refused.message and not reply.HasField("record")
    assert [e.kind for e in daemon.stats().events] == ["not-canonicalized"]


# --- hostile -------------------------------------------------------------------------------------


def sound(**changed: object) -> graph.GraphDescriptor:
    one = descriptor()
    for name, value in changed.items():
        setattr(one, name, value)
    return one


def with_fragment(**changed: object) -> graph.GraphDescriptor:
    one = descriptor()
    for name, value in changed.items():
        if isinstance(value, list):
            del getattr(one.inputs.fragments[0], name)[:]
            getattr(one.inputs.fragments[0], name).extend(value)
        else:
            setattr(one.inputs.fragments[0], name, value)
    return one


HOSTILE = {
    "an input that isn't there": with_fragment(input=2),
    "an input of 2^32-1": with_fragment(input=2**32 - 1),
    "two fragments of an input": with_fragment(input=1),
    "a negative offset": with_fragment(offset=-1),
    "the smallest offset": with_fragment(offset=-(2**63)),
    "a buffer that isn't there": with_fragment(buffer=10**6),
    "more dimensions than there are": with_fragment(sizes=[1] * 100_000, strides=[1] * 100_000),
    "an entry that isn't there": sound(entry=2**32 - 1),
    "a version of tomorrow": sound(version=2),
    "no node": graph.GraphDescriptor(version=1, final=True, strings=[""]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_final_descriptor_is_invalid(shared_daemon, what: str) -> None:
    assert refused(shared_daemon, HOSTILE[what])


def test_numbers_at_their_ends_are_answered(shared_daemon) -> None:
    for one in (
        with_fragment(offset=2**63 - 1),
        with_fragment(sizes=[2**64 - 1, 0], strides=[2**63 - 1, 2**63 - 1]),
        with_fragment(strides=[-(2**63), 1]),
        sound(framework="x" * 100_000, program_name="\x1b[2J\n" * 1000),
        sound(framework=""),
    ):
        reply = ask(shared_daemon, one)
        assert reply.key
        assert reply.record.program_name.isprintable()
        assert all(len(note) < 600 and note.isprintable() for note in reply.record.notes)
        assert len(reply.record.components[0].detail) < 600


@pytest.mark.parametrize("job", [Job.FINAL, Job.FINAL_EXACT])
def test_every_number_changed_is_answered_or_invalid(job: Job) -> None:
    """Each number of the message, to each of a few others: never anything but an answer or one line."""
    base = descriptor()
    kinds = set()
    for place in places(base):
        for value in (0, 1, 2, 5, 2**31 - 1, 2**31, 2**32 - 1):
            one = descriptor()
            if not put(one, place, value):
                continue
            answer, _ = canonicalize_bytes(one.SerializeToString(), job)
            kind = next(iter(answer))
            kinds.add(kind)
            assert kind != "failed", (place, value, answer)
    assert kinds == {"rewrites", "invalid"}


def places(one: graph.GraphDescriptor) -> list[tuple[str, str, int]]:
    found = []
    for outer in ("values", "nodes", "attributes", "regions", "functions", "inputs", "reads"):
        message = getattr(one, outer)
        for field, numbers in message.ListFields():
            if field.name != "fragments":
                found += [(outer, field.name, i) for i in range(len(numbers))]
    return found + [("", "operands", i) for i in range(len(one.operands))]


def put(one: graph.GraphDescriptor, place: tuple[str, str, int], value: int) -> bool:
    outer, name, at = place
    try:
        getattr(getattr(one, outer) if outer else one, name)[at] = value
    except (ValueError, TypeError):
        return False  # this field can't hold it
    return True
