"""The only file that touches `jax._src` and `jaxlib`, feature-detected per stack.

Everything else in the package asks here. Tried with JAX 0.10.2, 0.11.2 and 0.12.0.1; what a version must
offer is checked by `seam`, and a JAX that doesn't offer it is one we only observe.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import inspect
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jaxlib
from jax._src import compilation_cache as _compilation_cache
from jax._src import compiler as _compiler
from jax._src import config as _jax_config
from jax._src import monitoring as _monitoring
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jax._src.lib import tpu as tpu_dialect  # type: ignore[attr-defined]
from jax._src.lib import xla_client as _xla_client  # type: ignore[attr-defined]
from jaxlib.mlir import ir
from jaxlib.mlir import passmanager as _passmanager

__all__ = ["ir", "tpu_dialect"]  # and the functions below

# (major, minor) of the JAX versions that the tests run on. Another one is observed, not served.
KNOWN_JAX = ((0, 10), (0, 11), (0, 12))

_PARAMETERS = (
    "backend",
    "computation",
    "devices",
    "compile_options",
    "host_callbacks",
    "executable_devices",
    "pgle_profiler",
)

_STOCK_HIT_EVENT = "/jax/compilation_cache/cache_hits"


@dataclass(frozen=True, slots=True)
class Seam:
    """Whether this JAX offers what the hook needs."""

    jax_version: str
    found: bool  # the function to wrap is there and takes the arguments that we know
    known: bool  # the version is one that the tests run on
    problem: str = ""


class Compile(Protocol):
    """`compile_or_get_cached` as it is called on every known stack."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One call of JAX's compile function, its arguments by name."""

    backend: Any
    computation: Any  # the caller's module; clone before touching it (H18)
    devices: Any  # numpy array of devices
    compile_options: Any
    host_callbacks: Sequence[Any]
    executable_devices: Any
    pgle_profiler: Any = None
    compile_only: bool = field(default=False)  # described devices: nothing can be loaded here

    @property
    def module_name(self) -> str:
        return str(ir.StringAttr(self.computation.operation.attributes["sym_name"]).value)

    @property
    def platform(self) -> str:
        return str(self.backend.platform)


@functools.cache
def seam() -> Seam:
    """What this JAX offers. Cheap after the first call."""
    version = jax.__version__
    known = tuple(int(part) for part in version.split(".")[:2]) in KNOWN_JAX
    function = getattr(_compiler, "compile_or_get_cached", None)
    if function is None:
        return Seam(version, False, known, "jax has no compiler.compile_or_get_cached")
    names = tuple(inspect.signature(inspect.unwrap(function)).parameters)
    if names[: len(_PARAMETERS)] != _PARAMETERS:
        return Seam(version, False, known, f"compile_or_get_cached takes {', '.join(names)}")
    if not known:
        return Seam(
            version, True, False, f"JAX {version} is not one that Coldstart was tested with"
        )
    return Seam(version, True, True)


def request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompileRequest:
    """The arguments of one call, by name. Raises TypeError when there is one that we don't know."""
    values = dict(zip(_PARAMETERS, args, strict=False))
    if len(args) > len(_PARAMETERS):
        raise TypeError(f"compile_or_get_cached was called with {len(args)} arguments")
    values.update(kwargs)
    backend = values["backend"]
    return CompileRequest(**values, compile_only=isinstance(backend, _jax.CompileOnlyPyClient))


def arguments_of(request: CompileRequest) -> dict[str, Any]:
    """The request as the arguments of one call again, by name."""
    return {name: getattr(request, name) for name in _PARAMETERS}


def wrap_compile(wrapper: Callable[[Compile], Compile]) -> Callable[[], None]:
    """Put `wrapper(original)` where JAX looks its compile function up; the result takes it out."""
    original = _compiler.compile_or_get_cached
    wrapped = wrapper(original)
    if wrapped is not original:  # or it would be a wrapper of itself, and never unwrapped
        functools.update_wrapper(wrapped, original)
    _compiler.compile_or_get_cached = wrapped

    def unwrap() -> None:
        if _compiler.compile_or_get_cached is wrapped:
            _compiler.compile_or_get_cached = original

    return unwrap


@dataclass(slots=True)
class BackendCompiles:
    """What the compiler itself was asked for, whatever any cache counts. Thread-safe."""

    count: int = 0
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, seconds: float) -> None:
        with self._lock:
            self.count += 1
            self.seconds += seconds


def count_backend_compiles() -> BackendCompiles:
    """Count from now on. Every compile for live devices ends in the one function that is wrapped here."""
    compiles = BackendCompiles()
    original = _compiler.backend_compile_and_load

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            compiles.add(time.perf_counter() - began)

    _compiler.backend_compile_and_load = counted
    return compiles


class _CapturedRequest(Exception):
    def __init__(self, request: CompileRequest) -> None:
        super().__init__("captured")
        self.request = request


_capturing = threading.local()


