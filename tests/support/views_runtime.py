"""A made-up runtime, and its client of the cache, written from the wire's documentation alone (proto/README.md).

Its inputs are views: (buffer, offset, sizes, strides) of whatever lies in memory. Its one custom op, `attend`, declares
which operands it reads. "Compiling" writes the program down with every view baked in, as a compiler would bake
addresses, so an artifact that was wrongly shared computes with somebody else's rows, and a test sees it.

It knows protobuf, gRPC and NumPy, and nothing of `coldstart` but the generated messages.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import grpc
import numpy as np

from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc
from coldstart.rpc.v1 import descriptor_pb2 as graph

FRAMEWORK = "views"
TARGET = "views-cpu;compiler=views-1.0"


@dataclass(frozen=True)
class View:
    """One input."""

    buffer: str
    offset: int = 0
    sizes: tuple[int, ...] = (4, 8)
    strides: tuple[int, ...] = (8, 1)
    dtype: str = "f32"
    alias_output: int = -1
    donated: bool = False

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"


@dataclass(frozen=True)
class Op:
    """One op. Values are numbered: inputs first, then one result per op."""

    name: str
    operands: tuple[int, ...]
    type: str
    attributes: tuple[tuple[str, str], ...] = ()  # sorted by name
    reads: tuple[int, ...] = ()  # a row per operand: READ_*; (): nothing is declared
    effect: int = graph.EFFECT_BY_NAME


@dataclass(frozen=True)
class Program:
    """What a participant wants to run."""

    inputs: tuple[View, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    name: str = "attention"


def attention(offset: int, *, dense: bool = False, **own: object) -> Program:
    """A participant's own rows of q, and all of k; the sparse branch of `attend` reads k only."""
    mine = replace(View("q", offset), **own)
    reads = (graph.READ_YES if dense else graph.READ_NO, graph.READ_YES)
    branch = "dense" if dense else "sparse"
    op = Op("attend", (0, 1), "f32[4,8]", (("branch", branch),), reads)
    return Program((mine, View("k")), (op,), (2,))


# --- describing ----------------------------------------------------------------------------------


def describe(program: Program) -> graph.GraphDescriptor:
    """One function, its ops in order, by hand."""
    d = graph.GraphDescriptor(version=1, framework=FRAMEWORK, program_name=program.name, final=True)
    strings = {"": 0}

    def text(one: str) -> int:
        return strings.setdefault(one, len(strings))

    def node(op: str, results: int, first: int, operands: Sequence[int], effect: int = 0) -> None:
        d.nodes.op.append(text(op))
        d.nodes.effect.append(effect)
        d.nodes.first_result.append(first)
        d.nodes.results.append(results)
        d.nodes.operands.append(len(operands))
        d.operands.extend(operands)

    def value(type_: str) -> None:
        d.values.type.append(text(type_))
        d.values.sharding.append(0)

    node("views.program", 0, 0, ())
    node("views.function", 0, 0, ())
    d.nodes.attributes.extend([0, 0])
    for view in program.inputs:
        value(view.type)
        d.inputs.alias_output.append(view.alias_output)
        d.inputs.donated.append(view.donated)
    for index, view in enumerate(program.inputs):
        d.inputs.fragments.add(
            input=index,
            buffer=text(view.buffer),
            offset=view.offset,
            sizes=view.sizes,
            strides=view.strides,
        )
    for op in program.ops:
        for k, state in enumerate(op.reads):
            d.reads.operand.append(len(d.operands) + k)
            d.reads.state.append(state)
            d.reads.reason.append(text(f"{op.name} says so"))
        node(f"views.{op.name}", 1, len(d.values.type), op.operands, op.effect)
        value(op.type)
        for name, said in op.attributes:
            d.attributes.name.append(text(name))
            d.attributes.value.append(text(said))
        d.nodes.attributes.append(len(op.attributes))
    node("func.return", 0, 0, program.outputs)
    d.nodes.attributes.append(0)
    last = len(d.nodes.op)
    for owner, first, arguments in ((0, 1, 0), (1, 2, len(program.inputs))):
        d.regions.owner.append(owner)
        d.regions.first_node.append(first)
        d.regions.end_node.append(last)
        d.regions.first_argument.append(0)
        d.regions.arguments.append(arguments)
    d.functions.node.append(1)
    d.functions.name.append(text("main"))
    d.functions.public.append(True)
    d.strings.extend(strings)
    return d


def rewritten(program: Program, rewrites: Sequence[pb.Rewrite]) -> Program:
    """The program that is compiled: with the views where the daemon says."""
    inputs = list(program.inputs)
    for rewrite in rewrites:
        if rewrite.attribute != "fragment.offset" or rewrite.function != "main":
            raise ValueError(f"this runtime can't make the rewrite {rewrite}")
        inputs[rewrite.op] = replace(inputs[rewrite.op], offset=int(rewrite.value))
    return replace(program, inputs=tuple(inputs))


# --- running -------------------------------------------------------------------------------------


def compiled(program: Program) -> bytes:
    """An executable: what it does is all in here, views included."""
    inputs = [[v.buffer, v.offset, v.sizes, v.strides] for v in program.inputs]
    ops = [[op.name, op.operands, dict(op.attributes)] for op in program.ops]
    return json.dumps([inputs, ops, program.outputs]).encode()


