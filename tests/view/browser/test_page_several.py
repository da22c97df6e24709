"""The page of two runs: held-out rates and curves over each other, a filter by run, and their sessions of one task."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.export import export
from tests.view.browser.conftest import Visit


@pytest.mark.more
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page(visit: Visit, two: tuple[Path, Path], width: int) -> None:
    path = two[0].parent / "both.html"
    export(RunApi(*two), path)
    page = visit(path.as_uri(), width=width, height=844)
    rows = page.locator("#compared table").first.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("54.5%")
    expect(rows.nth(1).locator("b").last).to_have_text("−36.4")
    expect(page.locator("#charts figure").first.locator(".legendtext")).to_have_text(["first"])
    assert page.evaluate("document.documentElement.scrollWidth") == width
    if width < 760:
        page.locator("#filters-title").click()
    page.locator("#filter-run").select_option("second")
    page.locator("#filter-step").fill("1")
    expect(page.locator("#table tbody tr")).to_have_count(2)
    page.locator("#table a.open").first.click()
    page.keyboard.press("s")
    expect(page.locator("#pane .diff thead")).to_contain_text("first step 1 #0")
    expect(page.locator("#pane .diff thead")).to_contain_text("second step 1 #0")
    expect(page.locator("#pane .diff .changed")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") == width
