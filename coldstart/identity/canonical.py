"""Descriptor in, rewrites out: what may change about a program's dead values, by which rule and why.

Pure and total: no clock, no environment. Rules don't see each other's edits; they edit attributes of dead values
only, so their order can't matter. For a final descriptor the digest of the edited descriptor is its identity.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coldstart.errors import InvalidDescriptor
from coldstart.identity import rules
from coldstart.identity.descriptor import Fragment, GraphDescriptor, column
from coldstart.identity.liveness import analyse
from coldstart.identity.rewrite import FRAGMENT_OFFSET, Rewrite, Rule

_FINAL_TAG = b"coldstart final descriptor 1\n"
_OFFSET = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Canonical:
    """What canonicalization decided about one descriptor."""

    rewrites: tuple[Rewrite, ...]
    reasons: tuple[str, ...]  # one line per application of a rule, for records and `explain`
    digest: str = ""  # of the edited descriptor; final descriptors only


def canonicalize(
    descriptor: GraphDescriptor,
    rules_off: Iterable[str] = (),
    *,
    rewriting: Sequence[Rule] = rules.REWRITES,
) -> Canonical:
    """The rewrites of a descriptor.

    Args:
        rules_off: names of rules that must not be used.
        rewriting: the rules to use; a test that breaks one on purpose passes its own.
    """
    off = rules.known(rules_off)
    live = analyse(descriptor)
    rewrites = tuple(
        rewrite
        for rule in rewriting
        if rule.name not in off and rule.find is not None
        for rewrite in rule.find(descriptor, live)
    )
    reasons = tuple(
        dict.fromkeys(f"{r.rule}: @{r.function} op {r.op}: {r.reason}" for r in rewrites)
    )
    digest = digest_of(apply(descriptor, rewrites)) if descriptor.final else ""
    return Canonical(rewrites, reasons, digest)


def apply(d: GraphDescriptor, rewrites: Iterable[Rewrite]) -> GraphDescriptor:
    """The descriptor with rewrites made. Raises InvalidDescriptor for one that names nothing."""
    strings = list(d.strings)
    index = {text: i for i, text in enumerate(strings)}
    node_of = {
        d.strings[name]: int(node)
        for name, node in zip(d.function_name, d.function_node, strict=True)
    }
    values = d.attribute_value.copy()
    fragments = {fragment.input: fragment for fragment in d.fragments}
    for rewrite in rewrites:
        if rewrite.attribute == FRAGMENT_OFFSET:
            fragments[rewrite.op] = _moved(d, fragments, rewrite)
            continue
        base = node_of.get(rewrite.function, -1)
        node = base + 1 + rewrite.op
        if base < 0 or not base < node < d.structure.subtree_end[base]:
            raise InvalidDescriptor(f"a rewrite names op {rewrite.op} of @{rewrite.function}")
        begin, end = d.attribute_start[node], d.attribute_start[node + 1]
        slots = [i for i in range(begin, end) if strings[d.attribute_name[i]] == rewrite.attribute]
        if len(slots) != 1:
            raise InvalidDescriptor(f"a rewrite names attribute {rewrite.attribute} of node {node}")
        if rewrite.value not in index:
            index[rewrite.value] = len(strings)
            strings.append(rewrite.value)
        values[slots[0]] = index[rewrite.value]
    return replace(
        d,
        strings=tuple(strings),
        attribute_value=column(values),
        fragments=tuple(fragments.values()),
    )


def _moved(d: GraphDescriptor, fragments: dict[int, Fragment], rewrite: Rewrite) -> Fragment:
    if rewrite.function != d.strings[d.function_name[d.entry]] or rewrite.op not in fragments:
        raise InvalidDescriptor(
            f"a rewrite names the fragment of input {rewrite.op} of @{rewrite.function}"
        )
    if not _OFFSET.fullmatch(rewrite.value):
        raise InvalidDescriptor(f"a rewrite moves a fragment to {rewrite.value!r:.40}")
    return replace(fragments[rewrite.op], offset=int(rewrite.value))


# Columns that hold string indices; the rest hold numbers that mean themselves.
_TEXT_COLUMNS = (
    "value_type",
    "value_sharding",
    "node_op",
    "attribute_name",
    "attribute_value",
    "function_name",
)
_NUMBER_COLUMNS = (
    "node_effect",
    "node_first_result",
    "node_results",
    "node_operands",
    "node_attributes",
    "operands",
    "region_owner",
    "region_first_node",
    "region_end_node",
    "region_first_argument",
    "region_arguments",
    "function_node",
    "function_public",
    "call_node",
    "call_function",
    "reference_node",
    "reference_function",
    "input_alias_output",
    "input_donated",
    "read_operand",
    "read_state",
)


def digest_of(d: GraphDescriptor) -> str:
    """sha256 (hex) of a final descriptor's contents, whatever the order of its string table.

    Left out: the program's name, the reasons of read sets, strings that nothing uses.
    """
    digest = hashlib.sha256(_FINAL_TAG)

    def feed(data: bytes) -> None:
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)

    used = sorted({d.strings[i] for name in _TEXT_COLUMNS for i in np.unique(getattr(d, name))})
    rank = {text: i for i, text in enumerate(used)}
    to_rank = np.asarray([rank.get(text, 0) for text in d.strings], dtype=np.int64)
    feed(f"{d.version} {d.entry} {d.framework}".encode())
    feed(len(used).to_bytes(8, "big"))
    for text in used:
        feed(text.encode("utf-8", "surrogatepass"))
    for name in _TEXT_COLUMNS:
        feed(name.encode())
        feed(to_rank[getattr(d, name)].astype(">i8").tobytes())
    for name in _NUMBER_COLUMNS:
        feed(name.encode())
        feed(getattr(d, name).astype(">i8").tobytes())
    for fragment in sorted(d.fragments, key=lambda f: f.input):
        feed(repr((fragment.input, fragment.buffer, fragment.offset)).encode())
        feed(repr((fragment.sizes, fragment.strides)).encode())
    return digest.hexdigest()
