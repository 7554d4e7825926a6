"""10 000 artifacts in the page: only what is in sight is drawn. Prints its times beside those with 100."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dashboard_daemon import Shown
from playwright.sync_api import Page, expect
from small_artifacts import make_artifact, make_record

from coldstart.store.disk import DiskTier

ROWS_IN_SIGHT = 80


def fill(root: Path, count: int) -> None:
    async def put() -> None:
        disk = DiskTier(root)
        for first in range(0, count, 200):
            names = [(n, f"program-{n:05}") for n in range(first, min(count, first + 200))]
            puts = [
                disk.put(make_artifact(name, compile_seconds=float(n)), make_record(name))
                for n, name in names
            ]
            await asyncio.gather(*puts)
        await disk.close()

    with ThreadPoolExecutor(1) as thread:  # the browser's driver has the event loop of this one
        thread.submit(asyncio.run, put()).result()


def browse(look: Callable[..., Page], folder: Path, count: int) -> dict[str, float]:
    """Seconds until the first rows, after a jump to the end, and of a search."""
    folder.mkdir()
    fill(folder / "store", count)
    took = {}
    with Shown(folder) as daemon:
        began = time.monotonic()
        page = look("artifacts", daemon=daemon)
        expect(page.get_by_role("cell", name=f"program-{count - 1:05}")).to_be_visible(
            timeout=60_000
        )
        took["first rows"] = time.monotonic() - began
        expect(page.get_by_role("status").last).to_have_text(f"{count:,} artifacts", timeout=60_000)
        assert page.locator("tbody tr").count() <= ROWS_IN_SIGHT
        box = page.get_by_role("region", name="Artifacts")
        began = time.monotonic()
        box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        expect(page.get_by_role("cell", name="program-00000")).to_be_visible(timeout=60_000)
        took["jump to the end"] = time.monotonic() - began
        assert page.locator("tbody tr").count() <= ROWS_IN_SIGHT
        began = time.monotonic()
        page.get_by_role("searchbox").fill("program-00042")
        expect(page.get_by_role("status").last).to_have_text("1 artifacts", timeout=60_000)
        took["search"] = time.monotonic() - began
    return took


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_beside_a_hundred(
    look: Callable[..., Page], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {count: browse(look, tmp_path / str(count), count) for count in (100, 10_000)}
    with capsys.disabled():
        for count, took in times.items():
            print(
                f"\n{count} artifacts:", ", ".join(f"{what} {s:.2f} s" for what, s in took.items())
            )
