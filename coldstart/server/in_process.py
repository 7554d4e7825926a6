"""A daemon inside this process, for commands that find none running: over the same stores, for as long as they need.

It listens on a socket in a private folder, so the client's code path is the one that production uses.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from coldstart.config import DaemonConfig
from coldstart.errors import ColdstartError
from coldstart.server.app import App

START_SECONDS = 30.0
STOP_SECONDS = 30.0


@contextmanager
def daemon_in_process(stores: Sequence[str], **settings: Any) -> Iterator[str]:
    """Run a daemon over `stores` in a background thread; yields its address.

    `settings` are fields of DaemonConfig, for instance min_compile_seconds=0.

    Raises:
        ConfigError, ColdstartError: as `App.start`.
    """
    with tempfile.TemporaryDirectory(prefix="coldstart-") as folder:
        address = f"unix://{folder}/d.sock"
        config = DaemonConfig(listen=(address,), store=tuple(stores))
        runner = _Runner(replace(config, **settings).validated())
        runner.start()
        try:
            yield address
        finally:
            runner.stop()


class _Runner:
    """One event loop in one thread."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._thread = threading.Thread(target=self._run, name="coldstart-daemon", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise ColdstartError(f"the in-process daemon did not start within {START_SECONDS:g} s")
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as exc:  # handed to the thread that waits in `start`
            self._error = exc
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = App(self._config)
        await app.start()
        self._started.set()
        await self._stop.wait()
        await app.stop()
