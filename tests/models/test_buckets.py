"""A server's programs, counted by the tables that the rules come from."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from coldstart.models.buckets import (
    PRESETS,
    ProgramKey,
    ServerSettings,
    fleet_keys,
    free_keys,
    request_buckets,
    server_keys,
    token_buckets,
)


def grouped(settings: ServerSettings) -> Counter[str]:
    """Programs by group, samplers as one."""
    return Counter(
        "sample" if key.family.startswith("sample") else key.family for key in server_keys(settings)
    )


GROUPS = (
    "backbone",
    "substitute",
    "pick-rows",
    "logits",
    "sample",
    "gather-logprobs",
    "prompt-logprobs",
    "structured-mask",
)


@pytest.mark.parametrize(
    ("budget", "seqs", "t", "r", "wanted", "total", "bucketised"),
    [
        (4096, 16, 9, 2, (9, 30, 18, 2, 8, 2, 7, 2), 78, 87),
        (4096, 32, 9, 3, (9, 40, 26, 3, 12, 3, 7, 3), 103, 121),
        (8192, 32, 10, 3, (10, 44, 29, 3, 12, 3, 7, 3), 111, 131),
        (16384, 32, 11, 3, (11, 48, 32, 3, 12, 3, 7, 3), 119, 141),
        (8192, 64, 10, 4, (10, 55, 37, 4, 16, 4, 7, 4), 137, 167),
    ],
)
def test_tpu_inference_s_counts(
    budget: int,
    seqs: int,
    t: int,
    r: int,
    wanted: tuple[int, ...],
    total: int,
    bucketised: int,
) -> None:
    settings = ServerSettings(budget, seqs)
    assert (len(token_buckets(settings)), len(request_buckets(settings))) == (t, r)
    counted = grouped(settings)
    assert tuple(counted[group] for group in GROUPS) == wanted
    assert len(server_keys(settings)) == sum(counted.values()) == total
    assert len(server_keys(dataclasses.replace(settings, bucketised_attention=True))) == bucketised


@pytest.mark.parametrize(
    ("budget", "wanted", "plain", "substituted"),
    [(4096, (9, 26, 3, 6, 3), 47, 74), (8192, (10, 29, 3, 6, 3), 51, 81)],
)
def test_vllm_torchtpu_s_counts(
    budget: int, wanted: tuple[int, ...], plain: int, substituted: int
) -> None:
    settings = ServerSettings(budget, 32, rules="vllm-torchtpu", asynchronous=False)
    counted = grouped(settings)
    groups = ("backbone", "select-logits", "structured-mask", "sample", "gather-logprobs")
    assert tuple(counted[group] for group in groups) == wanted
    assert len(server_keys(settings)) == plain
    assert len(server_keys(dataclasses.replace(settings, asynchronous=True))) == substituted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("M132-A", (30, 44, 29, 3, 12, 3, 8, 3)),
        ("M132-B", (36, 48, 30, 3, 12, 3, 0, 0)),
        ("M132-C", (11, 60, 41, 4, 16, 0, 0, 0)),
    ],
)
def test_settings_that_come_to_132(name: str, wanted: tuple[int, ...]) -> None:
    counted = grouped(PRESETS[name])
    assert tuple(counted[group] for group in GROUPS) == wanted
    assert len(server_keys(PRESETS[name])) == sum(wanted) == 132


def test_settings_that_come_to_66_and_a_free_list_of_132() -> None:
    counted = grouped(PRESETS["M66"])
    assert counted["backbone"] == counted["backbone-narrow"] == 11
    assert (counted["select-logits"], counted["structured-mask"], counted["sample"]) == (32, 3, 6)
    assert len(server_keys(PRESETS["M66"])) == 66
    free = free_keys([4 << n for n in range(11)], [f"family-{n}" for n in range(12)])
    assert len(set(free)) == 132 and str(free[-1]) == "family-11 tokens=4096"


@pytest.mark.parametrize("name", PRESETS)
def test_keys_are_told_apart_and_the_order_is_fixed(name: str) -> None:
    keys = server_keys(PRESETS[name])
    assert len(set(keys)) == len(keys)
    assert keys == server_keys(dataclasses.replace(PRESETS[name]))
    # Groups are compiled one after the other, backbones first.
    families = [key.family for key in keys]
    assert families[0] == "backbone"
    runs = [a for a, b in zip(families, [*families[1:], ""], strict=True) if a != b]
    assert len(runs) == len(set(runs))


def test_token_buckets_follow_their_settings() -> None:
    assert token_buckets(ServerSettings(4096, 32, extra_tokens=(48,)))[:4] == (16, 32, 48, 64)
    assert token_buckets(ServerSettings(3000, 32))[-2:] == (2048, 3000)
    covering = ServerSettings(3000, 32, rules="vllm-torchtpu")
    assert token_buckets(covering)[-2:] == (2048, 4096)
    assert token_buckets(ServerSettings(512, 8, gap=128)) == (16, 32, 64, 128, 256, 384, 512)
    assert token_buckets(ServerSettings(64, 8, only_tokens=(72, 8, 16))) == (8, 16, 72)
    assert token_buckets(ServerSettings(64, 8, dp=32))[0] == 32
    assert request_buckets(ServerSettings(64, 48)) == (8, 16, 32, 48)
    # A mask belongs to one batch; with data parallelism there is none.
    assert "structured-mask" not in grouped(ServerSettings(64, 8, dp=2))


@pytest.mark.parametrize("participants", [1, 5, 8, 16])
def test_participants_begin_at_parts_that_cover_the_list(participants: int) -> None:
    keys = server_keys(PRESETS["M132-A"])
    first_parts: list[ProgramKey] = []
    for rank in range(participants):
        turned = fleet_keys(keys, rank, participants)
        assert sorted(map(str, turned)) == sorted(map(str, keys))
        first_parts += turned[: len(keys[rank::participants])]
    assert sorted(map(str, first_parts)) == sorted(map(str, keys))
    with pytest.raises(ValueError, match="doesn't exist"):
        fleet_keys(keys, participants, participants)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="rules 'explicit'"):
        ServerSettings(64, 8, rules="explicit")
    with pytest.raises(ValueError, match="'budget': 0"):
        ServerSettings(0, 8)
    with pytest.raises(ValueError, match="out of range: 3"):
        ServerSettings(64, 8, backbone_variants=3)
