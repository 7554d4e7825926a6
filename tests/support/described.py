"""A small program, described by hand: a participant's slice, a kernel that reads it or doesn't, a call."""

from __future__ import annotations

from coldstart.identity.descriptor import DescriptorBuilder, Fragment, GraphDescriptor, Read

T = "tensor<8x256xf32>"


def layer(
    rank: int = 1,
    *,
    read: bool = False,
    op: str = "stablehlo.tanh",
    kind: str = T,
    other: str = "helper",
    fragment: int = 0,
    chained: bool = False,
) -> GraphDescriptor:
    """A slice, a kernel that reads it or doesn't, and a call of another function."""
    b = DescriptorBuilder("test", "p")
    s = b.string
    top_node, _ = b.node(s("builtin.module"))
    top, _ = b.open_region(top_node)
    main, _ = b.node(s("func.func"), attributes=[(s("sym_name"), s('"main"'))])
    b.function(main, "main", public=True)
    body, q = b.open_region(main, [s(T), s(T)])
    b.input()
    b.input()
    if fragment:
        b.fragment(Fragment(0, "buffer", fragment, (8, 256), (256, 1)))
    begin = f"array<i64: {rank * 8}, 0>"
    limits = f"array<i64: {rank * 8 + 8}, 256>"
    _, cut = b.node(
        s("stablehlo.slice"),
        [q],
        [s(T)],
        [(s("limit_indices"), s(limits)), (s("start_indices"), s(begin))],
    )
    fed = b.node(s("stablehlo.negate"), [cut], [s(T)])[1] if chained else cut
    kernel, x = b.node(
        s("stablehlo.custom_call"), [fed, q + 1], [s(T)], [(s("kernel_name"), s('"mla"'))]
    )
    b.read(kernel, 0, Read.READ if read else Read.UNREAD, "3 uses" if read else "no use")
    b.read(kernel, 1, Read.READ, "used")
    _, y = b.node(s(op), [x], [s(kind)])
    call, z = b.node(s("func.call"), [y], [s(kind)], [(s("callee"), s(f"@{other}"))])
    b.node(s("func.return"), [z])
    b.close_region(body)
    private, _ = b.node(s("func.func"), attributes=[(s("sym_name"), s(f'"{other}"'))])
    b.call(call, b.function(private, other, public=False))
    inner, a = b.open_region(private, [s(kind)])
    b.node(s("func.return"), [a])
    b.close_region(inner)
    b.close_region(top)
    return b.build()
