"""Read sets of Pallas TPU kernels: each assumption about their layout, broken by hand (H3, H4)."""

from __future__ import annotations

import base64
import json
from typing import Any

import fragment_programs as fp
import identity_corpus as corpus
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart.client import jax_internals, mosaic
from coldstart.client.jax_internals import ir
from coldstart.client.pointers import scan_pointers
from coldstart.identity.descriptor import Read

pytestmark = pytest.mark.stacks


def kernel_module(program: str = "with_prefetch", kernel: Any = fp.sparse) -> Any:
    return fp.lowered(program, fp.static_cut(1), kernel, interpret=False).compiler_ir()


def call_of(module: Any) -> Any:
    return next(op for op in jax_internals.walk(module) if mosaic.is_kernel(op))


def states(module: Any) -> list[Read]:
    with module.context:
        return list(mosaic.read_set(call_of(module)).states)


def edit_config(module: Any, **changes: Any) -> None:
    op = call_of(module)
    with module.context:
        config = mosaic.config_of(mosaic.names_of(op))
        for name, value in changes.items():
            where = config if name.startswith("top_") else config["custom_call_config"]
            where[name.removeprefix("top_")] = value
        op.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config))


def edit_body(module: Any, old: str, new: str) -> None:
    """Replace text in the kernel's body, in its generic print."""
    op = call_of(module)
    with module.context:
        body = mosaic.config_of(mosaic.names_of(op))["custom_call_config"]["body"]
    with mosaic.body_context():
        text = ir.Module.parse(base64.b64decode(body)).operation.get_asm(
            print_generic_op_form=True, enable_debug_info=False
        )
        assert old in text, text
        edited = ir.Module.parse(text.replace(old, new))
        code = str(edited.operation.get_asm(print_generic_op_form=True)).encode()
    edit_config(module, body=base64.b64encode(code).decode())


def test_what_is_read_and_what_is_not():
    assert states(kernel_module()) == [Read.READ, Read.UNREAD, Read.READ]
    assert states(kernel_module(kernel=fp.dense)) == [Read.READ] * 3
    assert states(kernel_module("plain")) == [Read.UNREAD, Read.READ]


def test_an_edit_of_the_body_that_changes_nothing_changes_nothing():
    module = kernel_module()
    edit_body(module, "sym_name = ", "sym_name = ")
    assert states(module) == [Read.READ, Read.UNREAD, Read.READ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stable_mosaic.version = ", "stable_mosaic.version = 9"),
        ("scratch_operands = 1", "scratch_operands = 0"),
        ("scratch_operands = 1", "scratch_operands = 9"),
        ("scalar_prefetch = 1", "scalar_prefetch = 2"),
        ("iteration_bounds = array<i64: 2>", "iteration_bounds = array<i64: 2, 2>"),
        ("tpu.core_type = #tpu.core_type<tc>", "tpu.core_type = #tpu.core_type<sc_scalar_subcore>"),
        ("tpu.core_type = #tpu.core_type<tc>", "other = 1 : i32"),
        ("dimension_semantics = ", "something_new = "),
        ("transform_indices = @transform_0", "transform_indices = @transform_1"),
        ("transform_indices = @transform_0", "transform_indices = affine_map<(d0) -> (d0)>"),
        ("window_bounds", "window_other"),
        ("stable_mosaic.version", "stable_mosaic.other"),
    ],
)
def test_a_body_that_is_not_understood_reads_everything(old, new):
    module = kernel_module()
    edit_body(module, old, new)
    assert set(states(module)) == {Read.UNKNOWN}


def test_a_second_kernel_function_reads_everything():
    """One call may hold kernels for several cores; the operand unread in one is read in the other (H3)."""
    module = kernel_module("plain")
    op = call_of(module)
    with module.context:
        body = mosaic.config_of(mosaic.names_of(op))["custom_call_config"]["body"]
    with mosaic.body_context():
        parsed = ir.Module.parse(base64.b64decode(body))
        first = parsed.body.operations[0].operation
        copy = first.clone()
        copy.attributes["sym_name"] = ir.StringAttr.get("second")
        parsed.body.append(copy)
        code = str(parsed.operation.get_asm(print_generic_op_form=True)).encode()
    edit_config(module, body=base64.b64encode(code).decode())
    assert set(states(module)) == {Read.UNKNOWN}


