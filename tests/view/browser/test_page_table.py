"""The table: what it lists, filters, order, pages, and an address that keeps all of it."""

import pytest
from playwright.sync_api import Page, expect

from tests.view.browser.conftest import STORED, Visit, row_texts

pytestmark = pytest.mark.slow

TASK = 2


@pytest.fixture
def page(visit: Visit, address: str) -> Page:
    opened = visit(address)
    expect(opened.locator("#count")).to_have_text("122, shown: 1 to 50")
    return opened


def test_lists_filter(page: Page) -> None:
    for field, value, count, column, text in STORED["lists"]:
        page.locator(f"#filter-{field}").select_option(value)
        expect(page.locator("#count")).to_have_text(count)
        assert f"{field}={value.replace(' ', '+')}" in page.url
        expect(page.locator("#filters-title")).to_have_text("Filters · 1 set")
        assert text is None or set(row_texts(page, column)) == {text}
        page.locator(f"#filter-{field}").select_option("")


def test_texts_filter_while_they_are_typed(visit: Visit, address: str) -> None:
    page = visit(address, excused="a status of 400")  # whoever types slowly asks for `3-` on the way to `3-4`
    for field, value, count in STORED["texts"]:
        page.locator(f"#filter-{field}").press_sequentially(value)
        expect(page.locator("#count")).to_have_text(count)
        page.locator("#reset").click()
        expect(page.locator("#count")).to_have_text("122, shown: 1 to 50")
        expect(page.locator(f"#filter-{field}")).to_have_value("")


def test_what_the_server_refuses_is_said_and_nothing_is_lost(visit: Visit, address: str) -> None:
    page = visit(address, excused="a status of 400")
    page.locator("#filter-step").fill("soon")
    expect(page.locator("#table-problem")).to_contain_text("step is 'soon'; give one step, as in 12, or a range")
    page.locator("#filter-step").fill("3")
    expect(page.locator("#table-problem")).to_be_hidden()
    expect(page.locator("#count")).to_have_text("8, shown: 1 to 8")


def test_pages_and_the_way_back(page: Page) -> None:
    pager = page.locator("#pager")
    pager.get_by_role("link", name="Next").click()
    expect(page.locator("#count")).to_have_text("122, shown: 51 to 100")
    pager.get_by_role("link", name="Last").click()
    expect(page.locator("#count")).to_have_text("122, shown: 101 to 122")
    expect(pager).to_contain_text("page 3 of 3")
    assert pager.get_by_role("link", name="Next").count() == 0
    page.locator("#filter-status").select_option("solved")
    expect(page.locator("#count")).to_have_text("59, shown: 1 to 50")
    page.go_back()
    expect(page.locator("#count")).to_have_text("122, shown: 101 to 122")
    expect(page.locator("#filter-status")).to_have_value("")
    page.go_back()
    expect(page.locator("#count")).to_have_text("122, shown: 51 to 100")
    page.go_forward()
    expect(page.locator("#count")).to_have_text("122, shown: 101 to 122")


def test_a_copied_address_brings_everything_back(page: Page, visit: Visit) -> None:
    page.locator("#filter-q").fill("gcd")
    page.locator("#filter-error").select_option("NameError")
    page.locator("th[data-sort=lines] button").click()
    page.locator("#curves-buttons").get_by_role("link", name="Hide").click()
    expect(page.locator("#charts figure")).to_have_count(0)
    expect(page.locator("#count")).to_have_text("52, shown: 1 to 50")
    page.locator("#pager").get_by_role("link", name="Next").click()
    page.locator("#table a.open").first.click()
    expect(page.locator("#pane-title")).to_have_text("gcd-heldout-1")
    again = visit(page.url)
    expect(again.locator("#count")).to_have_text("52, shown: 51 to 52")
    expect(again.locator("#filter-q")).to_have_value("gcd")
    expect(again.locator("#filter-error")).to_have_value("NameError")
    expect(again.locator("th[data-sort=lines]")).to_have_attribute("aria-sort", "descending")
    expect(again.locator("#pane-title")).to_have_text("gcd-heldout-1")
    expect(again.locator("#charts figure")).to_have_count(0)
    assert row_texts(again, TASK) == row_texts(page, TASK)


def test_the_keyboard_reaches_table_search_and_help(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#table-title")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#filter-q")).to_be_focused()
    page.keyboard.type("j?")
    expect(page.locator("#filter-q")).to_have_value("j?")
    expect(page.locator("#pane")).to_be_hidden()
    page.locator("#table-title").focus()
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).to_be_hidden()


def test_a_phone_scrolls_one_way_only(visit: Visit, address: str) -> None:
    page = visit(address, width=390, height=844)
    opened = "open=train-12-1&line=0", "open=train-12-1&mode=group", "open=eval-24-0&mode=steps"
    signs = {"curves=all": "#charts .main-svg"} | dict.fromkeys(opened, "#pane .screen .row, #pane .diff")
    for fragment, sign in signs.items():
        page.evaluate(f"location.hash = {fragment!r}")
        expect(page.locator(sign).first).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, fragment
