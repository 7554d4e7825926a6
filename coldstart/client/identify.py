"""Which compile is this? A compile request → a key record, or the reason why it can't be shared.

The `program` component is the digest of the very module that is handed to the compiler, after rewrites and in normal
form, so a fact that is forgotten elsewhere can cost a miss and never a wrong hit (H1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from coldstart.client import jax_internals, jax_module, normal_form, pointers, target
from coldstart.client.jax_internals import CompileRequest
from coldstart.identity import rules
from coldstart.identity.key import Component, KeyRecord, key_of
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


def identify(
    request: CompileRequest, *, rewrites: Sequence[Rewrite] = (), rules_off: Iterable[str] = ()
) -> Identity:
    """The identity of one compile request. Reads the caller's module, never edits it.

    Args:
        rewrites: edits of dead values to make, on a clone, before it is hashed and compiled.
        rules_off: names of rules that must not be used.

    Raises:
        InvalidDescriptor: the rewrites don't fit this module.
    """
    devices = list(request.devices.flat)
    options = jax_internals.options_facts(request.compile_options)
    callbacks = len(request.host_callbacks)
    multi_process = len({device.process_index for device in devices}) > 1
    if multi_process:
        # Any member may have to compile by itself and must then run what its peers run: only what no
        # compiler sees may go (I9).
        rules_off = ({rule.name for rule in rules.RULES} - NOISE) | set(rules_off)
    module = None
    if rewrites:
        module = jax_internals.clone(request.computation)
        jax_module.apply_rewrites(module, rewrites)
    hashed, notes = normal_form.normal_form(
        jax_internals.clone(module if module is not None else request.computation),
        one_device=options.partitions == options.replicas == 1,
        rules_off=rules_off,
    )
    record = KeyRecord(
        components=(
            Component(
                "program", hashlib.sha256(hashed).hexdigest(), f"module {request.module_name}"
            ),
            Component("options", hashlib.sha256(options.serialized).hexdigest()),
            Component(
                "target",
                target.target_of(devices, partitions=options.partitions, replicas=options.replicas),
            ),
            Component("flags", target.flags_of(request.platform)),
            Component("callbacks", str(callbacks)),
        ),
        program_name=request.module_name,
        versions=(
            ("extractor", str(jax_module.EXTRACTOR_VERSION)),
            ("jax", jax.__version__),
            ("rules", rules.in_force(rules_off)),
        ),
        notes=(*(f"left out: {note}" for note in notes), *(_in_words(r) for r in rewrites)),
    )
    refusal, detail = _refusal(request, callbacks)
    return Identity(
        record=record,
        partitions=options.partitions,
        replicas=options.replicas,
        callbacks=callbacks,
        multi_process=multi_process,
        module=module,
        refusal=refusal,
        refusal_detail=detail,
    )


def raw_digest(request: CompileRequest, identity: Identity, rules_off: Iterable[str] = ()) -> str:
    """What the daemon may remember rewrites under: sha256 (hex) of all that they depend on.

    Rewrites name functions and ops by position, so this hashes the caller's module as it is, locations aside: in
    normal form two modules may be equal whose private functions have other names.
    """
    digest = hashlib.sha256(jax_internals.stripped_bytecode(request.computation))
    rules_on = rules.in_force(rules_off)
    digest.update(f" {identity.key} {rules_on} {jax_module.EXTRACTOR_VERSION}".encode())
    return digest.hexdigest()


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
    pointer = pointers.scan_pointers(request.computation)
    return (Reason.POINTER, pointer) if pointer else (None, "")
