"""What a plan is compiled for, as the command line names it, and the environment that a worker needs for it.

    cpu:N         N devices of this host's CPU; JAX must be told before its backend comes up
    cpu:HxN       H processes of N CPU devices, of which this one is the first and the others are described
    local         the devices that JAX finds here
    tpu7x:2x2x2   a TPU topology that libtpu describes on a machine that has none

Devices are set up through environment variables, so workers are processes and the command itself never imports JAX.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coldstart.errors import ConfigError

EXAMPLES = "cpu:16, cpu:2x8, local, tpu7x:2x2x2"
MOST_CPU_DEVICES = 4096
MOST_CPU_HOSTS = 64

_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\S*)")
_TOPOLOGY = re.compile(r"[a-z][a-z0-9_-]*:\d+x\d+(x\d+)?")

# Lets libtpu describe a topology on a machine without a TPU: it asks no metadata server and takes no lock.
_DESCRIBED_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A valid target name."""

    name: str
    kind: str  # cpu, cpu-hosts, local or topology
    count: int | None = None  # devices of this host, where the name says it
    hosts: int = 1

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """A worker's environment, from this process's.

        Raises:
            ConfigError: the user's own settings ask for something else.
        """
        found = dict(environ)
        # A worker asks the daemon itself, and what it publishes must come from the compiler, not from another cache.
        found |= {"COLDSTART_DISABLE": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        if self.kind == "topology":
            found |= _DESCRIBED_TPU
        if self.kind in ("cpu", "cpu-hosts"):
            found["JAX_PLATFORMS"] = "cpu"
            found["XLA_FLAGS"] = self._with_count(found.get("XLA_FLAGS", ""))
            self._check_jax_count(found.get("JAX_NUM_CPU_DEVICES", ""))
        return found

    def _with_count(self, flags: str) -> str:
        given = _COUNT_FLAG.findall(flags)
        if any(count != str(self.count) for count in given):
            raise ConfigError(
                f"--target {self.name} needs {self._needed}, but XLA_FLAGS asks for {given[-1]}; take "
                "--xla_force_host_platform_device_count out of XLA_FLAGS"
                + (f", or use --target {self._with(given[-1])}" if given[-1].isdigit() else "")
            )
        return (
            flags
            if given
            else f"{flags} --xla_force_host_platform_device_count={self.count}".strip()
        )

    @property
    def _needed(self) -> str:
        return f"{self.count} CPU devices" + (" on each host" if self.hosts > 1 else "")

    def _with(self, count: str) -> str:
        return f"cpu:{self.hosts}x{count}" if self.hosts > 1 else f"cpu:{count}"

    def _check_jax_count(self, given: str) -> None:
        if given not in ("", "-1", str(self.count)):
            raise ConfigError(
                f"--target {self.name} needs {self._needed}, but JAX_NUM_CPU_DEVICES is {given}; unset it"
            )

    def devices(self) -> list[Any]:
        """The devices, live or described. Call in a process that runs under `environment`.

        Raises:
            ConfigError: there are none of that kind here.
        """
        import jax

        if self.kind == "cpu-hosts":
            return self._described_hosts()
        if self.kind != "topology":
            try:
                devices = list(jax.devices())
            except RuntimeError as exc:
                raise ConfigError(
                    f"--target {self.name}: JAX finds no devices: {_line(exc)}"
                ) from exc
            if self.count not in (None, len(devices)):
                raise ConfigError(
                    f"--target {self.name}: JAX came up with {len(devices)} devices, not {self.count}; "
                    "something in this environment sets their number after start-up"
                )
            return devices
        from jax.experimental import topologies

        try:
            return list(topologies.get_topology_desc(self.name, "tpu").devices)
        except Exception as exc:  # whatever libtpu says of a name, or that there is no libtpu
            raise ConfigError(
                f"--target {self.name}: libtpu can't describe it: {_line(exc)}; a target that works: tpu7x:2x2x2 "
                "(libtpu comes with: pip install 'coldstart[tpu]')"
            ) from exc

    def _described_hosts(self) -> list[Any]:
        from coldstart.client import jax_job

        try:
            devices = jax_job.describe_cpu_hosts(self.hosts)
        except RuntimeError as exc:
            raise ConfigError(
                f"--target {self.name}: JAX can't describe these hosts: {_line(exc)}"
            ) from exc
        if len(devices) != self.hosts * (self.count or 0):
            raise ConfigError(
                f"--target {self.name}: JAX came up with {len(devices)} devices; something in this environment sets "
                "their number after start-up"
            )
        return devices


def parse_target(name: str) -> Target:
    """A target by its name. Raises ConfigError."""
    if name == "local":
        return Target(name, "local")
    if name.startswith("cpu"):
        several = re.fullmatch(r"cpu:([1-9]\d{0,3})x([1-9]\d{0,3})", name)
        if several is not None:
            hosts, count = int(several[1]), int(several[2])
            if hosts > MOST_CPU_HOSTS or hosts * count > MOST_CPU_DEVICES:
                raise ConfigError(
                    f"--target {name}: up to {MOST_CPU_HOSTS} hosts and {MOST_CPU_DEVICES} devices in all; "
                    "a target that works: cpu:2x8"
                )
            if hosts > 1:
                return Target(name, "cpu-hosts", count, hosts)
            return Target(name, "cpu", count)
        match = re.fullmatch(r"cpu:([1-9]\d{0,3})", name)
        if match is None or int(match[1]) > MOST_CPU_DEVICES:
            raise ConfigError(
                f"--target {name}: wants cpu: and a number of devices up to {MOST_CPU_DEVICES}; "
                "targets that work: cpu:16, cpu:2x8"
            )
        return Target(name, "cpu", int(match[1]))
    if _TOPOLOGY.fullmatch(name):
        return Target(name, "topology")
    raise ConfigError(f"--target {name}: no such target; targets that work: {EXAMPLES}")


def _line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:300]
