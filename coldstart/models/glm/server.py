"""Every program of a server of the model: each family jitted once, lowered at any bucket from shapes alone.

`Server` binds the families to a model's mesh with their shardings spelt out. `generate` calls these functions and no
others, so what `server_programs` lowers ahead of time is what a serving process asks for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from coldstart.models import buckets
from coldstart.models.buckets import ProgramKey, ServerSettings
from coldstart.models.glm import admission, counts, families, weights
from coldstart.models.glm.config import GLM52_FP8, GLM52_TINY, GlmConfig
from coldstart.models.glm.layout import ALL, Layout
from coldstart.models.glm.model import WHOLE, GlmModel
from coldstart.models.programs import Program

_SCORES = PartitionSpec(None, ALL)
_NARROW = 4
"""A narrower page table holds this part of the positions."""

# Family -> its arguments and results, by kind; the kinds' shapes are in `Server._shape`.
_FAMILIES: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]] = {
    "substitute": (families.substitute, ("ids", "ids", "sources"), ("ids",)),
    "pick-rows": (families.pick_rows, ("token rows", "requests"), ("rows",)),
    "logits": (families.logits, ("rows", "head"), ("scores",)),
    "select-logits": (families.select_logits, ("token rows", "requests", "head"), ("scores",)),
    "sample-greedy": (families.sample_greedy, ("scores",), ("requests",)),
    "sample-random": (
        families.sample_random, ("scores", "temperature", "key"), ("requests",),
    ),
    "sample-greedy-logprobs": (
        families.sample_greedy_logprobs, ("scores",), ("requests", "scores"),
    ),
    "sample-random-logprobs": (
        families.sample_random_logprobs,
        ("scores", "temperature", "key"),
        ("requests", "scores"),
    ),
    "gather-logprobs": (
        families.gather_logprobs, ("scores", "requests"), ("requests",) * 4,
    ),
    "prompt-logprobs": (
        families.prompt_logprobs, ("token rows", "head", "tokens"), ("tokens",),
    ),
    "structured-mask": (families.structured_mask, ("scores", "mask"), ("scores",)),
}  # fmt: skip


class Server:
    """The families on one model's mesh."""

    def __init__(self, model: GlmModel) -> None:
        self.model = model
        self._jitted = {family: self._jit(family) for family in _FAMILIES}

    def __getitem__(self, family: str) -> Any:
        """The jitted function of a family; `backbone` is the model's."""
        if family in ("backbone", "backbone-narrow"):
            return self.model.backbone
        return self._jitted[family]

    def _jit(self, family: str) -> Any:
        function, taken, given = _FAMILIES[family]
        results = [self._split(kind) for kind in given]
        return jax.jit(
            function,
            in_shardings=self.model.shardings(tuple(self._split(kind) for kind in taken)),
            out_shardings=self.model.shardings(results[0] if len(results) == 1 else tuple(results)),
        )

    @staticmethod
    def _split(kind: str) -> PartitionSpec:
        return _SCORES if kind in ("scores", "head") else WHOLE

    def _shape(self, kind: str, bucket: Mapping[str, int]) -> tuple[tuple[int, ...], Any]:
        c = self.model.config
        rows, tokens = bucket.get("requests", 0), bucket.get("tokens", 0)
        activations = weights.activation_type(c)
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "ids": ((bucket.get("ids", 0),), np.int32),
            "sources": ((bucket.get("sources", 0),), np.int32),
            "tokens": ((tokens,), np.int32),
            "requests": ((rows,), np.int32),
            "token rows": ((tokens, c.hidden), activations),
            "rows": ((rows, c.hidden), activations),
            "head": ((c.hidden, c.vocabulary), activations),
            "scores": ((rows, c.vocabulary), np.float32),
            "temperature": ((rows,), np.float32),
            "key": ((2,), np.uint32),
            "mask": ((rows, -(-c.vocabulary // families.BITS)), np.int32),
        }
        return shapes[kind]

    def lower(self, key: ProgramKey) -> jax.stages.Lowered:
        """One program from shapes alone.

        Raises:
            KeyError: no such family.
        """
        bucket = dict(key.bucket)
        if key.family == "backbone":
            return self.model.lower_backbone(bucket["tokens"], bucket["requests"])
        if key.family == "backbone-narrow":
            narrow = self.model.config.positions // _NARROW
            return self.model.lower_backbone(bucket["tokens"], bucket["requests"], narrow)
        arguments = [
            self.model.abstract(*self._shape(kind, bucket), self._split(kind))
            for kind in _FAMILIES[key.family][1]
        ]
        lowered: jax.stages.Lowered = self._jitted[key.family].lower(*arguments)
        return lowered


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A model as it is served: all that its programs' shapes follow from."""

    config: GlmConfig
    layout: Layout
    settings: ServerSettings
    pages: int
    """Pages of the KV pool."""
    scan: bool = False
    headroom_bytes: int = 4_500_000_000
    """What a device must have left for activations, temporaries and programs."""

    def __post_init__(self) -> None:
        """Refuse before anything is compiled.

        Raises:
            HbmExceeded: a device can't hold it.
            ValueError: a layout that the sizes can't be split over.
        """
        self.layout.check(self.config)
        admission.admit(self.config, self.layout, self.pool_bytes, self.headroom_bytes)

    @property
    def pool_bytes(self) -> int:
        """The KV pool of one device."""
        return self.pages * self.layout.page * counts.kv_bytes_per_token(self.config)

    @property
    def requests(self) -> int:
        """The most sequences of a step, as a bucket."""
        return buckets.request_buckets(self.settings)[-1]

    def model(self, devices: Sequence[jax.Device]) -> GlmModel:
        """The model on these devices."""
        return GlmModel(
            self.config, self.layout, devices,
            pages=self.pages, requests=self.requests, scan=self.scan,
        )  # fmt: skip


def server_programs(deployment: Deployment) -> list[Program]:
    """Every program of the deployment, in the order of compiling."""

    @functools.lru_cache(maxsize=2)
    def server(devices: tuple[jax.Device, ...]) -> Server:
        return Server(deployment.model(devices))

    def program(key: ProgramKey) -> Program:
        return Program(
            f"{deployment.config.name}.{key.family}",
            dict(key.bucket),
            deployment.layout.tp,
            lambda devices: server(tuple(devices)).lower(key),
        )

    return [program(key) for key in buckets.server_keys(deployment.settings)]


MODELS = {config.name: config for config in (GLM52_FP8, GLM52_TINY)}


def deployment(
    model: str = GLM52_TINY.name, settings: str = "M132-A", dcp: int = 16, scan: bool = False
) -> Deployment:
    """A deployment on 16 devices by names; the tiny model has pages and sequences to match.

    Raises:
        ValueError: no such model or settings.
    """
    if model not in MODELS or settings not in buckets.PRESETS:
        raise ValueError(
            f"no deployment of {model!r} with {settings!r}; there are {sorted(MODELS)} and "
            f"{sorted(buckets.PRESETS)}"
        )
    tiny = model == GLM52_TINY.name
    layout = Layout(16 // dcp, dcp, page=64 // dcp if tiny else 256)
    return Deployment(
        MODELS[model], layout, buckets.PRESETS[settings], pages=64 if tiny else 2048, scan=scan
    )


def programs(**names: Any) -> list[Program]:
    """For plans: `programs = "coldstart.models.glm.server:programs"`, arguments as `deployment` takes them."""
    return server_programs(deployment(**names))
