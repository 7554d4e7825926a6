"""Which compile is this? A compile request → a key record, or the reason why it can't be shared.

The `program` component is the digest of the very module that is handed to the compiler, after rewrites and in normal
form, so a fact that is forgotten elsewhere can cost a miss and never a wrong hit (H1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from coldstart.client import jax_internals, jax_module, normal_form, pointers, target
from coldstart.client.jax_internals import CompileRequest
from coldstart.identity import rules
from coldstart.identity.key import SCHEME, Component, KeyRecord, key_of
from coldstart.identity.rewrite import Rewrite
from coldstart.identity.rules import normal_form as listed
from coldstart.outcomes import Reason

# The rules that hold for programs of several processes too: no compiler acts on these.
NOISE = frozenset({listed.LOCATIONS.name, listed.RESULT_INFO.name})


@dataclass(frozen=True, slots=True)
class Identity:
    """What a compile request is, as far as the cache is concerned."""

    record: KeyRecord
    partitions: int
    replicas: int
    callbacks: int
    multi_process: bool  # its devices belong to several processes, live or described: exact (I9)
    module: Any = None  # what to hand to the compiler: the rewritten clone; None: the caller's own
    refusal: Reason | None = None  # why it can't be shared
    refusal_detail: str = ""

    @property
    def key(self) -> str:
        return key_of(self.record)

    @property
    def is_cpu(self) -> bool:
        return json.loads(self.target)["platform"] == "cpu"  # type: ignore[no-any-return]

    @property
    def target(self) -> str:
        return self.record["target"].value


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All of a compile request but its module: what costs next to nothing to know."""

    components: tuple[Component, ...]  # options, target, flags, callbacks
    one_device: bool
    partitions: int
    replicas: int
    callbacks: int
    multi_process: bool
    rules_off: frozenset[str]  # what the caller wants off, and what I9 does
    refusal: Reason | None = None
    refusal_detail: str = ""


def surroundings(request: CompileRequest, *, rules_off: Iterable[str] = ()) -> Surroundings:
    """What a request's key holds beside the program."""
    devices = list(request.devices.flat)
    options = jax_internals.options_facts(request.compile_options)
    callbacks = len(request.host_callbacks)
    multi_process = len({device.process_index for device in devices}) > 1
    off = frozenset(rules_off)
    if multi_process:
        # Any member may have to compile by itself and must then run what its peers run: only what no
        # compiler sees may go (I9).
        off |= {rule.name for rule in rules.RULES} - NOISE
    refusal, detail = _refusal(request, callbacks)
    return Surroundings(
        components=(
            Component(
                "options",
                hashlib.sha256(options.serialized).hexdigest(),
                target.options_in_words(request.compile_options),
            ),
            Component(
                "target",
                target.target_of(devices, partitions=options.partitions, replicas=options.replicas),
            ),
            Component("flags", target.flags_of(request.platform)),
            Component("callbacks", str(callbacks)),
        ),
        one_device=options.partitions == options.replicas == 1,
        partitions=options.partitions,
        replicas=options.replicas,
        callbacks=callbacks,
        multi_process=multi_process,
        rules_off=off,
        refusal=refusal,
        refusal_detail=detail,
    )


def identify(
    request: CompileRequest,
    *,
    rewrites: Sequence[Rewrite] = (),
    rules_off: Iterable[str] = (),
    around: Surroundings | None = None,
) -> Identity:
    """The identity of one compile request. Reads the caller's module, never edits it.

    Args:
        rewrites: edits of dead values to make, on a clone, before it is hashed and compiled.
        rules_off: names of rules that must not be used.
        around: this request's surroundings, where they are known already; they hold the rules then.

    Raises:
        InvalidDescriptor: the rewrites don't fit this module.
    """
    around = around or surroundings(request, rules_off=rules_off)
    module = None
    if rewrites:
        module = jax_internals.clone(request.computation)
        rewrites = jax_module.apply_rewrites(module, rewrites)
    hashed, notes = normal_form.normal_form(
        jax_internals.clone(module if module is not None else request.computation),
        one_device=around.one_device,
        rules_off=around.rules_off,
    )
    program = Component(
        "program", hashlib.sha256(hashed).hexdigest(), f"module {request.module_name}"
    )
    record = KeyRecord(
        components=(program, *around.components),
        program_name=request.module_name,
        versions=_versions(around),
        notes=(*(f"left out: {note}" for note in notes), *(_in_words(r) for r in rewrites)),
    )
    refusal, detail = around.refusal, around.refusal_detail
    if refusal is None:
        pointer = pointers.scan_pointers(request.computation)
        if pointer is not None:
            refusal, detail = Reason.POINTER, pointer
    return _identity(record, around, module, refusal, detail)


def recalled(request: CompileRequest, around: Surroundings, record: KeyRecord) -> Identity | None:
    """The identity that this very program (see `raw_digest`) was given before; None where it can't be this one's.

    Only the program's digest is taken from `record`. Everything else must be what this process sees by itself.
    """
    own = {component.name: component.value for component in around.components}
    recalled = {component.name: component.value for component in record.components}
    if recalled.keys() != {"program", *own} or any(recalled[name] != own[name] for name in own):
        return None
    return _identity(replace(record, program_name=request.module_name), around, None, None, "")


def raw_digest(request: CompileRequest, around: Surroundings, *, canonical: bool) -> str:
    """sha256 (hex) of all that a program's rewrites and key depend on.

    Rewrites name functions and ops by position, so this hashes the caller's module as it is, locations aside: in
    normal form two modules may be equal whose private functions have other names.

    Args:
        canonical: rewriting rules may be used; a program has another key where they may not.
    """
    keep = listed.LOCATIONS.name in around.rules_off
    digest = hashlib.sha256(jax_internals.bytecode(request.computation, keep_locations=keep))
    for name, value in (
        *((c.name, c.value) for c in around.components),
        *_versions(around),
        ("scheme", SCHEME),
        ("canonical", str(canonical)),
    ):
        text = f"{name}={value}".encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()


def _versions(around: Surroundings) -> tuple[tuple[str, str], ...]:
    return (
        ("extractor", str(jax_module.EXTRACTOR_VERSION)),
        ("jax", jax.__version__),
        ("rules", rules.in_force(around.rules_off)),
    )


def _identity(
    record: KeyRecord,
    around: Surroundings,
    module: Any,
    refusal: Reason | None,
    detail: str,
) -> Identity:
    return Identity(
        record=record,
        partitions=around.partitions,
        replicas=around.replicas,
        callbacks=around.callbacks,
        multi_process=around.multi_process,
        module=module,
        refusal=refusal,
        refusal_detail=detail,
    )


def _in_words(rewrite: Rewrite) -> str:
    return f"{rewrite.rule}: @{rewrite.function} op {rewrite.op}: {rewrite.reason}"


def _refusal(request: CompileRequest, callbacks: int) -> tuple[Reason | None, str]:
    if jax_internals.uses_pgle(request):
        return Reason.PGLE, "profile-guided recompiles are JAX's own matter"
    if request.platform == "tpu" and target.flags_changed():
        return Reason.LATE_FLAGS, "LIBTPU_INIT_ARGS changed after libtpu may have read it"
    if callbacks and request.platform != "cpu":
        return (
            Reason.CALLBACKS,
            f"host callbacks on {request.platform} were never tried from a cache",
        )
    return None, ""
