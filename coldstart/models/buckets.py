"""Which programs a serving runtime compiles: settings to an ordered list of keys. Pure, no JAX.

Two runtimes' rules, by what they do: padded sizes for tokens (T) and requests (R), and for each group of programs the
buckets of these sizes that it is compiled at. The order is the one in which the runtime compiles them.

    T   doubling from the smallest bucket; with a gap, doubling up to it and then steps of it; extra sizes joined
    R   doubling from 8 up to the most sequences

The length of a context adds no program: the page table has one width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

RULES = ("tpu-inference", "vllm-torchtpu")
PROMPT_LOGPROBS_MOST = 1024
"""Prompt log-probabilities are compiled up to so many tokens; longer prompts go through in pieces."""
SMALLEST_REQUESTS = 8


@dataclasses.dataclass(frozen=True)
class ProgramKey:
    """One program at one bucket, without the model's name."""

    family: str
    bucket: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join([self.family, *(f"{name}={size}" for name, size in self.bucket)])


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """What decides a server's programs."""

    budget: int
    """Most tokens of a step."""
    max_seqs: int
    """Most sequences of a step."""
    rules: str = "tpu-inference"
    min_tokens: int = 16
    gap: int = 0
    """Padding gap of token buckets; 0 doubles all the way. tpu-inference only."""
    extra_tokens: tuple[int, ...] = ()
    """Token buckets beside the rule's."""
    only_tokens: tuple[int, ...] = ()
    """Token buckets instead of the rule's."""
    bucketised_attention: bool = False
    """A backbone for each bucket of requests, not only for the most. tpu-inference only."""
    backbone_variants: int = 1
    """Two with a second, narrower page table. vllm-torchtpu only."""
    asynchronous: bool = True
    """Asynchronous scheduling: tokens that are not known yet are substituted on the device."""
    log_probabilities: bool = True
    prompt_log_probabilities: bool = True
    structured: bool = True
    """Masks of structured decoding."""
    dp: int = 1
    """Data parallelism: budget and sequences are for each."""

    def __post_init__(self) -> None:
        if self.rules not in RULES:
            raise ValueError(f"rules {self.rules!r} are none of {RULES}")
        least = {"budget": self.budget, "max_seqs": self.max_seqs, "min_tokens": self.min_tokens}
        least |= {"dp": self.dp, "gap": self.gap + 1}
        low = {name: size for name, size in least.items() if size < 1}
        if low or self.backbone_variants not in (1, 2):
            raise ValueError(f"settings out of range: {low or self.backbone_variants}")


def token_buckets(settings: ServerSettings) -> tuple[int, ...]:
    """Padded numbers of tokens, ascending."""
    if settings.only_tokens:
        return tuple(sorted(set(settings.only_tokens)))
    budget = settings.budget * settings.dp
    size = max(settings.min_tokens, _next_power(settings.dp))
    sizes = [size]
    while size < budget:
        size = size + settings.gap if settings.gap and size >= settings.gap else 2 * size
        sizes.append(size)
    if settings.rules == "tpu-inference":  # the budget itself is the last; the other rule covers it
        sizes = [size for size in sizes if size < budget] + [budget]
    return tuple(sorted({*sizes, *settings.extra_tokens}))


def request_buckets(settings: ServerSettings) -> tuple[int, ...]:
    """Padded numbers of requests, ascending."""
    most = settings.max_seqs * settings.dp
    sizes = [max(SMALLEST_REQUESTS, _next_power(settings.dp))]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return tuple(sizes)


def server_keys(settings: ServerSettings) -> list[ProgramKey]:
    """Every program of a server, in the order of compiling; no two are equal."""
    rule = _tpu_inference if settings.rules == "tpu-inference" else _vllm_torchtpu
    return rule(settings, token_buckets(settings), request_buckets(settings))


