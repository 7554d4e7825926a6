"""Target names, and the environment that workers get for them."""

from __future__ import annotations

import pytest

from coldstart.errors import ConfigError
from coldstart.warmup.targets import parse_target

FLAG = "--xla_force_host_platform_device_count"


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("cpu:1", "cpu", 1),
        ("cpu:16", "cpu", 16),
        ("cpu:1x8", "cpu", 8),
        ("cpu:2x8", "cpu-hosts", 8),
        ("local", "local", None),
        ("tpu7x:2x2x2", "topology", None),
        ("v5e:2x4", "topology", None),
    ],
)
def test_names(name: str, kind: str, count: int | None) -> None:
    target = parse_target(name)
    assert (target.kind, target.count) == (kind, count)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu:2x", "a number of devices"),
        ("cpu:65x1", "up to 64 hosts"),
        ("cpu:64x65", "4096 devices in all"),
        ("cpu:0", "a number of devices"),
        ("cpu", "a number of devices"),
        ("cpu:99999", "up to 4096"),
        ("tpu", "targets that work: cpu:16, cpu:2x8, local, tpu7x:2x2x2"),
        ("", "no such target"),
    ],
)
def test_bad_names_are_refused_with_one_that_works(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        parse_target(name)
    assert "work" in str(refused.value)


def test_cpu_devices_are_asked_for_before_jax_starts() -> None:
    environment = parse_target("cpu:16").environment({"XLA_FLAGS": "--xla_a=1", "HOME": "h"})
    assert environment["XLA_FLAGS"] == f"--xla_a=1 {FLAG}=16"
    assert (environment["JAX_PLATFORMS"], environment["HOME"]) == ("cpu", "h")
    same = parse_target("cpu:16").environment({"XLA_FLAGS": f"{FLAG}=16"})
    assert same["XLA_FLAGS"] == f"{FLAG}=16"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"XLA_FLAGS": f"{FLAG}=8"}, "XLA_FLAGS asks for 8.*or use --target cpu:8"),
        ({"XLA_FLAGS": f"{FLAG}=x"}, "XLA_FLAGS asks for x"),
        ({"JAX_NUM_CPU_DEVICES": "4"}, "JAX_NUM_CPU_DEVICES is 4; unset it"),
    ],
)
def test_a_conflict_with_the_users_settings_is_said(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_target("cpu:16").environment(environ)


def test_each_described_host_has_the_devices_of_one() -> None:
    target = parse_target("cpu:2x8")
    assert target.hosts == 2
    assert target.environment({})["XLA_FLAGS"] == f"{FLAG}=8"
    with pytest.raises(ConfigError, match=r"8 CPU devices on each host.*use --target cpu:2x4"):
        target.environment({"XLA_FLAGS": f"{FLAG}=4"})


@pytest.mark.parametrize("name", ["cpu:16", "cpu:2x8", "local", "tpu7x:2x2x2"])
def test_workers_have_neither_hook_nor_jaxs_own_cache(name: str) -> None:
    environment = parse_target(name).environment({"COLDSTART_DISABLE": "0"})
    assert environment["COLDSTART_DISABLE"] == "1"
    assert environment["JAX_ENABLE_COMPILATION_CACHE"] == "false"


def test_local_leaves_the_platform_to_jax() -> None:
    environment = parse_target("local").environment({"XLA_FLAGS": f"{FLAG}=8"})
    assert environment["XLA_FLAGS"] == f"{FLAG}=8"
    assert "JAX_PLATFORMS" not in environment


def test_a_described_tpu_asks_no_metadata_server() -> None:
    environment = parse_target("tpu7x:2x2x2").environment({"JAX_PLATFORMS": "tpu"})
    assert environment["TPU_SKIP_MDS_QUERY"] == "1"
    assert environment["JAX_PLATFORMS"] == "cpu"
