"""A real daemon with something to show, and Debian's Chromium to look at it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dashboard_daemon import Shown
from gcs_server import cloud, gcs_process  # noqa: F401
from redis_server import redis_servers, shared_redis  # noqa: F401

try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ImportError:  # only the developer's environment has it; the page is the same on every stack
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file: while it lives this thread's event loop runs, and no other async test could."""
    where = shutil.which("chromium")
    assert where, "these tests need Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        # Without its sandbox: it would need rights that a container or root hasn't. Only our own page is opened.
        running = playwright.chromium.launch(executable_path=where, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One daemon for a file's tests."""
    with Shown(tmp_path_factory.mktemp("shown")) as daemon:
        yield daemon


@pytest.fixture
def look(browser: Browser, shown: Shown) -> Iterator[Callable[..., Page]]:
    """Open a view. Whatever goes wrong in the page, and every request to another host, fails the test."""
    contexts, wrong = [], []

    def open_view(view: str = "", *, daemon: Shown | None = None, **options: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        where = f"http://{(daemon or shown).http}/"
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on(
            "request",
            lambda asked: None if asked.url.startswith(where) else wrong.append(asked.url),
        )
        page.goto(f"{where}#/{view}")
        return page

    open_view.wrong = wrong  # type: ignore[attr-defined]  # for tests that expect some
    yield open_view
    for context in contexts:
        context.close()
    assert wrong == []
