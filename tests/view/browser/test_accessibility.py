"""axe on every main state of the page, in light and dark, wide and narrow."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.view.browser.conftest import Visit

pytestmark = pytest.mark.slow

STATES = {
    "list": ("", "#table tbody tr"),
    "all curves": ("curves=all", "#families tbody tr"),
    "no match": ("q=nothing-like-this", "#table-problem:not([hidden])"),
    "transcript": ("open=train-3-0&line=0", ".strip .token"),
    "a failure": ("open=train-13-0", "#pane .row.acted"),
    "group": ("open=train-3-1&mode=group", "#pane .column .row.acted"),
    "comparison": ("open=eval-24-5&mode=steps", "#pane .diff tbody tr"),
}


def violations(page: Page) -> list[tuple[str, str, str]]:
    found = Axe().run(page).response
    assert {"color-contrast", "button-name"} <= {rule["id"] for rule in found["passes"]}
    named = [(rule["id"], rule["impact"], node["html"][:200]) for rule in found["violations"] for node in rule["nodes"]]
    # axe takes any link into the page that is scrolled out of sight for one that skips to a place.
    return [one for one in named if one[0] != "skip-link" or 'class="skip"' in one[2]]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_nothing(visit: Visit, address: str, width: int, scheme: str) -> None:
    page = visit(address, width=width, height=844, scheme=scheme)
    for name, (fragment, sign) in STATES.items():
        page.evaluate(f"location.hash = {fragment!r}")
        expect(page.locator(sign).first).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert (name, violations(page)) == (name, [])


def test_axe_finds_nothing_in_the_list_of_shortcuts(visit: Visit, address: str) -> None:
    page = visit(address, scheme="dark")
    expect(page.locator("#table tbody tr").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    assert violations(page) == []
