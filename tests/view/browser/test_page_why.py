"""In the pane of a trajectory: why its answer was right or wrong, and by a click what a line's reward is made of."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_rl.trajectory import write_jsonl
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.export import export
from tests.view.browser.conftest import Visit
from tests.view.test_why import REFERENCE, WHY, explained

PAID = "exceptions.NameError −0.05 (earned −0.5, after caps −0.05)"


@pytest.mark.more
@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_says_why(visit: Visit, tmp_path: Path, width: int) -> None:
    write_jsonl(tmp_path / "x.jsonl", [explained()])
    export(RunApi(tmp_path / "x.jsonl"), tmp_path / "x.html")
    page = visit((tmp_path / "x.html").as_uri(), width=width, height=844)
    page.locator("#table a.open").click()
    head = page.locator("#pane .verdict")
    for text in ("answer 12", f"reference {REFERENCE}", f"graded 0: {WHY}"):
        expect(head).to_contain_text(text)
    first, last = page.locator("#pane .row.acted").all()
    reward = first.locator(".value", has_text="reward")
    expect(reward).to_have_attribute("title", PAID)
    reward.click()
    expect(page.locator(".paid li")).to_have_text([PAID])
    expect(page.locator(".paid li")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    last.locator("button.kind").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#tokens-1")).to_be_visible()
    expect(page.locator(".paid")).to_have_count(0)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator(".paid li")).to_have_text([PAID])
