"""The reference against NumPy loops, the forms of the rule against each other, and the words of refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from delta_net_batches import CASES, SPECULATIVE, Ragged, by_loops

from coldstart_kernels import gated_delta_net
from coldstart_kernels.gated_delta_net import Shape, aligned_slots, rule, shard_columns


@functools.cache
def compiled(key_heads: int, window: int) -> Callable[..., tuple[jax.Array, ...]]:
    return jax.jit(
        functools.partial(
            gated_delta_net, key_heads=key_heads, window=window, implementation="reference"
        )
    )


@pytest.mark.parametrize("name", [*CASES, *SPECULATIVE])
def test_reference_equals_loops(name: str) -> None:
    batch = {**CASES, **SPECULATIVE}[name]
    arguments = batch.arguments()
    actual = compiled(batch.key_heads, batch.window)(**arguments)
    for got, wanted in zip(actual, by_loops(batch, arguments), strict=True):
        # fp32 sums of 128 products, over up to 200 tokens of a decaying state. NaN: slots nobody wrote to.
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_padding_is_zero_and_only_own_slots_change() -> None:
    batch = CASES["decode and prompts"]
    arguments = batch.arguments()
    out, *states = compiled(batch.key_heads, batch.window)(**arguments)
    assert not np.asarray(out)[batch.used :].any()
    written = arguments["state_indices"][: len(batch.live)]
    for name, state in zip(("conv_state", "recurrent_state"), states, strict=True):
        before, after = arguments[name].copy(), np.array(state)
        assert np.isfinite(after[written]).all()
        before[written] = after[written] = 0
        assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize("slot", [0, -3, 10_000])
def test_the_null_block_is_neither_read_nor_written(slot: int) -> None:
    batch = CASES["one prompt, resumed"]
    arguments = batch.arguments()
    fresh = arguments | {"seq_lens": np.full_like(arguments["seq_lens"], batch.used)}
    lost = arguments | {
        name: np.full_like(arguments[name], slot) for name in ("state_indices", "read_indices")
    }
    run = compiled(batch.key_heads, batch.window)
    wanted, out = run(**fresh)[0], run(**lost)
    assert np.asarray(wanted).tobytes() == np.asarray(out[0]).tobytes()
    assert np.asarray(out[1]).tobytes() == arguments["conv_state"].tobytes()
    assert np.asarray(out[2]).tobytes() == arguments["recurrent_state"].tobytes()


def rule_inputs(decay: str, chunk: int = 64, width: int = 32) -> list[jax.Array]:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((chunk, width)).astype(np.float32) for _ in range(3))
    g = {
        "none": np.zeros(chunk),
        "mild": -rng.uniform(0, 0.3, chunk),
        # e^(G_i - G_j) above the diagonal would be infinite.
        "steep": -rng.uniform(0, 60, chunk),
    }[decay]
    if decay == "none":
        k[:] = k[0]  # keys that repeat: the worst case for powers of the corrections
    beta = np.ones(chunk) if decay == "none" else rng.uniform(0, 1, chunk)
    state = rng.standard_normal((width, width))
    q, k = rule.normalize(jnp.asarray(q)), rule.normalize(jnp.asarray(k))
    return [q, k, jnp.asarray(v), *(jnp.asarray(x, jnp.float32) for x in (g, beta, state))]


@jax.jit
def by_tokens(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def step(state: jax.Array, token: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, g, beta = token
        out, state = rule.token_step(
            q[:, None], k[:, None], v[None], jnp.exp(g), beta, jnp.sum(q * k)[None, None], state
        )
        return state, out[0]

    state, out = jax.lax.scan(step, state, (q, k, v, g, beta))
    return out, state


@jax.jit
def by_chunk(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    kk, qk = rule.chunk_products(q, k)
    return rule.chunk_step(q, k, v, kk, qk, g[None], beta[None], state)


def by_definition(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    out = []
    for t in range(len(q)):
        s = np.exp(g[t]) * s
        s = s + np.outer(k[t], beta[t] * (v[t] - s.T @ k[t]))
        out.append(s.T @ q[t])
    return np.stack(out), s


@pytest.mark.parametrize("decay", ["none", "mild", "steep"])
def test_chunk_and_token_forms_are_the_rule(decay: str) -> None:
    inputs = rule_inputs(decay)
    wanted = by_definition(*(np.asarray(x, np.float64) for x in inputs))
    for form in (by_tokens, by_chunk):
        for got, expected in zip(form(*inputs), wanted, strict=True):
            # fp32 sums of 32 and of 64 products; entries up to about 5.
            np.testing.assert_allclose(got, expected, atol=1e-5)


def test_padding_rows_of_a_chunk_change_nothing() -> None:
    q, k, v, g, beta, state = rule_inputs("mild")
    keep = jnp.arange(64) < 48
    rows = [jnp.where(keep[:, None], x, 0) for x in (q, k, v)]
    out, new_state = by_chunk(*rows, jnp.where(keep, g, 0), jnp.where(keep, beta, 0), state)
    wanted, wanted_state = by_tokens(*(x[:48] for x in (q, k, v, g, beta)), state)
    np.testing.assert_allclose(out[:48], wanted, atol=1e-5)
    np.testing.assert_allclose(new_state, wanted_state, atol=1e-5)


def test_shards_of_reordered_columns_give_the_whole_layer() -> None:
    batch = Ragged(((1, 5),), ((4, 0), (6, 3)), tokens=12, key_heads=4, width=16)
    arguments = batch.arguments()
    whole = compiled(batch.key_heads, 1)(**arguments)
    shape = Shape(batch.key_heads, batch.value_heads, batch.width, batch.width)
    columns = np.split(shard_columns(shape, 2), 2)
    heads = np.split(np.arange(batch.value_heads), 2)
    outputs = []
    for own_columns, own_heads in zip(columns, heads, strict=True):
        own = dict(arguments)
        own["qkv"] = arguments["qkv"][:, own_columns]
        own["conv_state"] = arguments["conv_state"][..., own_columns]
        own["recurrent_state"] = arguments["recurrent_state"][:, own_heads]
        for name in ("conv_weight", "conv_bias"):
            own[name] = arguments[name][own_columns]
        for name in ("a_log", "dt_bias"):
            own[name] = arguments[name][own_heads]
        for name in ("a", "b"):
            own[name] = arguments[name][:, own_heads]
        out, conv_state, state = compiled(batch.key_heads // 2, 1)(**own)
        outputs.append(np.asarray(out))
        np.testing.assert_array_equal(conv_state, np.asarray(whole[1])[..., own_columns])
        # The same sums, vectorized over another number of heads.
        np.testing.assert_allclose(state, np.asarray(whole[2])[:, own_heads], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), whole[0], atol=1e-6)
    with pytest.raises(ValueError, match="4 key heads don't divide over 3 shards"):
        shard_columns(shape, 3)


def test_slots_of_aligned_prefix_caching() -> None:
    table = np.array([[11, 12, 13], [21, 22, 23], [31, 32, 33], [41, 42, 43]])
    queries, lengths = np.array([16, 16, 1, 0]), np.array([16, 32, 34, 0])
    read, write = aligned_slots(table, queries, lengths, block_size=16)
    assert read.tolist() == [0, 21, 33, 0] and write.tolist() == [11, 22, 33, 0]
    assert read.dtype == write.dtype == np.int32
    with pytest.raises(ValueError, match=r"49 tokens.*\(4, 3\) of blocks of 16"):
        aligned_slots(table, queries, lengths + 15, block_size=16)


def small(**changes: object) -> dict[str, object]:
    batch = Ragged(((1, 5),), ((4, 0),), tokens=8, sequences=3, key_heads=2, width=4)
    return {**batch.arguments(), "key_heads": 2, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"implementation": "cuda"}, "implementation 'cuda'"),
        ({"key_heads": 3}, r"don't divide.*key_heads 3"),
        ({"key_heads": 1}, r"qkv needs 24 columns.*qkv \(8, 32\)"),
        ({"qkv": jnp.zeros((0, 32))}, "empty operand"),
        ({"qkv": jnp.zeros((8, 8, 4))}, "dimensions"),
        ({"qkv": jnp.zeros((8, 32), jnp.bfloat16)}, "one type.*bfloat16, float32"),
        ({"a": jnp.zeros((7, 4))}, r"a and b.*a \(7, 4\)"),
        ({"conv_state": jnp.zeros((8, 4, 32))}, r"\[slots, 3, 32\]"),
        ({"conv_state": jnp.zeros((9, 3, 32))}, "differ in slots"),
        ({"recurrent_state": jnp.zeros((8, 4, 4, 4), jnp.bfloat16)}, "needs float32"),
        ({"conv_weight": jnp.zeros((32, 3))}, r"conv_weight \(32, 3\)"),
        ({"conv_bias": jnp.zeros(31)}, r"conv_bias \(31,\)"),
        ({"a_log": jnp.zeros(3)}, r"a_log \(3,\)"),
        ({"query_start_loc": jnp.zeros(3, jnp.int32)}, r"\[sequences \+ 1\]"),
        ({"seq_lens": jnp.zeros(3)}, "int32 of one dimension.*seq_lens"),
        ({"seq_lens": jnp.zeros(4, jnp.int32)}, r"differ in sequences.*seq_lens \(4,\)"),
        ({"read_offsets": jnp.zeros(4, jnp.int32)}, "differ in sequences"),
        ({"distribution": jnp.zeros(2, jnp.int32)}, "distribution of 3"),
        ({"window": 0}, "window 0"),
        ({"implementation": "pallas"}, "equal head widths, multiples of 128"),
    ],
)
def test_refusals_print_the_shapes(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        gated_delta_net(**small(**changes))
