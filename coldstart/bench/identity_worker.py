"""One process of `bench identity`: how many CPU-seconds it takes to say which program this is.

    python -m coldstart.bench.identity_worker --layers 1,32 --repeats 5 --address unix:///run/coldstart.sock

The last line of stdout is JSON: `sizes`, a list of what `measure` returns, and `call`. Steps are processor time of this
process, the least of the repeats; the call, which waits for another process, is wall clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldstart.bench.identity_programs import lowered
from coldstart.bench.progress import note


def measure(layers: int, repeats: int, record: Path) -> dict[str, Any]:
    """Seconds by step for the program of so many layers, and its number of ops."""
    from coldstart import wire_descriptor
    from coldstart.client import identify, jax_internals, jax_module, normal_form
    from coldstart.identity.canonical import canonicalize

    request = jax_internals.capture(lowered(layers))
    module = request.computation

    def surroundings() -> Any:
        return identify.surroundings(request)

    around = surroundings()
    described = jax_module.describe(module)
    encoded = wire_descriptor.descriptor_to_pb(described).SerializeToString()
    rewrites = canonicalize(described).rewrites

    def applied() -> Any:
        clone = jax_internals.clone(module)
        jax_module.apply_rewrites(clone, rewrites)
        return clone

    def encode() -> None:
        wire_descriptor.descriptor_to_pb(described).SerializeToString()

    def decode() -> None:
        canonicalize(wire_descriptor.descriptor_from_bytes(encoded))

    canonical = applied()
    steps: dict[str, Callable[[], Any]] = {
        "walk": lambda: plain_walk(module),
        "stock_key": lambda: jax_internals.stock_key(request),
        "surroundings": surroundings,
        "raw_digest": lambda: identify.raw_digest(request, around, canonical=True),
        "may_rewrite": lambda: jax_module.may_rewrite(module),
        "describe": lambda: jax_module.describe(module),
        "encode": encode,
        "canonicalize": decode,
        "apply": applied,
        "normal_form": lambda: normal_form.normal_form(
            jax_internals.clone(canonical), one_device=around.one_device, rules_off=()
        ),
        "first": lambda: first(request),
        "alias": lambda: identify.raw_digest(request, surroundings(), canonical=True),
    }
    seconds: dict[str, float] = dict.fromkeys(steps, float("inf"))
    note(record, layers)
    for _ in range(repeats):  # in turns, so that a noisy minute is everybody's
        for name, step in steps.items():
            seconds[name] = min(seconds[name], _cpu(step))
        note(record, layers)
    return {
        "layers": layers,
        "ops": sum(1 for _ in jax_internals.walk(module)),
        "module_bytes": len(jax_internals.bytecode(module)),
        "descriptor_bytes": len(encoded),
        "rewrites": len(rewrites),
        "seconds": seconds,
    }


def first(request: Any) -> str:
    """All that both sides do for a program that nobody has seen: the daemon's share is in it, the wire is not."""
    from coldstart import wire_descriptor
    from coldstart.client import identify, jax_module
    from coldstart.identity.canonical import canonicalize

    around = identify.surroundings(request)
    identify.raw_digest(request, around, canonical=True)
    rewrites: Any = ()
    if jax_module.may_rewrite(request.computation):
        described = jax_module.describe(request.computation)
        sent = wire_descriptor.descriptor_to_pb(described).SerializeToString()
        rewrites = canonicalize(wire_descriptor.descriptor_from_bytes(sent)).rewrites
    return identify.identify(request, rewrites=rewrites, around=around).key


def plain_walk(module: Any) -> int:
    """The least that any identity in Python does: visit each op, take every attribute and type as text."""
    from coldstart.client.jax_internals import ir

    size = 0

    def visit(op: Any) -> Any:
        nonlocal size
        attributes = op.attributes
        for named in attributes:
            attribute = attributes[named] if isinstance(named, str) else named.attr
            size += len(str(attribute))
        for operand in op.operands:
            size += len(str(operand.type))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return size


def _cpu(step: Callable[[], Any]) -> float:
    gc.collect()
    began = time.process_time()
    step()
    return time.process_time() - began


def call(address: str, calls: int = 200) -> float:
    """Median wall seconds of the one small call that a hit by raw digest makes to a daemon."""
    from coldstart.client.client import CacheClient
    from coldstart.rpc.v1 import cache_pb2 as pb

    client, walls = CacheClient(address, holder="bench identity"), []
    client.connect()
    for number in range(calls):
        digest = f"{number:064x}"
        asked = pb.LookupRequest(lookup_id=digest[-32:], raw_digest=digest, may_hit=True)
        began = time.perf_counter()
        client.lookup(asked, 10.0)
        walls.append(time.perf_counter() - began)
    client.close()
    return statistics.median(walls)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--record", type=Path, required=True, help="where progress is noted")
    arguments = parser.parse_args()
    layers = [int(text) for text in arguments.layers.split(",")]
    sizes = [measure(number, arguments.repeats, arguments.record) for number in layers]
    print(json.dumps({"sizes": sizes, "call": call(arguments.address)}))


if __name__ == "__main__":
    main()
