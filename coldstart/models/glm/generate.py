"""Greedy generation as a server does it: prompts in steps of bounded tokens, then one token of each per step.

Everything that JAX compiles here is a family of `server.py` at a bucket of its settings; bookkeeping is NumPy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coldstart.models.buckets import ServerSettings, request_buckets, token_buckets
from coldstart.models.glm.server import Server
from coldstart.models.glm.weights import Params
from coldstart.models.tiny_moe import Generation, bucket_for

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class _Token:
    """One token of a step."""

    id: int
    position: int
    request: int


class Generator:
    """A server with its parameters and settings; `generate` starts from an empty cache each time."""

    def __init__(
        self, server: Server, settings: ServerSettings, params: Params, head: jax.Array
    ) -> None:
        self._server, self._model = server, server.model
        self._settings = settings
        self._params, self._head = params, head
        self._token_buckets = token_buckets(settings)
        self._request_buckets = request_buckets(settings)

    def generate(self, prompts: Sequence[Sequence[int]], steps: int) -> Generation:
        """Continue each prompt by `steps` tokens.

        Raises:
            ValueError: too many prompts, or they need more positions or pages than there are.
        """
        table = self._page_table([len(prompt) + steps for prompt in prompts])
        cache = self._model.empty_cache()
        waiting = [
            _Token(id, position, request)
            for request, prompt in enumerate(prompts)
            for position, id in enumerate(prompt)
        ]
        lengths = [len(prompt) for prompt in prompts]
        chosen = np.zeros((steps, len(prompts)), np.int32)
        logits = np.zeros((steps, len(prompts), self._model.config.vocabulary), np.float32)
        for first in range(0, len(waiting), self._settings.budget):
            # Prompts are cut wherever the budget ends; the next step goes on from the cache.
            tokens = waiting[first : first + self._settings.budget]
            ending = [t.request for t in tokens if t.position == lengths[t.request] - 1]
            chosen[0, ending], logits[0, ending], cache = self._step(cache, tokens, ending, table)
        every = list(range(len(prompts)))
        for number in range(1, steps):
            tokens = [_Token(int(chosen[number - 1, r]), lengths[r] + number - 1, r) for r in every]
            chosen[number], logits[number], cache = self._step(cache, tokens, every, table)
        return Generation(chosen.T.tolist(), logits)

    def _page_table(self, lengths: list[int]) -> jax.Array:
        """Pages for each sequence, from the last to the first: nothing may depend on their order."""
        layout, config = self._model.layout, self._model.config
        most = self._model.requests
        if not lengths or len(lengths) > most:
            raise ValueError(f"{len(lengths)} prompts are not 1 to {most}")
        if max(lengths) > config.positions:
            raise ValueError(f"{max(lengths)} tokens exceed {config.positions} positions")
        free = list(range(self._model.pages))
        needed = [layout.pages_for(length) for length in lengths]
        if sum(needed) > len(free):
            raise ValueError(f"{sum(needed)} pages exceed {len(free)}")
        table = np.zeros((most, layout.pages_for(config.positions)), np.int32)
        for request, count in enumerate(needed):
            table[request, :count] = [free.pop() for _ in range(count)]
        return self._model.put(table)

    def _step(
        self, cache: Any, tokens: list[_Token], ending: list[int], table: jax.Array
    ) -> tuple[Array, Array, Any]:
        """One backbone, and rows, logits and tokens of the requests whose last token so far is in it."""
        put, server = self._model.put, self._server
        size = bucket_for(len(tokens), self._token_buckets)
        padded = np.zeros((3, size), np.int32)
        padded[1] = -1
        padded[:, : len(tokens)] = np.array([[t.id, t.position, t.request] for t in tokens]).T
        hidden, cache = server["backbone"](self._params, cache, *map(put, padded), table)
        last = {token.request: row for row, token in enumerate(tokens)}
        rows = np.zeros(bucket_for(max(1, len(ending)), self._request_buckets), np.int32)
        rows[: len(ending)] = [last[request] for request in ending]
        scores = server["logits"](server["pick-rows"](hidden, put(rows)), self._head)
        chosen = np.asarray(server["sample-greedy"](scores))[: len(ending)]
        return chosen, np.asarray(scores)[: len(ending)], cache
