"""The programs of a chaos run, by number: what each is asked for by, its key, its bytes. No JAX, and no module.

    number % 4    asked by
    0, 2          raw digest, then descriptor: it holds the offset of the participant's own fragment, which nobody
                  reads; in 2 that of both clients of a daemon is the same, in 0 each has another
    1             raw digest: nothing in it may be rewritten
    3             its record at once, as programs of several processes are

So a hit by raw digest is one of three ways to be served, and three of four programs are asked so whenever their daemon
remembers them.
"""

from __future__ import annotations

import functools
import hashlib
import random
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_plan import DAEMONS

if TYPE_CHECKING:  # brings NumPy, which a client that describes nothing needn't have
    from coldstart.identity.descriptor import GraphDescriptor

from coldstart.identity.key import Component, KeyRecord, key_of

TARGET = '{"platform": "cpu"}'
SURROUNDINGS = {"options": "chaos", "target": TARGET, "flags": "", "callbacks": "0"}


@dataclass(frozen=True)
class CompileRequest:
    """A program as one participant has it."""

    number: int
    rank: int = 0

    platform = "cpu"
    compile_only = False
    backend = types.SimpleNamespace(platform_version="sleeps")

    @property
    def module_name(self) -> str:
        return f"program-{self.number}"

    @property
    def computation(self) -> CompileRequest:
        """What JAX's modules are to the client."""
        return self

    @property
    def multi_process(self) -> bool:
        return self.number % 4 == 3

    @property
    def has_fragment(self) -> bool:
        return self.number % 2 == 0

    @property
    def offset(self) -> int:
        """Of the fragment."""
        rank = self.rank % DAEMONS if self.number % 4 == 2 else self.rank
        return 8 * (rank + 1)

    @property
    def raw_digest(self) -> str:
        about = f"raw {self.number}" + f" from {self.offset}" * self.has_fragment
        return hashlib.sha256(about.encode()).hexdigest()

    @property
    def rewrites(self) -> list[tuple[str, str]]:
        """The edits that make it everybody's: attribute and value."""
        if not self.has_fragment:
            return []
        zeros = {"start_indices": "array<i64: 0>", "limit_indices": "array<i64: 8>"}
        return list(zeros.items())

    @property
    def record(self) -> KeyRecord:
        """Of what is compiled once it is rewritten."""
        return record_of(self.number)

    @property
    def own_record(self) -> KeyRecord:
        """Of what is compiled as it is."""
        return record_of(self.number, f" from {self.offset}" * self.has_fragment)

    @property
    def keys(self) -> list[str]:
        """Any other one is another program's."""
        return [key_of(self.record), key_of(self.own_record)]


@dataclass(frozen=True)
class Executable:
    """What a compile came to, or what was loaded."""

    key: str
    nonce: str  # of the one compile that made it

    @property
    def data(self) -> bytes:
        """As it is stored. One program in eight is large."""
        dice = random.Random(f"{self.key} {self.nonce}")
        large = int(self.key[-1], 16) % 8 == 0
        size = dice.randrange(1_200_000, 1_800_000) if large else dice.randrange(2_000, 40_000)
        return f"{self.key}\n{self.nonce}\n".encode() + dice.randbytes(size)


class WrongBytes(Exception):
    """The gates let through what nobody compiled."""


@functools.cache
def record_of(number: int, how: str = "") -> KeyRecord:
    program = hashlib.sha256(f"program {number}{how}".encode()).hexdigest()
    values = {"program": program} | SURROUNDINGS
    components = tuple(Component(name, value) for name, value in values.items())
    return KeyRecord(components, program_name=f"program-{number}")


def fits(request: CompileRequest, rewrites: Sequence[object]) -> bool:
    """Are these the edits of this very program? Positions are the same in all of them, values are not."""
    made = {(getattr(r, "attribute", ""), getattr(r, "value", "")) for r in rewrites}
    return made == set(request.rewrites)


def describe(request: CompileRequest) -> GraphDescriptor:
    """Its descriptor: one function, which returns its argument; with a slice of that beside it, where it has one."""
    from coldstart.identity.descriptor import DescriptorBuilder

    builder = DescriptorBuilder("chaos", request.module_name)
    text = builder.string
    program, _ = builder.node(text("builtin.module"))
    top, _ = builder.open_region(program)
    function, _ = builder.node(text("func.func"))
    builder.function(function, "main", public=True)
    body, value = builder.open_region(function, [text("tensor<4096xf32>")])
    builder.input()
    if request.has_fragment:
        numbers = {
            "limit_indices": request.offset + 8,
            "start_indices": request.offset,
            "strides": 1,
        }
        about = [(text(name), text(f"array<i64: {n}>")) for name, n in numbers.items()]
        builder.node(text("stablehlo.slice"), [value], [text("tensor<8xf32>")], about)
    builder.node(text("func.return"), [value])
    builder.close_region(body)
    builder.close_region(top)
    return builder.build()


def read(data: bytes) -> Executable:
    """Raises WrongBytes where they aren't, to the last byte, what some compile made."""
    key, _, rest = data.partition(b"\n")
    nonce, _, _ = rest.partition(b"\n")
    found = Executable(key.decode(errors="replace"), nonce.decode(errors="replace"))
    if len(found.key) < 10 or found.data != data:
        raise WrongBytes(f"{len(data)} bytes that begin with {data[:80]!r}")
    return found
