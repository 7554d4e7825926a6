"""What compiling the backbone of `glm5.2-fp8` for Ironwood takes: one line of JSON. Needs libtpu, and no TPU.

    python -m coldstart.models.glm.compiled 32 --pool 37                            decode
    python -m coldstart.models.glm.compiled 4096 --pool 20                          prefill
    python -m coldstart.models.glm.compiled 32 --pool 30 --dcp 8 --replicate-o-proj

Minutes each. Bytes are the compiler's, of one device; seconds are this machine's, so judge by CPU seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from typing import Any

TARGET = "tpu7x:2x2x2"
DEVICES = 16
# Before JAX is imported: libtpu as a compiler, on a machine that has no TPU.
LIBTPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def measure(
    tokens: int, *, pool_bytes: int, dcp: int, replicate: bool, scan: bool, layers: int | None
) -> dict[str, Any]:
    """Lower and compile one backbone with page tables for 32 sequences of 131 072 positions.

    Args:
        pool_bytes: of the KV pool, per device.
        dcp: devices that share a sequence's positions; 16 or 8.
        layers: fewer than the model has, to try it out; None: all.
    """
    import jax
    from jax.experimental import topologies
    from jax.experimental.serialize_executable import serialize

    from coldstart.models.glm import counts
    from coldstart.models.glm.config import GLM52_FP8
    from coldstart.models.glm.layout import Layout
    from coldstart.models.glm.model import GlmModel

    config = dataclasses.replace(GLM52_FP8, positions=131_072, layers=layers or GLM52_FP8.layers)
    layout = Layout(DEVICES // dcp, dcp, replicate_o_proj=replicate)
    pages = counts.pool_tokens(config, layout, pool_bytes) // layout.virtual_page
    devices = list(topologies.get_topology_desc(TARGET, "tpu").devices)
    model = GlmModel(config, layout, devices, pages=pages, requests=32, scan=scan)
    began = time.monotonic()
    lowered = model.lower_backbone(tokens)
    lowered_at, cpu = time.monotonic(), time.process_time()
    compiled = lowered.compile()
    memory: Any = compiled.memory_analysis()
    return {
        "tokens": tokens,
        "target": TARGET,
        "dcp": dcp,
        "replicate_o_proj": replicate,
        "scan": scan,
        "layers": config.layers,
        "pages": pages,
        "lower_seconds": lowered_at - began,
        "compile_wall_seconds": time.monotonic() - lowered_at,
        "compile_cpu_seconds": time.process_time() - cpu,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "serialized_bytes": len(serialize(compiled)[0]),
        "jax": jax.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("tokens", type=int)
    parser.add_argument(
        "--pool", type=float, default=37.0, help="GB (1e9) of the KV pool, per device"
    )
    parser.add_argument("--dcp", type=int, choices=(8, 16), default=16)
    parser.add_argument("--replicate-o-proj", action="store_true")
    parser.add_argument("--unrolled", action="store_true")
    parser.add_argument("--layers", type=int)
    given = parser.parse_args()
    os.environ.update(LIBTPU)
    found = measure(
        given.tokens,
        pool_bytes=int(given.pool * 1e9),
        dcp=given.dcp,
        replicate=given.replicate_o_proj,
        scan=not given.unrolled,
        layers=given.layers,
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
