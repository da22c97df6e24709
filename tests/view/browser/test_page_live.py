"""A page that is open while its run goes on: what is new appears, and what the reader holds stays."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from repl_rl.trajectory import write_jsonl
from tests.view.browser.conftest import Visit, step_of
from tests.view.conftest import metric_rows, train_row, write_metrics
from tests.view.test_viewer_server import Viewer, viewing

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three steps of 24, of a run that is being written."""
    folder = tmp_path / "growing"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: growing\ntrain:\n  steps: 24\n", encoding="utf-8")
    write_metrics(folder, metric_rows()[:4])
    for step in (1, 2, 3):
        write_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl", step_of(step))
    return folder


@pytest.fixture
def viewer(folder: Path) -> Iterator[Viewer]:
    with viewing(folder) as started:
        yield started


def go_on(folder: Path, step: int) -> None:
    """What the trainer does at the end of a step."""
    write_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl", step_of(step))
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(train_row(step)) + "\n")


def points(page: Page) -> list[int]:
    steps: list[int] = page.evaluate("document.querySelector('#charts .plot').data[0].x")
    return steps


def test_new_steps_arrive_and_nothing_moves_under_the_reader(visit: Visit, viewer: Viewer, folder: Path) -> None:
    page = visit(f"http://127.0.0.1:{viewer.port}/#order=asc", height=500)
    expect(page.locator("#live")).to_have_text(re.compile(r"running, \d of 24 steps so far; follows as it writes"))
    expect(page.locator("#count")).to_have_text("24, shown: 1 to 24")
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    link = page.locator("#table a.open").nth(20)
    link.focus()
    page.evaluate("window.before = [document.querySelector('#charts .main-svg'), document.activeElement]")
    scrolled = page.evaluate("scrollY")
    assert scrolled > 100
    go_on(folder, 4)
    expect(page.locator("#count")).to_have_text("32, shown: 1 to 32")
    page.wait_for_function("document.querySelector('#charts .plot').data[0].x.length === 4")
    assert points(page) == [1, 2, 3, 4]
    now = "[document.querySelector('#charts .main-svg'), document.activeElement]"
    assert page.evaluate(f"{now}.map((one, index) => one === window.before[index])") == [True, True]
    assert page.evaluate("scrollY") == scrolled
    assert page.locator("#filter-family option").all_inner_texts() == ["any", "gcd"]


def test_the_newest_step_is_followed_until_another_is_asked_for(visit: Visit, viewer: Viewer, folder: Path) -> None:
    page = visit(f"http://127.0.0.1:{viewer.port}/")
    button = page.locator("#follow")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#filter-step")).to_have_value("3")
    expect(page.locator("#count")).to_have_text("8, shown: 1 to 8")
    go_on(folder, 4)
    expect(page.locator("#filter-step")).to_have_value("4")
    expect(page.locator("#table a.open").first).to_have_text("gcd-train-4-1")
    assert "step=4" in page.url
    page.locator("#filter-step").fill("1")
    expect(page.locator("#table a.open").first).to_have_text("gcd-train-1-1")
    expect(button).to_have_attribute("aria-pressed", "false")


def test_a_server_that_is_gone_is_said_and_found_again(visit: Visit, folder: Path) -> None:
    with viewing(folder) as first:
        port = first.port
        page = visit(f"http://127.0.0.1:{port}/", excused="Failed to load resource: net::ERR_")
        expect(page.locator("#count")).to_have_text("24, shown: 1 to 24")
    expect(page.locator("#live")).to_have_text("the server does not answer; trying again every 4 s")
    expect(page.locator("#live")).to_have_class("live lost")
    page.locator("#filter-status").select_option("solved")
    expect(page.locator("#table-problem")).to_have_text("The table can't be shown: the server does not answer.")
    expect(page.locator("#table tbody tr")).to_have_count(24)
    go_on(folder, 4)
    with viewing(folder, "--port", str(port)):
        expect(page.locator("#live")).to_have_text(re.compile(r"running, \d of 24 steps so far; follows as it writes"))
        expect(page.locator("#count")).to_have_text("16, shown: 1 to 16")
