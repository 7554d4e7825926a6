"""RedisServer: a real redis-server process on a free port, for tests that start, stop, freeze and starve it.

Debian's package `redis-server` has it; `make test` installs it where it is missing and the user is root. Without it
the tests fail: they are never skipped, and the summary says that it is missing.
"""

from __future__ import annotations

import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

PROGRAM = "redis-server"
MISSING = (
    f"{PROGRAM} is not installed; `make test` as root installs it, or: apt-get install {PROGRAM}"
)


class RedisServer(ServerProcess):
    """One server; `options` are redis.conf's: maxmemory="20mb", requirepass="secret"."""

    name = "redis-server"

    def __init__(self, folder: Path, **options: str) -> None:
        super().__init__(folder)
        self.options = options
        self.password = options.get("requirepass", "")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        """Nothing is kept on disk: a server that ends forgets everything."""
        program = shutil.which(PROGRAM)
        assert program is not None, MISSING
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "dir": str(self.folder),
        } | {name.replace("_", "-"): value for name, value in self.options.items()}
        command = [program]
        for name, value in settings.items():
            command += [f"--{name}", *(value.split() if name == "rename-command" else [value])]
        return self.run(command)

    def client(self, **options: object):
        """A plain client of the test's own, for looking and for doing harm."""
        import redis

        return redis.Redis(
            port=self.port, password=self.password or None, socket_timeout=20, protocol=2, **options
        )

    def answers(self) -> bool:
        port = int(self.options.get("tls_port", self.port)) if self.port == 0 else self.port
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as one:
                one.sendall(b"PING\r\n")
                return one.recv(1) in (b"+", b"-")  # -NOAUTH is an answer
        except OSError:
            return False


def redis_link(server: RedisServer, port: int = 0, **place: Any):
    """A link to it, or to the proxy before it at `port`; a prefix of its own unless one is given."""
    from coldstart.redis_link import RedisLink
    from coldstart.redis_place import RedisPlace

    settings = {"prefix": f"t-{uuid.uuid4().hex[:8]}", "password": server.password} | place
    return RedisLink(RedisPlace(port=port or server.port, **settings))


def redis_tier(
    server: RedisServer, port: int = 0, *, place: dict[str, Any] | None = None, **tier: Any
):
    """A tier on it, which nobody else shares."""
    from coldstart.store.redis import RedisTier

    return RedisTier(redis_link(server, port, **(place or {})), **tier)


def two_nodes(redis_servers: Callable[..., RedisServer]) -> list[RedisServer]:
    """A cluster: the first has the lower half of the slots."""
    nodes = [
        redis_servers(cluster_enabled="yes", cluster_config_file=f"n{n}.conf") for n in range(2)
    ]
    clients = [node.client() for node in nodes]
    clients[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
    clients[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
    clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    deadline = time.monotonic() + 60
    for client in clients:
        while "ok" not in str(client.execute_command("CLUSTER INFO")["cluster_state"]):
            assert time.monotonic() < deadline, "the cluster did not come together"
            time.sleep(0.1)  # the nodes talk to each other
        client.close()
    return nodes


@pytest.fixture
def redis_servers(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start servers; all are ended by pid at the end."""
    started: list[RedisServer] = []

    def start(**options: str) -> RedisServer:
        folder = tmp_path / f"redis{len(started)}"
        folder.mkdir()
        started.append(RedisServer(folder, **options))
        return started[-1].start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def redis_server(redis_servers: Callable[..., RedisServer]) -> RedisServer:
    """One with default settings."""
    return redis_servers()


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for a file's tests, each of which uses keys of its own or a prefix."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()
