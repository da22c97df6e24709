"""Sessions that were rescored: each line has both advantages, and those that change sides can be asked for."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_rl.cli import main
from tests.run.rescorable import write_rescorable
from tests.view.browser.conftest import Visit


@pytest.mark.more
@pytest.mark.parametrize("width", [1280, 390])
def test_both_advantages_and_a_filter(visit: Visit, tmp_path: Path, width: int) -> None:
    write_rescorable(tmp_path / "run")
    kept = tmp_path / "kept"
    price = ["--set", "rewards.kinds.expression=0.5", "--set", "rewards.shaping.weight={start: 1, end: 0, steps: 1}"]
    assert main(["rescore", str(tmp_path / "run"), *price, "--out", str(kept)]) == 0
    assert main(["view", str(kept), "--export"]) == 0
    page = visit((kept / "viewer.html").as_uri(), width=width, height=844)
    if width < 760:
        page.locator("#filters-title").click()
    page.get_by_label("Another sign").select_option("no")
    expect(page.locator("#table .status")).to_have_text(["✓ solved", "✗ not solved"])  # of the second step
    page.locator("#table a.open").last.click()
    expect(page.locator("#pane .was.other-sign")).to_have_count(0)
    page.keyboard.press("Escape")
    page.get_by_label("Another sign").select_option("yes")
    page.locator("#table a.open").last.click()
    first = page.locator("#pane .row.acted").first
    expect(first.locator(".was")).to_have_text("was −1")
    first.locator("button.kind").click()
    expect(page.locator(".strip .recorded")).to_contain_text("recorded −1")
    assert page.evaluate("document.documentElement.scrollWidth") == width
