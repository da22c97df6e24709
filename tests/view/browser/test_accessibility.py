"""axe on every main state of the page, in light and dark, wide and narrow."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.view.browser.conftest import STORED, Visit

pytestmark = pytest.mark.slow


def violations(page: Page) -> list[tuple[str, str, str]]:
    found = Axe().run(page).response
    assert {"color-contrast", "button-name"} <= {rule["id"] for rule in found["passes"]}
    named = [(rule["id"], rule["impact"], node["html"][:200]) for rule in found["violations"] for node in rule["nodes"]]
    # axe takes any link into the page that is scrolled out of sight for one that skips to a place.
    return [one for one in named if one[0] != "skip-link" or 'class="skip"' in one[2]]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_nothing(visit: Visit, address: str, width: int, scheme: str) -> None:
    page = visit(address, width=width, height=844, scheme=scheme)
    for name, (fragment, sign) in STORED["states"].items():
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