def capture(lowered: Any) -> CompileRequest:
    """The arguments with which `lowered.compile()` would enter the compiler, without compiling.

    Raises RuntimeError when JAX does not come by (an executable that it still has in memory).
    """
    original = _compiler.compile_or_get_cached

    def stop(*args: Any, **kwargs: Any) -> Any:
        if getattr(_capturing, "on", False):
            raise _CapturedRequest(request_of(args, kwargs))
        return original(*args, **kwargs)

    _compiler.compile_or_get_cached = stop
    _capturing.on = True
    try:
        lowered.compile()
    except _CapturedRequest as captured:
        return captured.request
    finally:
        _capturing.on = False
        _compiler.compile_or_get_cached = original
    raise RuntimeError("JAX did not ask for a compile: it holds this executable in memory already")


def uses_pgle(request: CompileRequest) -> bool:
    """True where JAX's profile-guided recompiles are at work: the cache steps aside."""
    options = request.compile_options
    return bool(
        request.pgle_profiler is not None
        or _jax_config.enable_pgle.value
        or _jax_config.compilation_cache_expect_pgle.value
        or options.executable_build_options.fdo_profile
        or options.profile_version > 0
    )


# --- modules -------------------------------------------------------------------------------------


def clone(module: Any) -> Any:
    """A copy of a module in its own context; the caller's module is never edited (H18).

    JAX compiles an `ir.Module` only, and a cloned operation is none: its attributes and contents move into a new one.
    """
    with module.context:
        copied = module.operation.clone().operation
        fresh = ir.Module.create(copied.location)
        for named in copied.attributes:
            name = named if isinstance(named, str) else named.name
            fresh.operation.attributes[name] = copied.attributes[name]
        for op in list(copied.regions[0].blocks[0].operations):
            fresh.body.append(op)
        return fresh


def parse_module(text: str) -> Any:
    """A module from its text, in a context that knows JAX's dialects. Raises ValueError."""
    from jax._src.interpreters import mlir  # loaded by JAX anyway, once something is lowered

    with mlir.make_ir_context():
        try:
            return ir.Module.parse(text)
        except ir.MLIRError as exc:
            raise ValueError(" ".join(str(exc).split())[:300]) from exc


def strip_locations(operation: Any) -> None:
    """Take debug locations, and nothing else, out of a module, in place. Its context must be entered."""
    run_pass(operation, "strip-debuginfo")


def run_pass(operation: Any, name: str) -> None:
    """Run one of MLIR's own passes over a module, in place. Its context must be entered."""
    _passmanager.PassManager.parse(f"builtin.module({name})").run(operation)


def bytecode(module: Any, *, keep_locations: bool = False) -> bytes:
    """Bytecode of a module, without debug locations unless they are to be kept."""
    out = io.BytesIO()
    with module.context:
        operation = module.operation
        if not keep_locations:
            operation = operation.clone().operation
            strip_locations(operation)
        operation.write_bytecode(out)
    return out.getvalue()


def walk(module: Any) -> Iterator[Any]:
    """Every operation of a module, outermost first."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return iter(found)


# --- compile options -----------------------------------------------------------------------------

# Fields of DebugOptions that say where to write, what to print or where a cache lies, and nothing about
# the program: JAX's own list, and what was found beside it (H12). Each is set to an empty value.
NEUTRAL_DEBUG_OPTIONS: dict[str, Any] = {
    "xla_force_host_platform_device_count": 0,
    "xla_dump_to": "",
    "xla_dump_hlo_module_re": "",
    "xla_dump_hlo_pass_re": "",
    "xla_dump_hlo_pipeline_re": "",
    "xla_dump_hlo_as_text": False,
    "xla_dump_hlo_as_proto": False,
    "xla_dump_hlo_as_dot": False,
    "xla_dump_hlo_as_url": False,
    "xla_dump_hlo_as_html": False,
    "xla_dump_hlo_as_long_text": False,
    "xla_dump_fusion_visualization": False,
    "xla_dump_hlo_snapshots": False,
    "xla_dump_max_hlo_modules": 0,
    "xla_dump_module_metadata": False,
    "xla_dump_compress_protos": False,
    "xla_dump_disable_metadata": False,
    "xla_gpu_cuda_data_dir": "",
    # A user's jax_compilation_cache_dir puts its path here, and process id != 0 flips the mode.
    "xla_gpu_per_fusion_autotune_cache_dir": "",
    "xla_gpu_experimental_autotune_cache_mode": 0,
    "xla_gpu_kernel_cache_file": "",  # the same directory again
    "xla_detailed_logging": False,
}

# The same, where they come as compiler options by name.
NEUTRAL_OVERRIDES = frozenset(NEUTRAL_DEBUG_OPTIONS) | {
    "xla_dump_include_timestamp",
    "xla_tpu_sdc_checker_streamz_metric",
    "xla_tpu_sdc_checker_enable_sdc_event_callbacks",
    "xla_tpu_sdc_checker_enable_coresweep_ng_callbacks",
    "xla_tpu_sdc_checker_no_logging_if_callbacks_are_present",
}


@dataclass(frozen=True, slots=True)
class OptionsFacts:
    """Compile options as they enter a key."""

    serialized: bytes  # neutral fields emptied, device assignment replaced by its shape
    partitions: int
    replicas: int


def options_facts(options: Any) -> OptionsFacts:
    """Options for the key. The original is left alone: it goes to the compiler."""
    copied = copy.deepcopy(options)
    build = copied.executable_build_options
    for name, value in NEUTRAL_DEBUG_OPTIONS.items():
        if hasattr(build.debug_options, name):
            setattr(build.debug_options, name, value)
    copied.env_option_overrides = [
        pair for pair in copied.env_option_overrides if pair[0] not in NEUTRAL_OVERRIDES
    ]
    partitions, replicas = int(build.num_partitions), int(build.num_replicas)
    if partitions == replicas == 1:
        # The three spellings of a one-device program differ here too (H11); there is nothing to propagate.
        build.allow_spmd_sharding_propagation_to_parameters = [False]
        build.allow_spmd_sharding_propagation_to_output = [False]
    assignment = copied.device_assignment
    if assignment is not None:
        # Which devices: that is the target's matter, by coordinates and never by ids.
        import numpy as np

        shape = (assignment.replica_count(), assignment.computation_count())
        copied.device_assignment = _xla_client.DeviceAssignment.create(
            np.arange(shape[0] * shape[1]).reshape(shape)
        )
    return OptionsFacts(copied.SerializeAsString(), partitions, replicas)


# --- devices and builds --------------------------------------------------------------------------


def topology_fingerprint(devices: Sequence[Any]) -> int:
    """The runtime's own fingerprint of the topology that `devices` belong to."""
    return int(_xla_client.get_topology_for_devices(list(devices)).fingerprint())