@pytest.mark.parametrize(
    "changes",
    [
        {"has_communication": True},
        {"collective_id": 3},
        {"output_memory_space_colors": [{"color": 2, "shape_index": [1]}]},
        {"something_new": 1},
        {"serialization_format": 2},
        {"body": "not base64"},
        {"body": base64.b64encode(b"not a body").decode()},
        {"top_device_type": "DEVICE_TYPE_SPARSECORE"},
        {"top_something_new": 1},
    ],
    ids=str,
)
def test_a_configuration_that_is_not_understood_reads_everything(changes):
    module = kernel_module()
    edit_config(module, **changes)
    assert set(states(module)) == {Read.UNKNOWN}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("has_side_effect", "true"),
        ("something_new", "unit"),
        ("backend_config", '"{}"'),
        ("backend_config", '"no json"'),
    ],
)
def test_a_call_that_is_not_understood_reads_everything(name, text):
    module = kernel_module()
    with module.context:
        call_of(module).attributes[name] = ir.Attribute.parse(text)
    assert set(states(module)) == {Read.UNKNOWN}


@pytest.mark.parametrize("kind", ["side effect", "collective id", "keep-alive"])
def test_kernels_with_effects_read_everything(kind):
    module = corpus.kernel_case(1, kind)()
    found = []
    with module.context:
        for op in jax_internals.walk(module):
            if mosaic.is_kernel(op):
                found.append(mosaic.read_set(op))
    assert not any(read.analysed for read in found)
    assert all(reason.startswith("counts as read") for read in found for reason in read.reasons)


def pointer_call(target: str, config: str, operand: str = "1") -> str | None:
    module = corpus.parse(
        f"""module @m {{ func.func public @main() -> tensor<i64> {{
          %0 = stablehlo.constant dense<{operand}> : tensor<i64>
          %1 = stablehlo.custom_call @{target}(%0) {{backend_config = "{config}"}} : (tensor<i64>) -> tensor<i64>
          return %1 : tensor<i64> }} }}"""
    )
    return scan_pointers(module)


@pytest.mark.parametrize(
    ("target", "config", "operand", "pointer"),
    [
        ("CustomSPMDPartitioning", "1", "1", True),
        ("mystery", "140066487866704", "1", True),
        ("mystery", "0x7f6400000000", "1", True),
        ("mystery", "", "140066487866704", True),
        ("mystery", "lower=1,n=4096", "7", False),
        ("Sharding", "140066487866704", "1", False),
    ],
)
def test_pointers(target, config, operand, pointer):
    assert bool(pointer_call(target, config, operand)) is pointer


def hbm_module(space: Any, reads_fragment: bool) -> Any:
    """A kernel that copies its operands from where they are, or has one of them moved by the pipeline."""

    def copies(q_ref: Any, kv_ref: Any, o_ref: Any, landed: Any, semaphore: Any) -> None:
        for ref in (q_ref, kv_ref) if reads_fragment else (kv_ref,):
            copy = pltpu.make_async_copy(ref, landed, semaphore)
            copy.start()
            copy.wait()
        o_ref[...] = landed[...]

    def step(q: Any, kv: Any) -> Any:
        return pl.pallas_call(
            copies,
            grid=(1,),
            in_specs=[
                space if reads_fragment else pl.BlockSpec((8, 256), lambda i: (0, 0)),
                space,
            ],
            out_specs=pl.BlockSpec((8, 256), lambda i: (0, 0)),
            out_shape=jax.ShapeDtypeStruct(kv.shape, kv.dtype),
            scratch_shapes=[pltpu.VMEM((8, 256), jnp.float32), pltpu.SemaphoreType.DMA],
        )(fp.static_cut(1)(q), kv)

    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 256), (8, 256))]
    return jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",)).compiler_ir()


def test_an_operand_that_stays_in_hbm_is_read_where_the_kernel_copies_it():
    """Such an operand has a window without an index map; the MLA kernel that gathers for itself has one."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    assert states(hbm_module(anywhere, reads_fragment=False)) == [Read.UNREAD, Read.READ]
    assert states(hbm_module(anywhere, reads_fragment=True)) == [Read.READ, Read.READ]


def test_an_operand_that_is_moved_has_an_index_map():
    module = hbm_module(pl.BlockSpec(memory_space=pl.ANY), reads_fragment=False)
    entries = "transform_indices = @transform_0, window_bounds = array<i64: 8, 256>"
    edit_body(module, f"pipeline_mode = #tpu.pipeline_mode<synchronous>, {entries}", "")
    with module.context:
        found = mosaic.read_set(call_of(module))
    assert set(found.states) == {Read.UNKNOWN}
    assert "a window without a function" in found.reasons[0]
