"""Which compile is this? A compile request → a key record, or the reason why it can't be shared.

The `program` component is the digest of what is handed to the compiler, debug locations aside, so a fact that is
forgotten elsewhere can cost a miss and never a wrong hit (H1).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import jax

from coldstart.client import jax_internals, target
from coldstart.client.jax_internals import CompileRequest
from coldstart.identity.key import Component, KeyRecord, key_of
from coldstart.outcomes import Reason

EXTRACTOR_VERSION = "1"

# Custom calls whose configuration is known to hold no pointer, whatever numbers stand in it.
_KNOWN_TARGETS = frozenset(
    {
        "tpu_custom_call",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "MoveToHost",
        "MoveToDevice",
        "TopK",
        "ApproxTopK",
        "PartialReduce",
        "xla_ffi_python_cpu_callback",  # binds its function by `index`; the functions are the loader's own
        "xla_ffi_partitioned_python_cpu_callback",
        "LayoutConstraint",
    }
)
# Carries the id of a Python object, which another process can't resolve, or resolves to something else (H7).
_POINTER_TARGETS = frozenset({"CustomSPMDPartitioning", "InspectSharding"})
_POINTER_LIKE = re.compile(r"0x[0-9a-fA-F]{9,16}|\d{10,20}")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a compile request is, as far as the cache is concerned."""

    record: KeyRecord
    partitions: int
    replicas: int
    callbacks: int
    multi_process: (
        bool  # its devices belong to more than one process, live or described: always exact (I9)
    )
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


def identify(request: CompileRequest) -> Identity:
    """The identity of one compile request. Reads the caller's module, never edits it."""
    devices = list(request.devices.flat)
    options = jax_internals.options_facts(request.compile_options)
    callbacks = len(request.host_callbacks)
    program = hashlib.sha256(jax_internals.stripped_bytecode(request.computation)).hexdigest()
    record = KeyRecord(
        components=(
            Component("program", program, f"module {request.module_name}"),
            Component("options", hashlib.sha256(options.serialized).hexdigest()),
            Component(
                "target",
                target.target_of(devices, partitions=options.partitions, replicas=options.replicas),
            ),
            Component("flags", target.flags_of(request.platform)),
            Component("callbacks", str(callbacks)),
        ),
        program_name=request.module_name,
        versions=(("extractor", EXTRACTOR_VERSION), ("jax", jax.__version__)),
        notes=("debug locations are not part of the key",),
    )
    refusal, detail = _refusal(request, callbacks)
    return Identity(
        record=record,
        partitions=options.partitions,
        replicas=options.replicas,
        callbacks=callbacks,
        multi_process=len({device.process_index for device in devices}) > 1,
        refusal=refusal,
        refusal_detail=detail,
    )


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
    pointer = _pointer_in(request.computation)
    if pointer:
        return Reason.POINTER, pointer
    return None, ""


def _pointer_in(module: Any) -> str:
    """Where a module holds what may be a pointer; "" if nowhere."""
    ir = jax_internals.ir
    for op in jax_internals.walk(module):
        if op.name != "stablehlo.custom_call":
            continue
        name = str(ir.StringAttr(op.attributes["call_target_name"]).value)
        if name in _POINTER_TARGETS:
            return f"custom call {name} refers to a Python object of this process"
        if name in _KNOWN_TARGETS:
            continue
        for attribute in op.attributes:
            text = str(op.attributes[attribute] if isinstance(attribute, str) else attribute.attr)
            for found in _POINTER_LIKE.findall(text):
                number = int(found, 16) if found.startswith("0x") else int(found)
                if number >= 1 << 32:
                    return f"custom call {name} holds {found}, which may be a pointer"
    return ""
