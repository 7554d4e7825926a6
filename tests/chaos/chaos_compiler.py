"""A compiler that sleeps, in the place of JAX: what the real Session needs of the files that touch it.

`install` puts these under the names of the client's own modules, before `session` is imported; everything between the
compile and the wire is then the product's, the dialogue about rewrites and hits by raw digest too. Two compiles of one
key give different bytes, which say whose they are.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import chaos_programs
from chaos_programs import SURROUNDINGS, TARGET, CompileRequest, Executable

from coldstart.errors import InvalidDescriptor
from coldstart.identity.key import KeyRecord, key_of


@dataclass(frozen=True)
class Identity:
    record: KeyRecord
    module: Any = None
    multi_process: bool = False
    partitions: int = 1
    replicas: int = 1
    callbacks: int = 0
    refusal: None = None
    refusal_detail: str = ""
    target: str = TARGET
    is_cpu: bool = True

    @property
    def key(self) -> str:
        return key_of(self.record)


@dataclass(frozen=True)
class Surroundings:
    multi_process: bool
    refusal: None = None


def surroundings(request: CompileRequest, rules_off: Any = ()) -> Surroundings:
    return Surroundings(request.multi_process)


def recalled(request: CompileRequest, around: Surroundings, record: KeyRecord) -> Identity | None:
    """As the client's: all but the program's digest must be this process's own."""
    found = {component.name: component.value for component in record.components}
    found.pop("program", None)
    return Identity(record) if found == SURROUNDINGS else None


def raw_digest(request: CompileRequest, around: Surroundings, *, canonical: bool) -> str:
    return request.raw_digest


def install(on_load: Any, on_misfit: Any) -> None:
    """Before `coldstart.client.session` is imported.

    Args:
        on_load: told of every executable that is loaded.
        on_misfit: told of rewrites that are not those of the program that they were handed out for.
    """

    def load(data: bytes, request: CompileRequest) -> Executable:
        found = chaos_programs.read(data)
        on_load(found, request)
        return found

    def identify(
        request: CompileRequest, *, rewrites: Sequence[Any] = (), around: Any = None
    ) -> Identity:
        several = request.multi_process
        if not rewrites:
            return Identity(request.own_record, multi_process=several)
        if not chaos_programs.fits(request, rewrites):
            on_misfit(request, rewrites)
            raise InvalidDescriptor("these are another program's rewrites")
        return Identity(request.record, module="rewritten", multi_process=several)

    @contextlib.contextmanager
    def stock_cache_watch() -> Iterator[Any]:
        yield lambda: False

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
        "jax_module",
        may_rewrite=lambda request: request.has_fragment,
        describe=chaos_programs.describe,
    )
    _put(
        "identify",
        Identity=Identity,
        Surroundings=Surroundings,
        identify=identify,
        raw_digest=raw_digest,
        recalled=recalled,
        surroundings=surroundings,
    )
    _put("group_watch", GroupWatch=GroupWatch, teller=lambda *parts: None)


def _put(name: str, **contents: Any) -> None:
    module = types.ModuleType(f"coldstart.client.{name}")
    module.__dict__.update(contents)
    sys.modules[module.__name__] = module
    import coldstart.client

    setattr(coldstart.client, name, module)
