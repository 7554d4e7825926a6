"""Which compiles share a key: pairs that must be the same, pairs that must differ, and golden components.

Processes print the record of a fixed program under changed surroundings (T06, T07), or of a changed program (T08,
T09); the key is read from `identify`, nothing is compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest

pytestmark = pytest.mark.stacks

GOLDEN = Path(__file__).parent / "golden_keys.json"

PROGRAM = """
import json, os, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from coldstart.client import identify, jax_internals, target
target.note_flags()
def program(x, w):
    return jnp.tanh(x @ w), (x * 2).sum()
ARGS = [jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32)]
JIT = {}
"""
SAY = """
request = jax_internals.capture(jax.jit(program, **JIT).lower(*ARGS))
found = identify.identify(request)
print("KEY " + json.dumps({c.name: c.value for c in found.record.components} | {"key": found.key}))
"""


def key_of(
    change: str = "", *, argv: tuple[str, ...] = (), cwd: Path | None = None, **env: str
) -> Any:
    """The components and key that a process sees. `change` is source text between program and capture."""
    environ = {**os.environ, **env}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + change + SAY, *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=100,
        env={name: value for name, value in environ.items() if value},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("KEY ")]
    return json.loads(line[4:])


FLAGS = os.environ.get("XLA_FLAGS", "")

SAME: dict[str, dict[str, Any]] = {
    "another process": {},
    "flags reordered, repeated, dumped": {
        "XLA_FLAGS": f"--xla_dump_to=/tmp/nowhere --xla_cpu_enable_fast_math=false {FLAGS} "
        "--xla_cpu_enable_fast_math=false"
    },
    "a flag in argv": {"argv": ("--xla_foo=1",)},
    "libtpu's flags for a CPU target": {"LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=1024"},
    "host name, pod name, ports, hash seed": {
        "HOSTNAME": "pod-7",
        "POD_NAME": "x",
        "PORT": "8080",
        "PYTHONHASHSEED": "7",
    },
    "another number of devices": {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    "the user's own cache directory": {
        "change": "jax.config.update('jax_compilation_cache_dir', '/tmp/stock-cache-of-a-test')\n"
    },
    "another device": {
        "change": "s = jax.sharding.SingleDeviceSharding(jax.devices()[3])\n"
        "ARGS = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a in ARGS]\n",
        "against": "s = jax.sharding.SingleDeviceSharding(jax.devices()[0])\n"
        "ARGS = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a in ARGS]\n",
    },
    "another mesh of the same shape": {
        "change": "s = NamedSharding(Mesh(np.array(jax.devices()[4:8]), ('x',)), P('x'))\n"
        "ARGS = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a in ARGS]\n",
        "against": "s = NamedSharding(Mesh(np.array(jax.devices()[:4]), ('x',)), P('x'))\n"
        "ARGS = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a in ARGS]\n",
    },
    "process id": {
        "change": "from jax._src import distributed\ndistributed.global_state.process_id = 1\n"
    },
}

DIFFERENT: dict[str, dict[str, Any]] = {
    "a rank as a constant": {
        "change": "def program(x, w): return jnp.tanh(x @ w), (x * 3).sum()\n"
    },
    "shape": {"change": "ARGS[0] = jax.ShapeDtypeStruct((9, 16), jnp.float32)\n"},
    "dtype": {"change": "ARGS = [jax.ShapeDtypeStruct(a.shape, jnp.bfloat16) for a in ARGS]\n"},
    "donation": {
        "change": "def program(x, w): return jnp.tanh(x @ w), (x * 2)\nJIT = {'donate_argnums': 0}\n",
        "against": "def program(x, w): return jnp.tanh(x @ w), (x * 2)\n",
    },
    "a captured weight": {
        "change": "c = np.arange(16.0, dtype=np.float32)\nc[7] = -1\n"
        "def program(x, w): return x * c, w\n",
        "against": "c = np.arange(16.0, dtype=np.float32)\ndef program(x, w): return x * c, w\n",
    },
    "zero against minus zero": {
        "change": "def program(x, w): return x + np.float32(-0.0), w\n",
        "against": "def program(x, w): return x + np.float32(0.0), w\n",
    },
    "matmul precision": {
        "change": "jax.config.update('jax_default_matmul_precision', 'highest')\n"
    },
    "x64": {
        "change": "jax.config.update('jax_enable_x64', True)\n"
        "def program(x, w): return jnp.sum(x > 0), w\n",
        "against": "def program(x, w): return jnp.sum(x > 0), w\n",
    },
    "a code-generation flag": {"XLA_FLAGS": f"{FLAGS} --xla_cpu_enable_fast_math=true"},
    "a compiler option": {
        "change": "JIT = {'compiler_options': {'xla_cpu_enable_fast_math': True}}\n"
    },
    "accumulating flags": {
        "XLA_FLAGS": f"{FLAGS} --xla_disable_hlo_passes=a --xla_disable_hlo_passes=b",
        "against_env": {"XLA_FLAGS": f"{FLAGS} --xla_disable_hlo_passes=b"},
    },
    "number of devices": {
        "change": "s = NamedSharding(Mesh(np.array(jax.devices()[:8]), ('x',)), P('x'))\n"
        "ARGS = [jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=s)] * 1\n"
        "def program(x): return x * 2\n",
        "against": "s = NamedSharding(Mesh(np.array(jax.devices()[:4]), ('x',)), P('x'))\n"
        "ARGS = [jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=s)] * 1\n"
        "def program(x): return x * 2\n",
    },
    "sharding": {
        "change": "m = Mesh(np.array(jax.devices()[:4]), ('x',))\n"
        "ARGS = [jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(m, P('x')))]\n"
        "def program(x): return x * 2\n",
        "against": "m = Mesh(np.array(jax.devices()[:4]), ('x',))\n"
        "ARGS = [jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(m, P(None, 'x')))]\n"
        "def program(x): return x * 2\n",
    },
}


@pytest.fixture(scope="module")
def keys() -> dict[str, tuple[Any, Any]]:
    """Every pair's two records; processes run two at a time."""
    with ThreadPoolExecutor(2) as pool:
        base = pool.submit(key_of)
        futures = {}
        for name, case in (SAME | DIFFERENT).items():
            case = dict(case)
            against, environ = case.pop("against", None), case.pop("against_env", None)
            left = base
            if against is not None or environ is not None:
                left = pool.submit(key_of, against or "", **(environ or {}))
            futures[name] = (left, pool.submit(key_of, **case))
        return {name: (left.result(), right.result()) for name, (left, right) in futures.items()}


@pytest.mark.parametrize("name", SAME)
def test_must_be_same(keys: dict[str, tuple[Any, Any]], name: str) -> None:
    left, right = keys[name]
    assert left == right


@pytest.mark.parametrize("name", DIFFERENT)
def test_must_differ(keys: dict[str, tuple[Any, Any]], name: str) -> None:
    left, right = keys[name]
    assert left["key"] != right["key"]


def test_golden_components(keys: dict[str, tuple[Any, Any]]) -> None:
    """A change that moves a key is a decision: bump the scheme and write the new ones beside the old.

    The target holds the compiler's build and the machine's architecture, so it is not golden; the rest is.
    """
    golden = json.loads(GOLDEN.read_text())
    version = jax.__version__
    if version not in golden["cs1"]:
        pytest.skip(f"no golden components for JAX {version}; see {GOLDEN.name}")
    found = {
        name: keys["another process"][0][name]
        for name in ("program", "options", "flags", "callbacks")
    }
    assert found == golden["cs1"][version]
