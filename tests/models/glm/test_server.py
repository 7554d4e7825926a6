"""The programs of a server: what the small ones compute, and that the list of them is what a server asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from coldstart.models import buckets
from coldstart.models.buckets import ServerSettings
from coldstart.models.glm import families, server
from coldstart.models.glm.admission import HbmExceeded
from coldstart.models.glm.config import GLM52_TINY
from coldstart.models.glm.generate import Generator
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.server import Deployment, Server, deployment, server_programs
from coldstart.models.programs import Program

ROWS, WORDS = 5, 70  # words of a vocabulary that no 32 divides


@pytest.fixture
def scores() -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).standard_normal((ROWS, WORDS)).astype(np.float32)


def normal(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = scores.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def test_late_tokens_are_put_where_they_were_awaited() -> None:
    ids = np.array([7, 0, 9, 0], np.int32)
    put = families.substitute(ids, np.array([-1, 2, -1, 0], np.int32), np.array([5, 6, 8]))
    assert np.asarray(put).tolist() == [7, 8, 9, 5]


def test_rows_and_logits() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((6, 8)).astype(np.float32)
    head = rng.standard_normal((8, WORDS)).astype(np.float32)
    rows = np.array([4, 0, 4], np.int32)
    wanted = hidden.astype(np.float64)[rows] @ head
    found = families.logits(families.pick_rows(jax.numpy.asarray(hidden), rows), head)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    both = families.select_logits(jax.numpy.asarray(hidden), rows, head)
    np.testing.assert_allclose(both, wanted, rtol=1e-5, atol=1e-5)
    following = rng.integers(0, WORDS, 6).astype(np.int32)
    prompt = families.prompt_logprobs(hidden, head, following)
    every = normal(hidden.astype(np.float64) @ head)
    np.testing.assert_allclose(prompt, every[np.arange(6), following], rtol=1e-5, atol=1e-5)


def test_samples_follow_their_distribution(scores: np.ndarray[Any, Any]) -> None:
    greedy, every = families.sample_greedy_logprobs(scores)
    assert np.asarray(greedy).tolist() == scores.argmax(axis=1).tolist()
    np.testing.assert_allclose(every, normal(scores), rtol=1e-5, atol=1e-5)
    # One row over and over, at temperature 2; of 4000 draws a share is off by less than 4 of its deviations.
    draws, temperature = 4000, 2.0
    repeated = np.repeat(scores[:1], draws, axis=0)
    key = np.array([1, 2], np.uint32)
    drawn = families.sample_random(repeated, np.full(draws, temperature, np.float32), key)
    shares = np.bincount(np.asarray(drawn), minlength=WORDS) / draws
    wanted = np.exp(normal(scores[:1] / temperature))[0]
    assert np.all(np.abs(shares - wanted) < 4 * np.sqrt(wanted / draws))
    cold, _ = families.sample_random_logprobs(scores, np.zeros(ROWS, np.float32), key)
    assert np.asarray(cold).tolist() == scores.argmax(axis=1).tolist()


def test_log_probabilities_of_a_token_and_of_the_best(scores: np.ndarray[Any, Any]) -> None:
    every = normal(scores).astype(np.float32)
    tokens = np.array([3, 0, 69, 10, 5], np.int32)
    own, rank, best, which = map(np.asarray, families.gather_logprobs(every, tokens))
    order = np.argsort(-every, axis=1)
    np.testing.assert_array_equal(own, every[np.arange(ROWS), tokens])
    assert rank.tolist() == [order[r].tolist().index(t) for r, t in enumerate(tokens)]
    np.testing.assert_array_equal(which, order[:, : families.TOP])
    np.testing.assert_array_equal(best, np.take_along_axis(every, which, axis=1))


def test_a_mask_leaves_what_is_allowed(scores: np.ndarray[Any, Any]) -> None:
    allowed = np.random.default_rng(1).random((ROWS, 96)) < 0.3
    allowed[:, 31] = True  # the sign bit of a word
    packed = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    found = np.asarray(families.structured_mask(scores, packed))
    np.testing.assert_array_equal(found, np.where(allowed[:, :WORDS], scores, -np.inf))


# --- the list ----------------------------------------------------------------------------------------


def short(preset: str, **changes: Any) -> Deployment:
    """A deployment of the tiny model with three layers."""
    config = dataclasses.replace(GLM52_TINY, layers=3)
    return dataclasses.replace(deployment(settings=preset), config=config, **changes)


@pytest.mark.parametrize(("preset", "count"), [("M132-A", 132), ("M132-B", 132), ("M66", 66)])
def test_a_program_for_each_key(preset: str, count: int) -> None:
    keys = buckets.server_keys(buckets.PRESETS[preset])
    listed = server.programs(settings=preset)
    assert len(listed) == count
    for key, program in zip(keys, listed, strict=True):
        assert program.name == f"glm5.2-tiny.{key.family}"
        assert tuple(program.bucket.items()) == key.bucket and program.devices == 16


def smallest(programs: list[Program]) -> list[Program]:
    """The first of each family."""
    found: dict[str, Program] = {}
    for program in programs:
        found.setdefault(program.name, program)
    return list(found.values())


@pytest.mark.parametrize("preset", ["M132-A", "M66"])
def test_each_family_lowers_on_16_devices(preset: str) -> None:
    programs = smallest(server_programs(short(preset)))
    assert len(programs) == {"M132-A": 11, "M66": 7}[preset]
    for program in programs:
        text = program.lower(jax.devices()).as_text()
        assert "mhlo.num_partitions = 16" in text, program.name


def test_a_deployment_that_does_not_fit_is_refused_before_it_is_lowered() -> None:
    """A pool of 37 GB leaves room for a copy of o_proj at DCP 8; one of 40 GB doesn't at DCP 16."""
    served = dataclasses.replace(deployment("glm5.2-fp8"), pages=2613)
    assert served.pool_bytes / 1e9 == pytest.approx(37, abs=0.02)
    merged = {
        dcp: dataclasses.replace(served.layout, model=16 // dcp, dcp=dcp, replicate_o_proj=True)
        for dcp in (8, 16)
    }
    assert dataclasses.replace(served, layout=merged[8]).layout.replicate_o_proj
    larger = dataclasses.replace(served, pages=2613 * 40 // 37)
    with pytest.raises(HbmExceeded, match=r"needs 4.50 GB .* replicated o_proj 7.36"):
        dataclasses.replace(larger, layout=merged[16])


def test_deployments_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="no deployment of 'glm6'"):
        deployment("glm6")
    with pytest.raises(ValueError, match="with 'M7'"):
        deployment(settings="M7")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dcp", [16, 8])
def test_all_132_lower_on_the_tiny_model(dcp: int) -> None:
    programs = server.programs(settings="M132-A", dcp=dcp)
    devices = jax.devices()
    texts = [program.lower(devices).as_text() for program in programs]
    assert len(set(texts)) == len(programs) == 132


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_all_132_lower_at_full_size() -> None:
    """For a described slice, with kernels, as a scan."""
    pytest.importorskip("libtpu", reason="needs libtpu to lower for a described TPU")
    from jax.experimental import topologies

    devices = list(topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices)
    programs = server.programs(model="glm5.2-fp8", settings="M132-A", scan=True)
    texts = [program.lower(devices).as_text() for program in programs]
    assert len(set(texts)) == 132
    backbones = [
        text
        for program, text in zip(programs, texts, strict=True)
        if program.name == "glm5.2-fp8.backbone"
    ]
    assert len(backbones) == 30
    assert all("@tpu_custom_call" in text for text in backbones)


# --- and what runs -----------------------------------------------------------------------------------


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The text of every module that JAX hands to its compiler, cached or not."""
    from jax._src import compiler

    jax.clear_caches()
    seen: list[str] = []
    stock: Callable[..., Any] = compiler.compile_or_get_cached

    def watched(backend: Any, computation: Any, *rest: Any, **named: Any) -> Any:
        seen.append(computation.operation.get_asm(enable_debug_info=False))
        return stock(backend, computation, *rest, **named)

    monkeypatch.setattr(compiler, "compile_or_get_cached", watched)
    yield seen


@pytest.mark.long
@pytest.mark.timeout(900)
def test_generation_compiles_listed_programs_and_nothing_else(compiles: list[str]) -> None:
    settings = ServerSettings(64, 8)
    served = Deployment(
        dataclasses.replace(GLM52_TINY, layers=3), Layout(2, 8, page=8), settings, pages=20
    )
    model = served.model(jax.devices())
    generator = Generator(Server(model), settings, model.params(), model.head())
    generator.generate([[5, 6, 7], [8] * 40], 3)
    listed = {
        program.lower(jax.devices()).compiler_ir().operation.get_asm(): program.name
        for program in server_programs(served)
    }
    assert compiles and [listed.get(text, "another") for text in compiles].count("another") == 0
    compiles.clear()
    generator.generate([[9] * 35, [1, 2, 3, 4]], 5)
    assert compiles == []
