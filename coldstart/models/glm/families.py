"""The programs beside the backbone: rows, logits, samples, log-probabilities, masks, late tokens. Pure functions.

A server compiles each at every bucket of its sizes. None of them holds anything of a participant's own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

TOP = 8
"""Best tokens whose log-probabilities are reported."""
BITS = 32


def substitute(ids: jax.Array, at: jax.Array, sources: jax.Array) -> jax.Array:
    """Tokens that the last step sampled, put where the host had none yet.

    Args:
        ids: [tokens] int32, as the host knows them.
        at: [tokens] int32: the place in `sources`, or -1 where the host knew.
        sources: [requests] int32, of the last step.
    """
    return jnp.where(at >= 0, sources[jnp.maximum(at, 0)], ids)


def pick_rows(hidden: jax.Array, rows: jax.Array) -> jax.Array:
    """hidden [tokens, width], rows [requests] int32 -> [requests, width]."""
    return hidden[rows]


def logits(hidden: jax.Array, head: jax.Array) -> jax.Array:
    """hidden [requests, width], head [width, vocabulary] -> [requests, vocabulary] fp32."""
    return jnp.dot(hidden, head, preferred_element_type=jnp.float32)


def select_logits(hidden: jax.Array, rows: jax.Array, head: jax.Array) -> jax.Array:
    """Both of the above in one program."""
    return logits(pick_rows(hidden, rows), head)


def sample_greedy(scores: jax.Array) -> jax.Array:
    """scores [requests, vocabulary] -> tokens [requests] int32; of equal scores the first."""
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def sample_random(scores: jax.Array, temperature: jax.Array, key: jax.Array) -> jax.Array:
    """A token of each row's distribution; greedy where the temperature [requests] is 0. `key` is [2] uint32."""
    noise = jax.random.gumbel(jax.random.wrap_key_data(key), scores.shape, jnp.float32)
    scaled = scores / jnp.maximum(temperature, 1e-6)[:, None] + noise
    return jnp.where(temperature > 0, sample_greedy(scaled), sample_greedy(scores))


def sample_greedy_logprobs(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token and all log-probabilities [requests, vocabulary] fp32."""
    return sample_greedy(scores), jax.nn.log_softmax(scores)


def sample_random_logprobs(
    scores: jax.Array, temperature: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The token and all log-probabilities, which the temperature doesn't change."""
    return sample_random(scores, temperature, key), jax.nn.log_softmax(scores)


def gather_logprobs(
    normal: jax.Array, tokens: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of log-probabilities [requests, vocabulary]: the token's own, its rank, the best `TOP` and which they are."""
    own = jnp.take_along_axis(normal, tokens[:, None], axis=1)
    rank = jnp.sum(normal > own, axis=1, dtype=jnp.int32)
    best, which = jax.lax.top_k(normal, TOP)
    return own[:, 0], rank, best, which.astype(jnp.int32)


def prompt_logprobs(hidden: jax.Array, head: jax.Array, following: jax.Array) -> jax.Array:
    """The log-probability of each prompt token's successor [tokens] fp32; `following` is [tokens] int32."""
    normal = jax.nn.log_softmax(logits(hidden, head))
    return jnp.take_along_axis(normal, following[:, None], axis=1)[:, 0]


def structured_mask(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    """scores with what isn't allowed at minus infinity; `allowed` [requests, vocabulary / 32] int32, a bit a token."""
    bits = jax.lax.shift_right_logical(
        allowed[:, :, None], jnp.arange(BITS, dtype=jnp.int32)[None, None, :]
    )
    mask = (bits & 1).reshape(allowed.shape[0], -1)[:, : scores.shape[1]]
    return jnp.where(mask == 1, scores, -jnp.inf)
