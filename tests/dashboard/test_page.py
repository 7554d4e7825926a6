"""The page in a real browser: what it shows, live, in both schemes, small and wide, by keyboard, to a screen reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from dashboard_daemon import Shown
from playwright.sync_api import Page, expect

from coldstart.outcomes import Outcome, Reason

HOSTILE = "<img src=x onerror=alert(1)>\u202eevil\u0007" + "n" * 10_000
VIEWS = ("", "misses", "artifacts", "explain", "events")


@pytest.fixture(scope="module", autouse=True)
def filled(shown: Shown) -> dict[str, str]:
    """name -> key. Three hits, three misses of two programs, a refusal."""
    keys = {name: shown.publish(name) for name in ("prefill", "decode")}
    keys["hostile"] = shown.publish(HOSTILE, seconds=9.0)
    for _ in range(3):
        shown.finish("decode", Outcome.HIT, Reason.OK, seconds=2.0)
    shown.finish("callbacks", Outcome.REFUSED, Reason.CALLBACKS, seconds=4.0)
    return keys


def tile(page: Page, name: str) -> str:
    return page.locator("li.tile", has=page.get_by_role("heading", name=name)).inner_text()


def test_the_overview_says_how_warm_it_is(look: Callable[..., Page]) -> None:
    page = look()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("li.tile")).to_have_count(7)
    assert "42.9 %" in tile(page, "Hit ratio by count") and "3 / 7" in tile(
        page, "Hit ratio by count"
    )
    # 3 x 2 s saved; 2 + 2 + 9 + 4 spent.
    assert "26.1 %" in tile(page, "Hit ratio by compile seconds")
    assert "6 / 23 s" in tile(page, "Hit ratio by compile seconds")
    expect(page.get_by_role("img", name="Hit ratio over time")).to_be_visible()
    ends = page.get_by_role("region", name="How lookups ended").get_by_role("row")
    expect(ends.filter(has_text="cold")).to_contain_text("3")
    expect(page.get_by_role("region", name="Tiers")).to_contain_text("none known")


def test_a_compile_is_seen_as_it_happens(look: Callable[..., Page], shown: Shown) -> None:
    page = look()
    running = page.get_by_role("region", name="Compiling now")
    expect(page.get_by_text("Nobody compiles under a lease.")).to_be_visible()
    lookup, lease = shown.lease("live-program", holder="pod-9/1/python")
    expect(running).to_contain_text("live-program")
    expect(running).to_contain_text("pod-9/1/python")
    shown.publish("live-program", lookup, lease)
    expect(page.get_by_text("Nobody compiles under a lease.")).to_be_visible()


def test_misses_lead_to_an_explanation(look: Callable[..., Page], filled: dict[str, str]) -> None:
    page = look("misses")
    rows = page.get_by_role("region", name="Programs that missed").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("9.00 s")  # the most compile seconds first
    expect(rows.filter(has_text="callbacks")).to_contain_text("refused")
    page.goto(
        f"{page.url.partition('#')[0]}#/explain?left={filled['prefill']}&right={filled['decode']}"
    )
    expect(page.get_by_text('they differ first in the component "program"')).to_be_visible(
        timeout=30_000
    )
    expect(page.get_by_role("region", name="Components that differ")).to_contain_text("program")


def test_one_artifact(look: Callable[..., Page], filled: dict[str, str]) -> None:
    page = look("artifacts")
    page.get_by_role("searchbox").fill("pref")
    expect(page.get_by_role("status").last).to_have_text("1 artifacts")
    page.get_by_role("link", name=re.compile(filled["prefill"][:12])).click()
    expect(page.get_by_role("heading", name="prefill")).to_be_visible()
    expect(page.get_by_text(filled["prefill"])).to_be_visible()
    expect(page.get_by_role("region", name="Artifacts of this key")).to_contain_text("disk")


def test_what_strangers_name_is_text(look: Callable[..., Page], shown: Shown) -> None:
    lookup, lease = shown.lease("quiet", holder="<b onmouseover=alert(1)>pod</b>")
    for view in ("", "misses", "artifacts", "events"):
        page = look(view)
        expect(page.locator("#connection")).to_have_text("live")
        page.wait_for_timeout(500)
        assert page.locator("main img, main b, main script").count() == 0
        text = page.locator("main").inner_text()
        assert "\u202e" not in text and "\u0007" not in text
        if view == "misses":
            assert "<img src=x onerror=alert(1)>\\u202eevil\\u0007" in text
            assert "n" * 1000 not in text  # cut, and said so
        if view == "":
            expect(page.locator("main")).to_contain_text("<b onmouseover=alert(1)>pod</b>")
    shown.publish("quiet", lookup, lease)


@pytest.mark.parametrize("view", VIEWS)
def test_no_serious_barrier_and_nothing_wider_than_the_screen(
    look: Callable[..., Page], view: str
) -> None:
    page = look(view)
    expect(page.locator("#connection")).to_have_text("live")
    page.wait_for_timeout(300)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = Axe().run(page).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, [(one["id"], [n["html"] for n in one["nodes"]][:3]) for one in serious]
    for width in (360, 768, 1440):
        page.set_viewport_size({"width": width, "height": 740})
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_is_dark(look: Callable[..., Page]) -> None:
    shade = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = (look(color_scheme=s).evaluate(shade) for s in ("light", "dark"))
    assert (
        sum(map(int, re.findall(r"\d+", light)[:3]))
        > 600
        > 120
        > sum(map(int, re.findall(r"\d+", dark)[:3]))
    )


def test_by_keyboard_alone(look: Callable[..., Page]) -> None:
    page = look()
    expect(page.locator("#connection")).to_have_text("live")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What missed")).to_be_visible()
    assert page.evaluate("document.activeElement.id") == "main"  # where the new view begins


def test_a_daemon_that_goes_is_told_and_comes_back(
    look: Callable[..., Page], tmp_path: Path
) -> None:
    with Shown(tmp_path) as daemon:
        page = look(daemon=daemon)
        expect(page.locator("#connection")).to_have_text("live")
        port = daemon.http.rpartition(":")[2]
    expect(page.locator("#connection")).to_have_text(
        re.compile("no word from the daemon"), timeout=15_000
    )
    (tmp_path / "ready.json").unlink(missing_ok=True)
    with Shown(tmp_path, f"--http=127.0.0.1:{port}"):
        expect(page.locator("#connection")).to_have_text("live", timeout=20_000)
    look.wrong.clear()  # type: ignore[attr-defined]  # the browser says that it couldn't connect