def free_keys(tokens: Iterable[int], families: Iterable[str]) -> list[ProgramKey]:
    """Each of the families at each of the token buckets, for lists that follow no runtime's rule."""
    sizes = tuple(tokens)
    return [ProgramKey(family, (("tokens", size),)) for family in families for size in sizes]


def fleet_keys(keys: list[ProgramKey], rank: int, participants: int) -> list[ProgramKey]:
    """The same list, turned so that each participant begins at another part: together their first parts are all of it.

    Raises:
        ValueError: no such participant.
    """
    if not 0 <= rank < participants:
        raise ValueError(f"participant {rank} of {participants} doesn't exist")
    dealt = [key for first in range(participants) for key in keys[first::participants]]
    start = sum(len(keys[first::participants]) for first in range(rank))
    return dealt[start:] + dealt[:start]


# --- the rules ---------------------------------------------------------------------------------------


def _tpu_inference(
    settings: ServerSettings, tokens: tuple[int, ...], requests: tuple[int, ...]
) -> list[ProgramKey]:
    attention = requests if settings.bucketised_attention else requests[-1:]
    keys = [_key("backbone", tokens=t, requests=r) for t in tokens for r in attention]
    if settings.asynchronous:
        # A source of one row, and one for each bucket of requests.
        keys += [
            _key("substitute", ids=size, sources=source)
            for size in sorted({*tokens, *requests})
            for source in (1, *requests)
        ]
    keys += [_key("pick-rows", tokens=t, requests=r) for t in tokens for r in requests if r <= t]
    keys += [_key("logits", requests=r) for r in requests]
    for sampler in ("sample-greedy", "sample-random"):
        for ending in ("", "-logprobs"):
            keys += [_key(sampler + ending, requests=r) for r in requests]
    if settings.log_probabilities:
        keys += [_key("gather-logprobs", requests=r) for r in requests]
    if settings.prompt_log_probabilities:
        keys += [_key("prompt-logprobs", tokens=t) for t in tokens if t <= PROMPT_LOGPROBS_MOST]
    if settings.structured and settings.dp == 1:
        keys += [_key("structured-mask", requests=r) for r in requests]
    return keys


def _vllm_torchtpu(
    settings: ServerSettings, tokens: tuple[int, ...], requests: tuple[int, ...]
) -> list[ProgramKey]:
    variants = ("backbone", "backbone-narrow")[: settings.backbone_variants]
    keys = [_key(variant, tokens=t, requests=requests[-1]) for variant in variants for t in tokens]
    for t in tokens:
        for r in requests:
            keys.append(_key("select-logits", tokens=t, requests=r))
            if r >= min(t, requests[-1]):
                break
    if settings.structured:
        keys += [_key("structured-mask", requests=r) for r in requests]
    for sampler in ("sample-greedy", "sample-random"):
        keys += [_key(sampler, requests=r) for r in requests]
    if settings.log_probabilities:
        keys += [_key("gather-logprobs", requests=r) for r in requests]
    if settings.asynchronous:
        keys += [_key("substitute", ids=t, sources=r) for t in tokens for r in requests]
    return keys


def _key(family: str, **bucket: int) -> ProgramKey:
    return ProgramKey(family, tuple(bucket.items()))


def _next_power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


PRESETS = {
    "M132-A": ServerSettings(4096, 32, bucketised_attention=True, extra_tokens=(48,)),
    "M132-B": ServerSettings(
        8192,
        32,
        bucketised_attention=True,
        extra_tokens=(4, 8),
        prompt_log_probabilities=False,
        structured=False,
    ),
    "M132-C": ServerSettings(
        16_384,
        64,
        log_probabilities=False,
        prompt_log_probabilities=False,
        structured=False,
    ),
    "M66": ServerSettings(
        16_384, 32, rules="vllm-torchtpu", backbone_variants=2, asynchronous=False
    ),
}
"""Settings whose counts fit what a deployment of GLM-5.2 on 16 devices reported: 132 or 66 programs."""
