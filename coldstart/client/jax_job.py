"""The inside of `jax.distributed`: a job's key-value store, and CPU hosts that are described and not there.

Beside `jax_internals` the only file that touches `jax._src` and `jaxlib`. What a JAX doesn't offer is None here.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src import distributed as _distributed
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jax._src.lib import xla_client as _xla_client  # type: ignore[attr-defined]

_STORE_CALLS = ("key_value_set", "key_value_try_get", "key_value_dir_get")


class JobStore:
    """The key-value store of a job's coordinator. Calls take the time that the coordinator takes, the GIL released.

    Every call raises RuntimeError where the coordinator fails; one that is gone for long makes JAX end the process.
    """

    def __init__(self, client: Any) -> None:
        self.client = client  # of this job: another one is another object

    def put(self, key: str, value: str) -> None:
        self.client.key_value_set(key, value, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        try:
            return str(self.client.key_value_try_get(key))
        except RuntimeError as exc:
            if "NOT_FOUND" in str(exc):
                return None
            raise

    def below(self, folder: str) -> dict[str, str]:
        """Everything directly or indirectly below `folder`: full key → value."""
        return {str(key): str(value) for key, value in self.client.key_value_dir_get(folder)}


def job_store() -> JobStore | None:
    """This process's job's store; None outside of a job, or where this JAX has none that we know."""
    client = getattr(getattr(_distributed, "global_state", None), "client", None)
    if client is None or not all(hasattr(client, name) for name in _STORE_CALLS):
        return None
    return JobStore(client)


def describe_cpu_hosts(hosts: int) -> list[Any]:
    """The devices of `hosts` CPU hosts, of which only the first one is this process.

    Each host has as many devices as this process is told to have. All hosts' clients come up here, in threads, tell
    each other their devices as in a job and leave it again: what is left is a backend that compiles for all of them.
    Call before JAX has a backend.

    Raises:
        RuntimeError: this process has a backend or a job, or this JAX can't do it.
    """
    state = _distributed.global_state
    if state.client is not None:
        raise RuntimeError("this process is in a jax.distributed job")
    address = f"localhost:{_free_port()}"
    service = _jax.get_distributed_runtime_service(address, hosts)
    clients = [_jax.get_distributed_runtime_client(address, host) for host in range(hosts)]
    _together([client.connect for client in clients])

    def first() -> None:
        jax.devices()

    def other(host: int) -> Callable[[], None]:
        def come_up() -> None:
            _xla_client.make_cpu_client(
                distributed_client=clients[host], node_id=host, num_nodes=hosts
            )

        return come_up

    state.client, state.process_id, state.num_processes = clients[0], 0, hosts
    try:
        _together([first, *map(other, range(1, hosts))])
    finally:
        state.client, state.num_processes = None, 1
        _together(
            [client.shutdown for client in clients]
        )  # or they end the process with the service
        service.shutdown()
    devices = list(jax.devices())
    if len({device.process_index for device in devices}) != hosts:
        raise RuntimeError("this process had a backend before")
    return devices


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def _together(calls: list[Callable[[], None]]) -> None:
    """Run calls that wait for one another. Raises RuntimeError with the first one's trouble."""
    errors: list[Exception] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"describing CPU hosts: {errors[0]}") from errors[0]