@functools.cache
def jaxlib_build() -> str:
    """jaxlib's version and a hash over its shared objects, as its installer recorded them.

    Two builds of one version differ here. Without a record the version has to do.
    """
    version = str(jaxlib.version.__version__)
    try:
        record = importlib.metadata.distribution("jaxlib").read_text("RECORD") or ""
    except importlib.metadata.PackageNotFoundError:
        record = ""
    objects = sorted(line for line in record.splitlines() if ".so," in line)
    if not objects:
        return version
    return f"{version}+{hashlib.sha256(chr(10).join(objects).encode()).hexdigest()[:16]}"


# --- executables ---------------------------------------------------------------------------------


def serialize(executable: Any, request: CompileRequest) -> bytes:
    """The executable's bytes for a later `load`."""
    if hasattr(executable, "serialize"):
        return bytes(executable.serialize())
    return bytes(request.backend.serialize_executable(executable))


def load(data: bytes, request: CompileRequest) -> Any:
    """Load `data` for the request's own devices and with its own callbacks.

    Everything about `data` must have been checked before: a wrong partition count aborts the process
    (M5), and missing callbacks crash it at the first run (H8).
    """
    arguments = [data, request.executable_devices, request.compile_options]
    if request.host_callbacks:
        arguments.append(request.host_callbacks)
    return request.backend.deserialize_executable(*arguments)


_stock = threading.local()
_listening = threading.Event()


def _on_event(event: str, **_: Any) -> None:
    if event == _STOCK_HIT_EVENT:
        _stock.hits = getattr(_stock, "hits", 0) + 1


@contextmanager
def stock_cache_watch() -> Iterator[Callable[[], bool]]:
    """Inside, the yielded function says whether JAX's own cache answered on this thread."""
    if not _listening.is_set():
        _listening.set()
        _monitoring.register_event_listener(_on_event)
    before = getattr(_stock, "hits", 0)
    yield lambda: getattr(_stock, "hits", 0) > before


@dataclass(frozen=True, slots=True)
class StockCache:
    """JAX's own persistent cache in this process."""

    directory: str  # "": off
    min_compile_seconds: float
    min_entry_bytes: int
    latched_off: bool  # a directory is set, but JAX had decided, once, to use no cache


def stock_cache() -> StockCache:
    """JAX's own cache as this process has it now."""
    directory = str(_jax_config.compilation_cache_dir.value or "")
    enabled = bool(directory) and bool(_jax_config.enable_compilation_cache.value)
    decided = bool(getattr(_compilation_cache, "_cache_checked", False))
    used = bool(getattr(_compilation_cache, "_cache_used", False))
    return StockCache(
        directory=directory if enabled else "",
        min_compile_seconds=float(_jax_config.persistent_cache_min_compile_time_secs.value),
        min_entry_bytes=int(_jax_config.persistent_cache_min_entry_size_bytes.value),
        latched_off=enabled and decided and not used,
    )


def stock_key(request: CompileRequest) -> str:
    """The name under which JAX's own cache would keep this request's executable."""
    return str(
        _compilation_cache.get_cache_key(
            request.computation, request.devices, request.compile_options, request.backend
        )
    )
