"""Descriptors that were sound once: bytes flipped, numbers replaced, rows lost and doubled. Reproducible by seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from coldstart.rpc.v1 import descriptor_pb2 as graph

NUMBERS = (0, 1, 2, 3, 7, 63, 255, 65_535, 10**6, 2**31 - 1, 2**31, 2**32 - 1)
FRAGMENT_NUMBERS = (0, 1, -1, 8, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
MESSAGES = (
    "values",
    "nodes",
    "attributes",
    "regions",
    "functions",
    "calls",
    "references",
    "inputs",
    "reads",
)


def mutants(
    bases: Sequence[graph.GraphDescriptor], count: int, seed: int
) -> Iterator[tuple[bytes, bool]]:
    """`count` serialized mutants, each with whether its base was final."""
    rng = random.Random(seed)
    for _ in range(count):
        base = rng.choice(bases)
        if rng.random() < 0.25:
            yield _bytes(rng, base.SerializeToString()), base.final
            continue
        one = graph.GraphDescriptor()
        one.CopyFrom(base)
        for _ in range(rng.randint(1, 3)):
            rng.choice((_number, _number, _row, _swap, _fragment, _text, _head))(rng, one)
        yield one.SerializeToString(), base.final


def _bytes(rng: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
    how = rng.random()
    if how < 0.1:
        del spoilt[rng.randrange(len(spoilt)) :]
    elif how < 0.2:
        at = rng.randrange(len(spoilt))
        spoilt[at:at] = spoilt[: rng.randrange(len(spoilt))]
    return bytes(spoilt)


def _columns(one: graph.GraphDescriptor) -> list:
    found = [one.operands]
    for name in MESSAGES:
        message = getattr(one, name)
        for field, _ in message.ListFields():
            if field.name != "fragments":
                found.append(getattr(message, field.name))
    return [numbers for numbers in found if len(numbers)]


def _number(rng: random.Random, one: graph.GraphDescriptor) -> None:
    """One number of one column: a neighbour's, an odd one, or a little more or less."""
    numbers = rng.choice(_columns(one))
    at = rng.randrange(len(numbers))
    value = rng.choice((*NUMBERS, rng.choice(numbers), numbers[at] + 1, numbers[at] - 1))
    _put(numbers, at, value)


def _put(numbers, at: int, value: int) -> None:
    try:
        numbers[at] = value
    except (ValueError, TypeError):  # this field can't hold it
        numbers[at] = 0


def _row(rng: random.Random, one: graph.GraphDescriptor) -> None:
    """A row more or less in every column of one message, or in one column."""
    message = getattr(one, rng.choice(MESSAGES))
    columns = [getattr(message, f.name) for f, _ in message.ListFields() if f.name != "fragments"]
    columns = [numbers for numbers in columns if len(numbers)]
    if not columns:
        return
    if rng.random() < 0.3:
        columns = [rng.choice(columns)]
    at = rng.randrange(min(map(len, columns)))
    more = rng.random() < 0.5
    for numbers in columns:
        if more:
            numbers.insert(at, numbers[at])
        else:
            del numbers[at]


def _swap(rng: random.Random, one: graph.GraphDescriptor) -> None:
    """Two numbers of one column change places."""
    numbers = rng.choice(_columns(one))
    a, b = rng.randrange(len(numbers)), rng.randrange(len(numbers))
    numbers[a], numbers[b] = numbers[b], numbers[a]


def _fragment(rng: random.Random, one: graph.GraphDescriptor) -> None:
    fragments = one.inputs.fragments
    if not len(fragments) or rng.random() < 0.1:
        fragments.add(input=rng.randrange(3), buffer=rng.randrange(3), sizes=[1], strides=[1])
        return
    fragment, name = (
        rng.choice(fragments),
        rng.choice(("input", "buffer", "offset", "sizes", "strides")),
    )
    value = rng.choice((*FRAGMENT_NUMBERS, rng.randrange(64)))
    try:
        if name in ("sizes", "strides"):
            numbers = getattr(fragment, name)
            numbers[:] = (
                [*numbers[:-1], value] if rng.random() < 0.8 else [value] * rng.randrange(70)
            )
        else:
            setattr(fragment, name, value)
    except ValueError:  # this field can't hold it
        fragment.offset = 5


def _text(rng: random.Random, one: graph.GraphDescriptor) -> None:
    """One string becomes another op's name, something odd, or another string of the table."""
    at = rng.randrange(len(one.strings))
    odd = (
        "",
        "x",
        "func.return",
        "func.call",
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.slice",
    )
    odd += (
        "stablehlo.dynamic_slice",
        "dense<7> : tensor<i32>",
        "array<i64: 8, 0>",
        "\u0000\u2028",
        "y" * 5000,
    )
    one.strings[at] = rng.choice((*odd, rng.choice(one.strings)))


def _head(rng: random.Random, one: graph.GraphDescriptor) -> None:
    what = rng.randrange(5)
    if what == 0:
        one.version = rng.choice((0, 1, 2, 2**32 - 1))
    elif what == 1:
        one.entry = rng.choice((0, 1, 2, 2**32 - 1))
    elif what == 2:
        one.framework = rng.choice(("", "jax", "z" * 10_000, "a\nb"))
    elif what == 3:
        one.program_name = rng.choice(("", "p" * 10_000))
    elif rng.random() < 0.2:
        one.final = not one.final
