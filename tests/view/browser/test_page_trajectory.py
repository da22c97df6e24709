"""The pane: what a trajectory shows, its tokens, its group, and two rollouts of its task compared."""

import pytest
from playwright.sync_api import Page, expect

from repl_rl.view.transcript import screen_rows
from tests.view.browser.conftest import LONG_ID, LONG_LINES, Visit, row_texts, screen_texts
from tests.view.conftest import failed_trajectory

SHOWN = "#pane .chunk .row"


def shown(page: Page, name: str) -> None:
    expect(page.locator("#pane-title")).to_have_text(name)


def test_a_click_opens_beside_the_table_and_escape_closes(visit: Visit, address: str) -> None:
    page = visit(address)
    row = page.locator("#table tbody tr").nth(14)
    row.locator("td").nth(5).click()
    shown(page, "gcd-train-12-1")
    assert "open=train-12-0" in page.url
    expect(page.locator("#pane-title")).to_be_focused()
    expect(row).to_have_class("chosen")
    expect(row.locator("a.open")).to_have_attribute("aria-current", "true")
    expect(page.locator("#table")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(page.locator("#pane")).to_be_hidden()
    expect(row.locator("a.open")).to_be_focused()
    page.keyboard.press("Enter")
    shown(page, "gcd-train-12-1")
    page.go_back()
    expect(page.locator("#pane")).to_be_hidden()


DRAWN = """[...document.querySelectorAll("#pane .transcript img")].map(
    (image) => [image.alt, image.naturalWidth, image.naturalHeight])"""


@pytest.mark.slow
def test_what_a_line_drew_is_below_it(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=train-13-0")
    expect(page.locator("#pane .row.acted img.image")).to_have_count(1)
    assert page.evaluate(DRAWN) == [["what line 0 drew", 2, 1]]


@pytest.mark.slow
def test_rows_marks_and_what_lines_are_worth(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=train-3-0")
    expect(page.locator(SHOWN)).to_have_count(5)
    texts = ["".join(piece.text for piece in row.pieces) for row in screen_rows(failed_trajectory())]
    assert screen_texts(page) == [mark + text for mark, text in zip("¶¶›‹‹‹›", texts, strict=True)]
    assert page.locator("#pane .verdict").inner_text().split("\n")[0].startswith("✗ not solved")
    first = page.locator("#pane .row.acted").first.locator(".worth > *")
    worth = [text.split()[-1] for text in first.all_text_contents()]
    assert worth == ["NameError", "−0.1", "−0.1", "−0.75", "−1.50", "ms"]
    assert first.nth(4).get_attribute("title") == "−0.50 a token over 3 tokens"
    assert first.nth(0).get_attribute("class") == "kind fault"
    page.goto(f"{address}#open=train-3-1")
    shown(page, "gcd-train-3-1")
    expect(page.locator(SHOWN)).to_have_count(8)
    to_go = page.locator("#pane .row.acted .value:nth-child(3)").all_text_contents()
    assert to_go == ["to go 1"] * 7
    assert "answer 6" in page.locator("#pane .verdict").inner_text()


@pytest.mark.slow
def test_a_line_opens_its_tokens_by_click_and_by_key(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=train-3-1")
    page.locator("#pane .row.acted .text").nth(1).click()
    tokens = page.locator("#tokens-1 .token")
    expect(tokens).to_have_count(5)
    assert "line=1" in page.url
    kinds = ["sampled" in (token or "") for token in tokens.evaluate_all("all => all.map(one => one.className)")]
    assert kinds == [True, True, True, False, False]
    assert [text.split()[-1] for text in tokens.all_inner_texts()] == ["−0.50", "−0.50", "−0.50", "masked", "masked"]
    button = page.locator("button.kind[data-line='1']")
    expect(button).to_have_attribute("aria-expanded", "true")
    button.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#tokens-2 .token")).to_have_count(5)
    expect(page.locator(".strip")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator(".strip")).to_have_count(0)
    assert "line=" not in page.url


@pytest.mark.slow
def test_a_failure_and_calls_of_tools_are_told(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=train-13-0&line=0")
    expect(page.locator("#pane .verdict")).to_contain_text("failure the kernel went away")
    expect(page.locator(".strip > p").first).to_contain_text("called look (12 ms), look raised TimeoutError (1.50 s).")
    expect(page.locator(".calls")).to_have_text("2 calls: look, look (TimeoutError)")
    asked = page.locator(".asked li")
    expect(asked).to_have_text(["Which? → this one 7 tokens, 250 ms", "Sure? → yes 1 token, 0 ms"])


@pytest.mark.slow
def test_siblings_stand_side_by_side(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=train-5-5")
    page.get_by_role("link", name="Group").click()
    columns = page.locator("#pane .column")
    expect(columns).to_have_count(4)
    heads = [text.split("\n")[0] for text in columns.all_inner_texts()]
    assert heads == ["#4 ✗ not solved", "#5 ✓ solved", "#6 ✗ not solved", "#7 ✓ solved"]
    expect(columns.nth(3).locator(".row")).to_have_count(8)
    assert columns.nth(0).locator(".value").all_text_contents() == ["advantage −0.75"] * 2
    expect(columns.nth(1)).to_have_class("column chosen")
    columns.nth(2).get_by_role("link").click()
    expect(page.locator("#pane .facts-line")).to_contain_text("train step 5 · #6 in its file")
    assert "open=train-5-6" in page.url
    assert "mode" not in page.url


def diff_rows(page: Page) -> list[str]:
    rows: list[str] = page.evaluate(
        "[...document.querySelectorAll('.diff tbody tr')]"
        ".map(row => [...row.children].map(cell => cell.textContent).join('|'))"
    )
    return rows


@pytest.mark.slow
def test_a_task_is_compared_over_the_steps(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=eval-24-5&mode=steps")
    expect(page.locator(".diff caption")).to_have_text(
        "13 rows differ: − only in step 0 #5, + only in step 24 #5, = in both."
    )
    assert "with=eval-0-5" in page.url
    rows = diff_rows(page)
    assert rows[0] == "=|¶ Python 3.11.7 on linux|=|¶ Python 3.11.7 on linux"
    assert rows[2] == "−|› >>> math.gcd(12, 18)|+|› >>> # Euclid does this; math has it."
    assert [row.split("|")[0] for row in rows] == ["=", "=", "−", "−", "−", "−", "−", "", "", ""]
    assert [row.split("|")[2] for row in rows] == ["=", "="] + ["+"] * 8
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".diff.under")).to_be_visible()
    assert [row.split("|")[0] for row in diff_rows(page)] == ["=", "="] + ["−"] * 5 + ["+"] * 8


@pytest.mark.slow
def test_next_and_previous_follow_the_table_over_its_pages(visit: Visit, address: str) -> None:
    page = visit(f"{address}#sort=reward&order=asc")
    expect(page.locator("#count")).to_have_text("122, shown: 1 to 50")
    order = row_texts(page, 2)
    page.keyboard.press("j")
    shown(page, order[0])
    expect(page.get_by_role("button", name="Previous")).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("j")
    shown(page, order[1])
    expect(page.get_by_role("button", name="Previous")).to_have_attribute("aria-disabled", "false")
    page.keyboard.press("k")
    shown(page, order[0])
    page.locator("#table a.open").last.click()
    shown(page, order[49])
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#count")).to_have_text("122, shown: 51 to 100")
    shown(page, row_texts(page, 2)[0])
    assert "page=2" in page.url
    page.go_back()
    expect(page.locator("#count")).to_have_text("122, shown: 1 to 50")
    shown(page, order[49])


@pytest.mark.slow
def test_ten_thousand_lines_come_in_windows(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open={LONG_ID}")
    expect(page.locator(SHOWN)).to_have_count(398)
    expect(page.locator(".windows")).to_contain_text("400 of 10,003 rows are shown.")
    page.get_by_role("button", name="Show 400 more").click()
    expect(page.locator(SHOWN)).to_have_count(798)
    assert page.locator(SHOWN).last.locator(".text").text_content() == ">>> x = 797"
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(SHOWN)).to_have_count(LONG_LINES + 1)
    expect(page.locator(".windows")).to_be_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 900])
def test_without_room_the_pane_stands_alone(visit: Visit, address: str, width: int) -> None:
    page = visit(address, width=width, height=844)
    page.locator("#table a.open").nth(20).click()
    expect(page.locator("#pane .screen .row.acted").first).to_be_visible()
    expect(page.locator("#table")).to_be_hidden()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#table a.open").nth(20)).to_be_focused()
    expect(page.locator("#table a.open").nth(20)).to_be_in_viewport()
