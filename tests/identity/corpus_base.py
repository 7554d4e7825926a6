"""What the corpus is made of: pairs of programs, how they are lowered, and what the cache makes of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from coldstart.client import jax_internals, jax_module
from coldstart.client.normal_form import normal_form
from coldstart.client.pointers import scan_pointers
from coldstart.identity import rules
from coldstart.identity.canonical import Canonical, canonicalize

S = jax.ShapeDtypeStruct
F32 = jnp.float32


@dataclass(frozen=True)
class Identity:
    """What the cache makes of one module."""

    digest: str
    canonical: Canonical
    notes: tuple[str, ...]
    pointer: str | None


def identity(
    module: Any, rules_off: Iterable[str] = (), rewriting: Any = rules.REWRITES
) -> Identity:
    attributes = module.operation.attributes
    counts = [
        int(attributes[name].value) if name in attributes else 1
        for name in ("mhlo.num_partitions", "mhlo.num_replicas")
    ]
    canonical = canonicalize(jax_module.describe(module), rules_off, rewriting=rewriting)
    clone = jax_internals.clone(module)
    jax_module.apply_rewrites(clone, canonical.rewrites)
    data, notes = normal_form(clone, one_device=counts == [1, 1], rules_off=rules_off)
    return Identity(hashlib.sha256(data).hexdigest(), canonical, notes, scan_pointers(module))


@dataclass(frozen=True)
class Pair:
    name: str
    left: Callable[[], Any]  # -> module
    right: Callable[[], Any]

    def __str__(self) -> str:
        return self.name


def lower(f: Any, *arguments: Any, platform: str = "cpu", **options: Any) -> Any:
    traced = jax.jit(f, **options).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)).compiler_ir()


def text_pair(name: str, build: Callable[[], Any], old: str, new: str) -> Pair:
    """A program and its text with one edit, both parsed from text."""

    def side(edit: bool) -> Any:
        module = build()
        text = module.operation.get_asm(enable_debug_info=False)
        assert old in text, text
        ir = jax_internals.ir
        with module.context:
            return ir.Module.parse(text.replace(old, new) if edit else text)

    return Pair(name, lambda: side(False), lambda: side(True))


X = S((8, 16), F32)
X2 = S((16, 8), F32)


def parse(text: str) -> Any:
    """A module from text, in a context that knows JAX's dialects."""
    with lower(lambda x: x, X).context:
        return jax_internals.ir.Module.parse(text)


def same_form(name: str, f: Any, g: Any, *arguments: Any) -> Pair:
    return Pair(name, lambda: lower(f, *arguments), lambda: lower(g, *arguments))
