"""Hits by raw digest in a hooked process: what they spare, and what they are never trusted with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fragment_programs as fp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hooked import X, lookups, run

from coldstart import wire
from coldstart.client import client as client_module
from coldstart.client import identify, jax_internals, normal_form
from coldstart.identity.key import key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

pytestmark = pytest.mark.stacks


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for every normal form that was made."""
    made: list[str] = []
    original = normal_form.normal_form

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append("form")
        return original(*args, **kwargs)

    monkeypatch.setattr(normal_form, "normal_form", counted)
    return made


def test_the_second_start_makes_no_normal_form(
    hook: Any, compiles: list[str], forms: list[str]
) -> None:
    first = run()
    assert len(forms) == len(compiles) == 1
    second = run()
    assert len(forms) == len(compiles) == 1
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert lookups()[Outcome.HIT, Reason.OK] == 1


def test_a_rewritten_program_is_recalled_too(
    hook: Any, compiles: list[str], forms: list[str]
) -> None:
    q, kv = (np.ones(a.shape, a.dtype) for a in fp.ARGUMENTS)
    results = []
    for rank in (1, 2, 1, 2):
        program = fp.PROGRAMS["plain"](fp.static_cut(rank), fp.sparse, True)
        results.append(run(program, q, kv))
    assert len(compiles) == 1 and len(forms) == 2
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    dense = [
        run(fp.PROGRAMS["plain"](fp.static_cut(rank), fp.dense, True), q * np.arange(256), kv)
        for rank in (1, 2, 1, 2)
    ]
    assert len(compiles) == 3
    np.testing.assert_array_equal(dense[0], dense[2])


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The daemon's answers by raw digest, changed on their way."""
    how: dict[str, Any] = {}
    original = client_module.CacheClient.lookup

    def lookup(self: Any, request: pb.LookupRequest, *args: Any, **kwargs: Any) -> pb.LookupReply:
        reply = original(self, request, *args, **kwargs)
        if "change" in how and request.may_hit and reply.WhichOneof("answer") == "hit":
            reply = how["change"](reply)
            how["seen"] = how.get("seen", 0) + 1
        return reply

    monkeypatch.setattr(client_module.CacheClient, "lookup", lookup)
    yield how


def _other(component: str, value: str) -> Any:
    """The record says another component, and the key fits it."""

    def change(reply: pb.LookupReply) -> pb.LookupReply:
        record = wire.record_from_pb(reply.hit.record)
        components = tuple(
            replace(c, value=value) if c.name == component else c for c in record.components
        )
        changed = replace(record, components=components)
        reply.hit.record.CopyFrom(wire.record_to_pb(changed))
        reply.key = key_of(changed)
        return reply

    return change


def _no_record(reply: pb.LookupReply) -> pb.LookupReply:
    reply.hit.ClearField("record")
    return reply


def _another_key(reply: pb.LookupReply) -> pb.LookupReply:
    reply.key = "cs1-" + "0" * 64
    return reply


CHANGES = {
    "options": _other("options", "0" * 64),
    "target": _other("target", "{}"),
    "flags": _other("flags", "--xla_of_another"),
    "callbacks": _other("callbacks", "3"),
    "no record": _no_record,
    "another key": _another_key,
    "program": _other("program", "0" * 64),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_answer_that_is_not_ours_is_not_loaded(
    hook: Any, compiles: list[str], forms: list[str], lying: dict[str, Any], what: str
) -> None:
    """Another program's digest fails at the header of the artifact; anything else is seen in the record."""
    first = run()
    lying["change"] = CHANGES[what]
    second = run()
    assert lying["seen"] == 1
    assert len(forms) == 2, "it was identified in full"
    assert compiles == ["jit_program"]
    np.testing.assert_array_equal(first[0], second[0])
    assert sum(lookups().values()) == 2


def raw_of(f: Any, *args: Any, canonical: bool = True, rules_off: Any = (), **jit: Any) -> str:
    jax.clear_caches()
    request = jax_internals.capture(jax.jit(f, **jit).lower(*args))
    around = identify.surroundings(request, rules_off=rules_off)
    return identify.raw_digest(request, around, canonical=canonical)


def test_what_a_raw_digest_holds() -> None:
    """All that a program's key depends on: with an equal one, the key is equal."""

    def f(x: Any) -> Any:
        return jnp.tanh(x) * 2

    base = raw_of(f, X)
    assert raw_of(f, X) == base
    others = {
        "constant": raw_of(lambda x: jnp.tanh(x) * 3, X),
        "shape": raw_of(f, X[:4]),
        "donation": raw_of(f, X, donate_argnums=0),
        "option": raw_of(f, X, compiler_options={"xla_cpu_enable_fast_math": True}),
        "exact": raw_of(f, X, canonical=False),
        "a rule off": raw_of(f, X, rules_off=["mesh-axes"]),
        "function name": raw_of(lambda x: jnp.tanh(x) * 2, X),  # raw: rewrites go by name
    }
    assert len({base, *others.values()}) == len(others) + 1
