"""A compiler that sleeps, in the place of JAX: what the real Session needs of the four files that touch it.

`install` puts these under the names of the client's own modules, before `session` is imported; everything between the
compile and the wire is then the product's. Two compiles of one key give different bytes, which say whose they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coldstart.identity.key import Component, KeyRecord, key_of

TARGET = '{"platform": "cpu"}'


@dataclass(frozen=True)
class CompileRequest:
    """A program by its number."""

    number: int

    platform = "cpu"
    compile_only = False
    backend = types.SimpleNamespace(platform_version="sleeps")

    @property
    def module_name(self) -> str:
        return f"program-{self.number}"

    @property
    def record(self) -> KeyRecord:
        return record_of(self.number)


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


@dataclass(frozen=True)
class Identity:
    record: KeyRecord
    partitions: int = 1
    replicas: int = 1
    callbacks: int = 0
    multi_process: bool = False
    module: Any = None
    refusal: None = None
    refusal_detail: str = ""
    target: str = TARGET
    is_cpu: bool = True

    @property
    def key(self) -> str:
        return key_of(self.record)


@dataclass(frozen=True)
class Surroundings:
    refusal: None = None
    multi_process: bool = False


class WrongBytes(Exception):
    """The gates let through what nobody compiled."""


def record_of(number: int) -> KeyRecord:
    program = hashlib.sha256(f"program {number}".encode()).hexdigest()
    values = {
        "program": program,
        "options": "chaos",
        "target": TARGET,
        "flags": "",
        "callbacks": "0",
    }
    components = tuple(Component(name, value) for name, value in values.items())
    return KeyRecord(components, program_name=f"program-{number}")


def read(data: bytes) -> Executable:
    """Raises WrongBytes where they aren't, to the last byte, what some compile made."""
    key, _, rest = data.partition(b"\n")
    nonce, _, _ = rest.partition(b"\n")
    found = Executable(key.decode(errors="replace"), nonce.decode(errors="replace"))
    if len(found.key) < 10 or found.data != data:
        raise WrongBytes(f"{len(data)} bytes that begin with {data[:80]!r}")
    return found


def install(on_load: Any) -> None:
    """Before `coldstart.client.session` is imported. `on_load` is told of every executable that is loaded."""

    def load(data: bytes, request: CompileRequest) -> Executable:
        found = read(data)
        on_load(found, request)
        return found

    @contextlib.contextmanager
    def stock_cache_watch() -> Iterator[Any]:
        yield lambda: False

    class Rewriting:
        def __init__(self, rules_off: Any) -> None: ...

        def digest(self, *request: Any, **how: Any) -> str:
            return ""  # nothing to rewrite: asked for by key record at once

    class GroupWatch:
        def __init__(self, telling: Any, *, strict: bool) -> None: ...

        def note(self, request: Any, identity: Any) -> None: ...

    _put(
        "jax_internals",
        CompileRequest=CompileRequest,
        serialize=lambda executable, request: executable.data,
        load=load,
        stock_cache_watch=stock_cache_watch,
    )
    _put(
        "identify",
        Identity=Identity,
        identify=lambda request, around: Identity(request.record),
        surroundings=lambda request, rules_off: Surroundings(),
    )
    _put("rewriting", Rewriting=Rewriting, described=lambda request: None)
    _put("group_watch", GroupWatch=GroupWatch, teller=lambda *parts: None)


def _put(name: str, **contents: Any) -> None:
    module = types.ModuleType(f"coldstart.client.{name}")
    module.__dict__.update(contents)
    sys.modules[module.__name__] = module
    import coldstart.client

    setattr(coldstart.client, name, module)
