"""The router and the permutation against NumPy: scores in double precision, orders bit for bit."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coldstart_kernels import moe_combine, moe_dispatch, moe_permute, moe_route
from coldstart_kernels.moe_routing import permutation

MODELS = {
    # scoring, experts, chosen, bias, scale
    "qwen": ("softmax", 512, 10, False, 1.0),
    "glm": ("sigmoid", 256, 8, True, 2.5),
}
NAN, INF = float("nan"), float("inf")


def router_inputs(name: str, tokens: int = 37) -> tuple[np.ndarray, np.ndarray | None]:
    _, experts, _, biased, _ = MODELS[name]
    rng = np.random.default_rng(11)
    logits = rng.standard_normal((tokens, experts)).astype(np.float32)
    return logits, rng.standard_normal(experts).astype(np.float32) if biased else None


def by_numpy(name: str, logits: np.ndarray, bias: np.ndarray | None) -> list[np.ndarray]:
    scoring, _, chosen, _, scale = MODELS[name]
    wide = logits.astype(np.float64)
    if scoring == "softmax":
        scores = np.exp(wide - wide.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-wide))
    keys = scores if bias is None else scores + bias
    ids = np.argsort(-keys, axis=1, kind="stable")[:, :chosen]
    picked = np.take_along_axis(scores, ids, 1)
    return [picked / picked.sum(1, keepdims=True) * scale, ids]


@pytest.mark.parametrize("topk", ["sort", "rowmax"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_ids_equal_numpy(name: str, topk: str) -> None:
    scoring, _, chosen, _, scale = MODELS[name]
    logits, bias = router_inputs(name)
    route = functools.partial(
        moe_route,
        chosen=chosen,
        scoring=scoring,
        scale=scale,
        topk=topk,
        implementation="reference",
    )
    weights, ids = jax.jit(route)(logits, bias=bias)
    wanted_weights, wanted_ids = by_numpy(name, logits, bias)
    assert (weights.dtype, ids.dtype) == (jnp.float32, jnp.int32)
    np.testing.assert_array_equal(ids, wanted_ids)
    # fp32 exp, a sum of up to 512 terms and two divisions against double precision: a few ulps of 6e-8.
    np.testing.assert_allclose(weights, wanted_weights, rtol=2e-6)
    np.testing.assert_allclose(np.asarray(weights).sum(1), scale, rtol=1e-6)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    logits = jnp.asarray([[2.0, 1.0, 0.0, -1.0]], jnp.float32)
    bias = jnp.asarray([-5.0, 0.0, 0.0, 5.0], jnp.float32)
    weights, ids = moe_route(
        logits,
        chosen=2,
        scoring="sigmoid",
        bias=bias,
        renormalise=False,
        implementation="reference",
    )
    assert ids.tolist() == [[3, 1]]
    np.testing.assert_allclose(weights[0], 1 / (1 + np.exp([1.0, -1.0])), rtol=1e-6)


@pytest.mark.parametrize("topk", ["sort", "rowmax"])
def test_scores_that_all_round_to_zero_give_no_nan(topk: str) -> None:
    logits = jnp.full((1, 8), -200.0)  # sigmoid is 0 in fp32
    weights, ids = moe_route(
        logits, chosen=3, scoring="sigmoid", topk=topk, implementation="reference"
    )
    assert weights.tolist() == [[0.0, 0.0, 0.0]]
    assert ids.tolist() == [[0, 1, 2]]


def test_the_row_maximum_has_no_sort_and_the_base_has_one() -> None:
    def sorts(topk: str) -> int:
        def route(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return moe_route(x, chosen=4, topk=topk, implementation="reference")

        return jax.jit(route).lower(jnp.zeros((16, 32))).as_text().count("stablehlo.sort")

    assert (sorts("sort"), sorts("rowmax")) == (1, 0)


# --- the permutation ---------------------------------------------------------------------------------------

PERMUTED = {
    # rows, local experts, experts_start, experts
    "some foreign": (513, 8, 8, 32),
    "T = 1": (1, 4, 0, 4),
    "no local rows": (48, 4, 100, 64),
    "one block": (512, 16, 16, 64),
    "many blocks": (1100, 8, 16, 64),
    "buckets = block": (700, 511, 0, 600),
    "buckets over the block": (700, 512, 0, 600),
}


def numpy_permutation(ids: np.ndarray, local: int, start: int) -> list[np.ndarray]:
    keys = np.where((ids >= start) & (ids < start + local), ids - start, local)
    order = np.argsort(keys, kind="stable")
    inverse = np.empty_like(order)
    inverse[order] = np.arange(order.size)
    return [order, inverse, np.bincount(keys, minlength=local + 1)[:local]]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", PERMUTED)
def test_permutation_is_the_stable_argsort_bit_for_bit(name: str, packed: bool) -> None:
    rows, local, start, experts = PERMUTED[name]
    ids = np.random.default_rng(5).integers(0, experts, rows).astype(np.int32)
    check_permutation(ids, local, start, packed)


@pytest.mark.parametrize("packed", [False, True])
def test_all_rows_to_one_expert(packed: bool) -> None:
    check_permutation(np.full(1100, 5, np.int32), 8, 0, packed)


@pytest.mark.parametrize("packed", [False, True])
def test_padding_is_no_local_expert(packed: bool) -> None:
    ids = np.array([-1, 3, 0, -1, 2, 99, 3, np.iinfo(np.int32).min], np.int32)
    check_permutation(ids, 4, 0, packed)


permute = functools.partial(jax.jit, static_argnames=("local_experts", "packed"))(moe_permute)


def check_permutation(ids: np.ndarray, local: int, start: int, packed: bool) -> None:
    found = permute(ids, experts_start=np.int32(start), local_experts=local, packed=packed)
    assert {part.dtype.name for part in found} == {"int32"}
    for got, wanted in zip(found, numpy_permutation(ids, local, start), strict=True):
        np.testing.assert_array_equal(got, wanted)
    order = np.asarray(found.order)
    np.testing.assert_array_equal(np.asarray(found.inverse)[order], np.arange(ids.size))
    # What the third sort of the base path would do is done: own rows stand first, in order.
    foreign = ~np.isin(ids[order], np.arange(start, start + local))
    np.testing.assert_array_equal(np.argsort(foreign, kind="stable"), np.arange(ids.size))
    assert int(found.group_sizes.sum()) == ids.size - foreign.sum()


@pytest.mark.parametrize(
    ("local", "rows", "fits"),
    [
        (64, 1 << 23, True),  # 7 + 23 = 30 bits
        (64, (1 << 23) + 1, False),  # 7 + 24
        (126, 1 << 23, True),  # bits(127) = 7
        (127, 1 << 23, False),  # bits(128) = 8
        (1, 1 << 28, True),  # 2 + 28
        (1, (1 << 28) + 1, False),
        (16, 1, True),
        ((1 << 30) - 2, 1, True),  # 30 + 0
        ((1 << 30) - 1, 1, False),
    ],
)
def test_the_bit_limit(local: int, rows: int, fits: bool) -> None:
    assert permutation.packs(local, rows) is fits
    if fits:  # the largest packed value is a positive int32
        assert (local << (rows - 1).bit_length()) | (rows - 1) < 1 << 31


def permute_text(local: int, rows: int, packed: bool) -> str:
    def permute(ids: jax.Array) -> permutation.Permutation:
        return moe_permute(ids, local_experts=local, packed=packed)

    return jax.jit(permute).lower(jax.ShapeDtypeStruct((rows,), jnp.int32)).as_text()


def test_exactly_at_the_bit_limit() -> None:
    """2**16 rows leave 14 bits: 16382 experts are packed, 16383 are not, and both are right."""
    ids = np.random.default_rng(6).integers(0, 16385, 1 << 16).astype(np.int32)
    for local, packs in ((16382, True), (16383, False)):
        assert permutation.packs(local, ids.size) is packs
        keys = permutation.local_keys(jnp.asarray(ids), 0, local)
        order = jax.lax.sort((keys << 16) | jnp.arange(ids.size, dtype=jnp.int32), is_stable=False)
        wanted = np.argsort(keys, kind="stable")
        if packs:
            np.testing.assert_array_equal(order & 0xFFFF, wanted)


def test_packed_is_one_unstable_sort_of_one_operand() -> None:
    ids = jax.ShapeDtypeStruct((640,), jnp.int32)

    def sorts(packed: bool) -> list[str]:
        permute = functools.partial(moe_permute, local_experts=8, packed=packed)
        text = jax.jit(permute).lower(ids).compile().as_text()
        return [line for line in text.splitlines() if " sort(" in line]

    (only,) = sorts(packed=True)
    assert re.search(r" = s32\[640\]\S* sort\(%?[\w.]+\)", only) and "is_stable=true" not in only
    base = sorts(packed=False)
    assert len(base) == 2 and all("is_stable=true" in line for line in base)


def test_what_does_not_fit_the_bits_takes_the_base_path() -> None:
    # Rows make the difference: the local experts must stay few, or the base's one-hot sum is huge.
    texts = [permute_text(4, (1 << 27) + 1, packed) for packed in (False, True)]
    assert texts[0] == texts[1]
    assert permute_text(4, 1 << 27, packed=True) != permute_text(4, 1 << 27, packed=False)


@pytest.mark.parametrize("buckets", [511, 512, 513])
def test_the_matmul_form_ends_at_the_block(buckets: int) -> None:
    def place(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return permutation.positions_and_counts(keys, buckets)

    text = jax.jit(place).lower(jax.ShapeDtypeStruct((600,), jnp.int32)).as_text()
    assert ("stablehlo.dot_general" in text) is (buckets <= permutation.COUNTING_BLOCK)


@pytest.mark.parametrize("packed", [False, True])
def test_combine_undoes_dispatch_and_keeps_foreign_rows_out(packed: bool) -> None:
    rng = np.random.default_rng(8)
    ids = np.argsort(rng.random((20, 12)), axis=1)[:, :3].astype(np.int32)
    weights = rng.random((20, 3)).astype(np.float32)
    x = rng.standard_normal((20, 16)).astype(np.float32)
    found = permute(ids, local_experts=5, experts_start=np.int32(4), packed=packed)
    rows = np.array(jax.jit(moe_dispatch)(x, found))
    live = int(found.group_sizes.sum())
    np.testing.assert_array_equal(rows, x[np.asarray(found.order) // 3])
    rows[live:] = NAN
    combined = jax.jit(moe_combine)(rows, found, weights)
    local = (ids >= 4) & (ids < 9)
    assert not local[~local.any(1)].any() and (~local).any()
    # Sums of three fp32 products.
    np.testing.assert_allclose(combined, (weights * local).sum(1)[:, None] * x, atol=1e-6)
    assert not np.asarray(combined)[~local.any(1)].any()


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scoring": "relu"}, "scoring 'relu'"),
        ({"topk": "bitonic"}, "topk 'bitonic'"),
        ({"implementation": "cuda"}, "implementation 'cuda'"),
        ({"chosen": 0}, r"chosen 0.*logits \(4, 8\)"),
        ({"chosen": 9}, r"chosen 9.*logits \(4, 8\)"),
        ({"bias": jnp.zeros(7)}, r"one value per expert.*bias \(7,\)"),
        ({"bias": jnp.zeros(8, jnp.bfloat16)}, "float32, got bfloat16"),
    ],
)
def test_router_refusals(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        moe_route(jnp.zeros((4, 8)), **{"chosen": 2, **changes})


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (jnp.zeros(8), r"\[tokens, experts\].*\(8,\)"),
        (jnp.zeros((0, 8)), r"empty operand.*\(0, 8\)"),
        (jnp.zeros((4, 8), jnp.int32), "floating type, got int32"),
    ],
)
def test_logits_refused(logits: jax.Array, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        moe_route(logits, chosen=2)


def test_permutation_refusals() -> None:
    ids = jnp.zeros((4, 2), jnp.int32)
    with pytest.raises(ValueError, match="int32, not empty"):
        moe_permute(ids.astype(jnp.float32), local_experts=2)
    with pytest.raises(ValueError, match="int32, not empty"):
        moe_permute(ids[:0], local_experts=2)
    with pytest.raises(ValueError, match="local_experts 0"):
        moe_permute(ids, local_experts=0)
    found = moe_permute(ids, local_experts=2)
    with pytest.raises(ValueError, match="8 rows are no multiple of 3"):
        moe_dispatch(jnp.zeros((3, 5)), found)
    with pytest.raises(ValueError, match=r"rows \(7, 5\)"):
        moe_combine(jnp.zeros((7, 5)), found, jnp.zeros((4, 2)))
