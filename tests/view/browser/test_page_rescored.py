"""Sessions that were rescored: each line has both advantages, and those that change sides can be asked for."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_rl.cli import main
from repl_rl.trajectory import LineValues, write_jsonl
from tests.run.rescorable import right_session, write_rescorable
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


@pytest.mark.more
@pytest.mark.parametrize("width", [1280, 390])
def test_what_a_line_was_worth_and_how_to_type_another(visit: Visit, tmp_path: Path, width: int) -> None:
    values = LineValues((0.25, 0.75, 1.0), (8, 8))
    write_jsonl(tmp_path / "x.jsonl", [right_session()], labels=[values.label()])
    assert main(["view", str(tmp_path / "x.jsonl"), "--export"]) == 0
    page = visit((tmp_path / "x.html").as_uri(), width=width, height=844)
    page.locator("#table a.open").click()
    first, last = page.locator("#pane button.kind").all()
    last.click()
    expect(page.locator(".valued")).to_have_text(
        "It took the chance of a right answer from 75% to 100%, by +25 (+7 to +59) points: 8 sessions from before "
        "it, and what the session came to."
    )
    first.click()
    expect(page.locator(".valued")).to_contain_text("from 25% to 75%, by +50 (+2 to +75) points: 8 sessions")
    page.get_by_text("Another line here").click()
    commands = page.locator(".go-on code")
    start = f"--from '{tmp_path / 'x.jsonl'}#0' --line 0"
    expect(commands).to_have_text([f"repl-rl play {start}", f"repl-rl rollout {start} -n 8 --out other.jsonl"])
    assert page.evaluate("document.documentElement.scrollWidth") == width