def run(executable: bytes, buffers: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Execute on one participant's memory."""
    inputs, ops, outputs = json.loads(executable)
    values = []
    for buffer, offset, sizes, strides in inputs:
        at = np.full(sizes, offset)
        for axis, stride in enumerate(strides):
            shape = [-1 if a == axis else 1 for a in range(len(sizes))]
            at = at + (np.arange(sizes[axis]) * stride).reshape(shape)
        values.append(buffers[buffer][at])
    for name, operands, attributes in ops:
        assert name == "attend"
        own, keys = (values[v] for v in operands)
        values.append(keys * 2 + (own if attributes["branch"] == "dense" else 0))
    return [values[v] for v in outputs]


# --- the client ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Obtained:
    """How a participant came by its executable."""

    key: str
    how: str  # hit, lease, wait, refused: the first answer
    executable: bytes
    compiles: int
    rewrites: tuple[str, ...] = ()  # rules


@dataclass
class Participant:
    """One process's use of one daemon."""

    address: str
    target: str = TARGET
    options: str = "O2"
    flags: str = ""
    callbacks: str = "0"
    mode: int = pb.MODE_CANONICAL
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(self.address)
        self.cache = cache_pb2_grpc.CacheStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def ask(self, program: Program, lookup_id: str = "") -> pb.LookupReply:
        record = pb.KeyRecord(scheme="cs1", program_name=program.name)
        for name in ("options", "target", "flags", "callbacks"):
            record.components.add(name=name, value=getattr(self, name))
        descriptor = describe(program).SerializeToString()
        request = pb.LookupRequest(
            lookup_id=lookup_id or uuid.uuid4().hex,
            host=pb.Host(mode=self.mode),
            holder="views",
            final_program=pb.FinalProgram(descriptor=descriptor, record=record),
        )
        return self.cache.Lookup(request, timeout=60)

    def obtain(self, program: Program) -> Obtained:
        """From the cache, or by compiling, and then for everybody."""
        lookup_id = uuid.uuid4().hex
        reply = first = self.ask(program, lookup_id)
        how = first.WhichOneof("answer")
        rewrites = getattr(first, how).rewrites if how != "refused" else ()
        while reply.WhichOneof("answer") == "wait":
            reply = self.cache.Await(
                pb.AwaitRequest(lookup_id=lookup_id, key=first.key, max_wait_seconds=30), timeout=60
            )
        if reply.HasField("hit"):
            executable = self._fetch(lookup_id, first, json.loads(reply.hit.header))
            self._finish(lookup_id, first.key, pb.OUTCOME_HIT, pb.REASON_OK)
            compiles = 0
        else:
            executable, compiles = compiled(rewritten(program, rewrites)), 1
            if reply.HasField("lease"):
                self._publish(lookup_id, reply.lease.lease_id, first, executable)
                self._finish(lookup_id, first.key, pb.OUTCOME_MISS, reply.lease.reason)
            else:
                self._finish(lookup_id, first.key, pb.OUTCOME_REFUSED, reply.refused.reason)
        return Obtained(first.key, how, executable, compiles, tuple(r.rule for r in rewrites))

    def _fetch(self, lookup_id: str, asked: pb.LookupReply, header: dict) -> bytes:
        request = pb.FetchRequest(lookup_id=lookup_id, key=asked.key, digest=header["digest"])
        data = b"".join(chunk.data for chunk in self.cache.Fetch(request, timeout=60))
        size = int.from_bytes(data[4:8], "big")
        body, said, payload = data[8 : 8 + size], data[8 + size : 40 + size], data[40 + size :]
        assert data[:4] == b"CSA1" and hashlib.sha256(body).digest() == said
        assert json.loads(body) == header and header["key"] == asked.key
        program = asked.record.components[0]
        assert program.name == "program"
        assert header["module_digest"] == program.value.rpartition(":")[2]
        assert header["target"] == self.target and header["codec"] == "raw"
        assert hashlib.sha256(payload).hexdigest() == header["digest"]
        return payload

    def header(self, asked: pb.LookupReply, executable: bytes) -> bytes:
        digest = asked.record.components[0].value.rpartition(":")[2]
        said = {
            "format": 1,
            "key": asked.key,
            "module_digest": digest,
            "digest": hashlib.sha256(executable).hexdigest(),
            "payload_bytes": len(executable),
            "raw_bytes": len(executable),
            "codec": "raw",
            "platform": "views",
            "target": self.target,
            "partitions": 1,
            "replicas": 1,
            "callbacks": int(self.callbacks),
            "cpu_features": [],
            "compile_seconds": 1.5,
            "created_unix": 0.0,
            "producer": "",
            "program_name": asked.record.program_name,
            "compiler": "views-1.0",
        }
        return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()

    def _publish(
        self, lookup_id: str, lease_id: str, asked: pb.LookupReply, executable: bytes
    ) -> pb.PublishReply:
        start = pb.PublishStart(
            lookup_id=lookup_id,
            lease_id=lease_id,
            header=self.header(asked, executable),
            record=asked.record,
        )
        upload = pb.UploadRequest(
            upload_id=uuid.uuid4().hex, start=start, data=executable, last=True
        )
        return self.cache.Upload(upload, timeout=60).published

    def _finish(self, lookup_id: str, key: str, outcome: int, reason: int) -> None:
        request = pb.FinishRequest(
            lookup_id=lookup_id, key=key, outcome=outcome, reason=reason, program_name="attention"
        )
        self.cache.Finish(request, timeout=60)
