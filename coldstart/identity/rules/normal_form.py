"""The normal-form rules by name: what clients leave out of the hash because the compiler ignores it.

They are applied by the client, to a clone that is hashed and thrown away (`coldstart/client/normal_form.py`); they are
listed here because this list, with its versions, is part of every key record.
"""

from __future__ import annotations

from coldstart.identity.rewrite import Rule


def _rule(name: str, version: int, reason: str, proof: str) -> Rule:
    return Rule(name, version, reason, proof, changes_module=False)


LOCATIONS = _rule(
    "locations",
    1,
    "file, line and trace of an op are debug text",
    "Only MLIR locations go (strip-debuginfo), also inside of Mosaic bodies, and the `debug_locations` beside them; "
    "attributes are never locations. Compiles with and without differ in HLO names and metadata only.",
)
MODULE_NAME = _rule(
    "module-name",
    1,
    "the module's own name is the Python function's name",
    "Nothing refers to it; it names dumps and profiles.",
)
SYMBOL_NAMES = _rule(
    "symbol-names",
    1,
    "private functions are named after Python functions and counters",
    "A private function is renamed only if every mention of it is the callee of a func.call; names that compilers "
    "give meaning to (xla, sdy, shmap) stay.",
)
SYMBOL_ORDER = _rule(
    "symbol-order",
    1,
    "functions are looked up by name, so their order in the module says nothing",
    "Whole private functions move; no op moves within a function. Order follows first mention from the public ones.",
)
RESULT_INFO = _rule(
    "result-info",
    1,
    "`jax.result_info` and `jax.arg_info` are names of arguments and outputs for people",
    "Only these keys of argument and result attributes go.",
)
KERNEL_NAMES = _rule(
    "kernel-names",
    1,
    "a Pallas kernel is named after its Python function",
    "`kernel_name`, the body's own name and the names of its kernel functions, where nothing in the body mentions "
    "them; of the frontend attribute `kernel_metadata` only `mesh_axes`. Everything else of the body is kept.",
)
MESH_AXES = _rule(
    "mesh-axes",
    2,
    "mesh axes are named by the user; only which dimension of the mesh they stand for matters",
    "Renamed only if each occurrence is a structured Shardy or replica-group attribute or `kernel_metadata.mesh_axes`; "
    "any other text that holds one as a word, or a name that this rule gives, keeps all names.",
)
ONE_DEVICE = _rule(
    "one-device",
    1,
    "a program for one device has three spellings: no mesh, empty mesh, named mesh of one",
    "Applied only if partitions = replicas = 1. Shardings over meshes of size one go, then such meshes that nobody "
    "mentions; meshes with device ids (callbacks) and memory kinds stay. All cross-loads were right.",
)

RULES = (
    LOCATIONS,
    MODULE_NAME,
    SYMBOL_NAMES,
    SYMBOL_ORDER,
    RESULT_INFO,
    KERNEL_NAMES,
    MESH_AXES,
    ONE_DEVICE,
)
