"""The programs that `bench identity` identifies: unrolled decoder layers over 16 devices, of any number.

A layer is what serving programs are made of, small in numbers and of full length in ops: norm, projections, attention
over a cache, a router with top-k, experts, collectives, and a fragment that a loop carries and nobody reads. Layers are
unrolled, so a module grows with them; a few jitted functions are private functions that every layer calls.
"""

from __future__ import annotations

from typing import Any

DEVICES = 16
WIDTH, HEADS, TOKENS, CACHE, EXPERTS = 64, 4, 8, 32, 8


def lowered(layers: int) -> Any:
    """The program of so many layers, lowered for 16 devices of this process.

    Shapes: x [TOKENS, WIDTH], weights [layers, WIDTH, WIDTH] (sharded over devices by their last dimension) and
    cache [layers, CACHE, WIDTH], all float32.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("tp",))

    @jax.jit
    def norm(x: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    @jax.jit
    def route(scores: Any) -> Any:
        values, chosen = lax.top_k(jax.nn.sigmoid(scores), 2)
        return jnp.zeros_like(scores).at[jnp.arange(TOKENS)[:, None], chosen].set(values)

    def attention(x: Any, cache: Any) -> Any:
        q = x.reshape(TOKENS, HEADS, -1)
        k = cache.reshape(CACHE, HEADS, -1)
        scores = jnp.einsum("thd,chd->htc", q, k) / np.sqrt(WIDTH / HEADS)
        return jnp.einsum("htc,chd->thd", jax.nn.softmax(scores), k).reshape(TOKENS, WIDTH)

    def layer(x: Any, weights: Any, cache: Any, number: int) -> Any:
        start = 1 + number % (CACHE - TOKENS)  # never 0, so that every layer has one to rewrite
        fragment = lax.slice(cache, (start, 0), (start + TOKENS, WIDTH))

        def body(state: Any) -> Any:
            return state[0] + 1, state[1] * 0.5, state[2] * 0.5 + x

        attended = lax.while_loop(
            lambda state: state[0] < 2, body, (0, fragment, attention(norm(x), cache))
        )[2]
        local = norm(x + attended) @ weights
        gathered = lax.all_gather(local, "tp", axis=1, tiled=True)
        gates = route(gathered[:, :EXPERTS])
        mixed = jnp.einsum("te,tw->tw", gates, gathered)
        return norm(x + lax.psum(mixed, "tp") / DEVICES)

    def step(x: Any, weights: Any, cache: Any) -> Any:
        for number in range(layers):
            x = layer(x, weights[number], cache[number], number)
        return x

    specs = (P(), P(None, None, "tp"), P())
    shapes = ((TOKENS, WIDTH), (layers, WIDTH, WIDTH), (layers, CACHE, WIDTH))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    program = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return jax.jit(program).lower(*arguments)
