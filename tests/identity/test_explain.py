"""Explaining: what was stripped and why, what reads a value, and where two programs differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from described import layer

from coldstart.errors import InvalidDescriptor
from coldstart.identity import account, rules
from coldstart.identity.descriptor import DescriptorBuilder, GraphDescriptor, Read, column
from coldstart.identity.difference import ABSENT, differences
from coldstart.identity.explain import Program, node_at, off_by, program, who_reads
from coldstart.identity.key import COMPONENTS, Component, KeyRecord
from coldstart.identity.nearest import nearest

RULE = "unread-fragment-offset"


def test_an_edit_names_rule_values_and_the_operand_that_is_never_read():
    (start, limit) = program(layer(3)).edits
    assert (start.rule, start.function, start.op, start.name) == (
        RULE,
        "main",
        0,
        "stablehlo.slice",
    )
    assert (start.attribute, start.before, start.after) == (
        "start_indices",
        "array<i64: 24, 0>",
        "array<i64: 0, 0>",
    )
    assert limit.before == "array<i64: 32, 256>"
    (use,) = start.uses
    assert (use.op, use.kernel, use.operand) == (1, "mla", 0)
    assert use.why == "stablehlo.custom_call never reads operand 0 (no use)"


def test_every_kernel_operand_says_why_it_counts_as_read():
    (kernel,) = program(layer(read=True)).kernels
    assert (kernel.function, kernel.op, kernel.kernel) == ("main", 1, "mla")
    assert [(o.state, o.why) for o in kernel.operands] == [("read", "3 uses"), ("read", "used")]
    assert program(layer()).kernels[0].operands[0].state == "unread"


def test_a_rule_that_is_off_strips_nothing():
    assert program(layer(), [RULE]).edits == ()


def test_an_input_fragment_is_explained_too():
    (edit,) = [e for e in program(layer(0, fragment=2048)).edits if e.name == "input"]
    assert (edit.before, edit.after, edit.op) == ("2048", "0", 0)


def test_rules_that_were_off_are_read_from_a_record():
    ours = rules.in_force(["mesh-axes", RULE])
    assert off_by(ours) == ({"mesh-axes", RULE}, ())
    assert off_by(f"{rules.in_force()} tomorrow@1") == (frozenset(), ("tomorrow@1",))
    assert off_by("") == (frozenset(), ())
    assert off_by("none") == ({rule.name for rule in rules.RULES}, ())  # an exact final descriptor
    assert "mesh-axes" in off_by(rules.in_force().replace("mesh-axes@2", "mesh-axes@9"))[0]


@pytest.mark.parametrize(("function", "op"), [("nobody", 0), ("main", 99), ("main", -1)])
def test_a_position_that_is_not_there(function: str, op: int):
    with pytest.raises(InvalidDescriptor):
        node_at(layer(), function, op)


# --- two programs --------------------------------------------------------------------------------


def between(left: GraphDescriptor, right: GraphDescriptor, off: tuple[str, ...] = ()) -> list[Any]:
    return differences(program(left, off), program(right, off))


def test_equal_programs_differ_in_nothing():
    assert between(layer(), layer()) == []


def test_two_participants_differ_in_offsets_that_a_rule_strips():
    limit, start = between(layer(1), layer(5))
    assert (start.function, start.op, start.name) == ("main", 0, "stablehlo.slice")
    assert (start.what, start.left, start.right) == (
        "attribute start_indices",
        "array<i64: 8, 0>",
        "array<i64: 40, 0>",
    )
    assert start.rule == limit.rule == RULE
    assert start.why == "op 1 mla: stablehlo.custom_call never reads operand 0 (no use)"


def test_one_of_them_may_have_had_nothing_to_strip():
    assert [d.rule for d in between(layer(0), layer(5))] == [RULE, RULE]


def test_what_stays_names_its_reader():
    for left, right in ((layer(1, read=True), layer(5, read=True)),):
        assert {(d.rule, d.why) for d in between(left, right)} == {
            ("", "stablehlo.custom_call mla (op 1) reads operand 0 (3 uses)")
        }
    chained = between(layer(1, read=True, chained=True), layer(5, read=True, chained=True))
    assert chained[0].why.endswith("reads operand 0 (3 uses), through stablehlo.negate")


def test_a_rule_that_is_off_leaves_the_difference():
    why = {d.why for d in between(layer(1), layer(5), (RULE,))}
    assert why == {"its result is dead, but no rule covers this attribute"}


def test_types_ops_functions_and_fragments():
    assert {d.what for d in between(layer(), layer(kind="tensor<8x256xbf16>"))} == {"types"}
    (op,) = between(layer(), layer(op="stablehlo.sine"))
    assert (op.what, op.left, op.right) == ("op", "stablehlo.tanh", "stablehlo.sine")
    assert "not compared" in op.why
    renamed = between(layer(), layer(other="assistant"))
    assert {(d.what, d.why) for d in renamed} == {
        ("attribute callee", "unless the rule symbol-names leaves it out of the hash"),
        ("attribute sym_name", "unless the rule symbol-names leaves it out of the hash"),
    }
    (fragment,) = between(layer(0, fragment=1), layer(0, fragment=2))
    assert (fragment.what, fragment.rule) == ("fragment", RULE)
    assert [d.what for d in between(layer(0), layer(0, fragment=2))] == ["fragment"]
    (reads,) = [d for d in between(layer(0), layer(0, read=True)) if d.what == "read set"]
    assert (reads.kernel, reads.left, reads.right) == (
        "mla",
        "operand 0 unread, operand 1 read",
        "operand 0 read, operand 1 read",
    )


def test_an_offset_that_goes_on_one_side_only_stays():
    unread, read = layer(0, fragment=1), layer(0, fragment=2, read=True)
    for left, right in ((unread, read), (read, unread)):
        (found,) = [d for d in between(left, right) if d.what == "fragment"]
        assert found.rule == ""
        assert "reads operand 0 (3 uses)" in found.why


def test_inputs_are_said_in_words():
    d = layer()
    kept = replace(d, input_alias_output=column([-1, 0]), input_donated=column([1, 0]))
    assert {(f.what, f.left, f.right) for f in between(d, kept)} == {
        ("aliased inputs", ABSENT, "input 1 with output 0"),
        ("donated inputs", ABSENT, "input 0"),
    }


def meshes(text: str, module: str = "jit_f") -> GraphDescriptor:
    """A mesh stands beside the functions."""
    b = DescriptorBuilder("jax")
    texts = ((b.string("sym_name"), b.string(module)),)
    b.node(b.string("builtin.module"), (), (), texts)
    top, _ = b.open_region(0)
    b.node(b.string("sdy.mesh"), (), (), ((b.string("mesh"), b.string(f"#sdy.mesh<[{text}]>")),))
    node, _ = b.node(b.string("func.func"))
    body, _ = b.open_region(node)
    b.node(b.string("func.return"))
    b.close_region(body)
    b.function(node, "main", public=True)
    b.close_region(top)
    return b.build()


def test_what_stands_beside_the_functions_is_compared():
    (sizes,) = between(meshes('"a"=2, "b"=4'), meshes('"a"=4, "b"=2'))
    assert (sizes.function, sizes.op, sizes.name) == ("", 1, "sdy.mesh")
    assert (sizes.what, sizes.left) == ("attribute mesh", '#sdy.mesh<["a"=2, "b"=4]>')
    assert sizes.rule == sizes.why == ""
    (names,) = between(meshes('"a"=2'), meshes('"x"=2'))
    assert names.why == "unless the rule mesh-axes leaves it out of the hash"
    (module,) = between(meshes('"a"=2'), meshes('"a"=2', module="jit_g"))
    assert (module.op, module.name, module.what) == (-1, "builtin.module", "attribute sym_name")
    assert module.why == "unless the rule module-name leaves it out of the hash"
    absent = [d for d in between(meshes('"a"=2'), layer()) if d.name == "sdy.mesh"]
    assert [(d.what, d.right) for d in absent] == [("op", ABSENT)]


def test_an_op_beside_the_functions_is_explained():
    b = DescriptorBuilder("views", final=True)
    b.node(b.string("views.program"))
    top, _ = b.open_region(0)
    _, table = b.node(b.string("views.table"), (), (b.string("f32[8]"),))
    kernel, _ = b.node(b.string("views.attend"), (table,))
    b.read(kernel, 0, Read.UNREAD, "attend says so")
    node, _ = b.node(b.string("views.function"))
    body, _ = b.open_region(node)
    b.node(b.string("func.return"))
    b.close_region(body)
    b.function(node, "main", public=True)
    b.close_region(top)
    (found,) = program(b.build()).kernels
    assert (found.function, found.op, found.name) == ("", kernel, "views.attend")


def test_a_dead_value_has_no_reader():
    p = program(layer())
    assert who_reads(p, p.descriptor.results_of(node_at(p.descriptor, "main", 0))) == ""
    assert "func.return" in who_reads(p, p.descriptor.results_of(node_at(p.descriptor, "main", 3)))


# --- accounts ------------------------------------------------------------------------------------


def record(name: str = "p", **changed: str) -> KeyRecord:
    target = '{"compiler": "1", "devices": [[0, 0, 0]], "platform": "tpu"}'
    values = {"program": "ab", "options": "o", "target": target, "flags": "--a=1", "callbacks": "0"}
    values |= changed
    return KeyRecord(tuple(Component(c, values[c]) for c in COMPONENTS), name)


def compared(left: KeyRecord, right: KeyRecord, difference: Any = None) -> dict[str, Any]:
    sides = (account.side_account(f"key {i}", record=r) for i, r in enumerate((left, right)))
    return account.account(*sides, difference)


def test_components_are_compared_down_to_their_parts():
    other = record().components[2].value.replace('"1"', '"2"')
    found = compared(record(), record(target=other, flags="--a=2 --b"))
    assert found["same"] is False and found["first"] == "target"
    target, flags = found["components"]
    assert target["parts"] == [{"path": "compiler", "left": '"1"', "right": '"2"'}]
    assert [p["path"] for p in flags["parts"]] == ["--a", "--a", "--b"]
    order = compared(record(flags="--a --b"), record(flags="--b --a"))["components"][0]
    assert [p["path"] for p in order["parts"]] == ["order"]
    assert compared(record(), record("another name"))["same"] is True


def test_other_chips_are_named_device_coordinates():
    other = record().components[2].value.replace("0, 0]", "0, 1]")
    assert compared(record(), record(target=other))["notes"][0].startswith("device-coordinates")


def test_notes_say_what_can_not_be_seen():
    apart = (record(), record(program="cd"))
    assert "no descriptor is remembered" in compared(*apart)["notes"][0]
    nothing = account.difference_account(program(layer()), program(layer()), 5)
    assert compared(*apart, nothing)["notes"] == [account.BLIND_SPOT]
    stripped = account.difference_account(program(layer(1)), program(layer(2)), 1)
    assert compared(*apart, stripped)["notes"] == [account.NOT_REWRITTEN]
    assert (stripped["count"], stripped["stripped"], len(stripped["shown"])) == (2, 2, 1)


def test_rules_that_were_off_for_one_side_are_named():
    """The same raw program, once with all rules: nothing to report to anybody."""
    ours = " ".join(rule.id for rule in rules.RULES)
    left = replace(record(), versions={"rules": ours})
    nothing = account.difference_account(program(layer()), program(layer()), 5)
    for listed in ("none", ours.partition(" ")[2]):
        (note,) = compared(
            left, replace(record(program="cd"), versions={"rules": listed}), nothing
        )["notes"]
        assert note.startswith(f"made under other rules: left only {rules.RULES[0].id}")
        assert account.BLIND_SPOT not in note
    same = compared(left, replace(left, components=record(program="cd").components), nothing)
    assert same["notes"] == [account.BLIND_SPOT]


def test_a_slice_that_one_side_rewrites_only_stays() -> None:
    found = differences(program(layer(1)), program(layer(2), [RULE]))
    assert {d.rule for d in found} == {""}
    assert {d.why for d in found} == {f"{RULE} rewrites the left one only"}


def test_the_nearest_key_differs_in_least():
    others = [
        ("far", record(options="x", flags="y")),
        ("other program", record("q", program="z")),
        ("same program", record(program="z")),
        ("target", record(target="t")),
    ]
    assert [k for k, _ in nearest(record(), others, 9)] == [
        "same program",
        "target",
        "other program",
        "far",
    ]


def test_a_view_that_stays_says_why() -> None:
    """Of final descriptors: who reads it, or what else keeps an unread view where it is."""

    def why(*pair: Program) -> str:
        (found,) = [d for d in differences(*pair) if d.what == "fragment"]
        assert found.left == "buffer buffer, offset 8, sizes (8, 256), strides (256, 1)"
        assert not found.rule
        return found.why

    dense = [program(layer(1, read=True, fragment=8 * k)) for k in (1, 2)]
    assert why(*dense) == (
        "stablehlo.custom_call mla (op 1) reads operand 0 (3 uses), through stablehlo.slice"
    )
    donated = [
        program(replace(layer(1, fragment=8 * k), input_donated=column([1, 0]))) for k in (1, 2)
    ]
    assert "nothing reads it, but a stride is negative" in why(*donated)
