"""An exported file, opened from the disk without a network: the same page with the same answers."""

import shutil
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

from repl_rl.view import write_report
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.export import export
from tests.view.browser.conftest import Visit, row_texts, screen_texts

pytestmark = pytest.mark.slow

QUERIES = yaml.safe_load(Path(__file__).with_name("queries.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def exported(shown_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("exported") / "run.html"
    assert export(RunApi(shown_folder), path) == (122, 122)
    return path.as_uri()


def test_filters_and_orders_give_what_the_server_gives(visit: Visit, exported: str, shown_folder: Path) -> None:
    page = visit(exported)
    source = RunApi(shown_folder)
    for query in QUERIES:
        asked = {"sort": "step", "order": "desc", "offset": "5", "limit": "40", **query}
        answer = source.rows(asked)
        found = page.evaluate("async (query) => await ReplView.source().rows(query)", asked)
        assert found["total"] == answer["total"], query
        assert [row["id"] for row in found["rows"]] == [row["id"] for row in answer["rows"]], query


def test_the_file_is_used_like_the_viewer(visit: Visit, exported: str) -> None:
    page = visit(exported)
    expect(page.locator("#live")).to_have_text("exported file, does not change")
    expect(page.locator("#count")).to_have_text("122, shown: 1 to 50")
    expect(page.locator("#charts .main-svg:first-child")).to_have_count(3)
    expect(page.locator("#follow")).to_be_hidden()
    page.locator("#filter-error").select_option("NameError")
    expect(page.locator("#count")).to_have_text("61, shown: 1 to 50")
    page.locator("th[data-sort=step] button").click()
    assert row_texts(page, 1)[0] == "0 eval"
    page.locator("#table a.open").nth(12).click()
    expect(page.locator("#pane-title")).to_have_text("gcd-train-1-1")
    page.locator("#pane .row.acted .text").first.click()
    expect(page.locator(".strip .token")).to_have_count(5)
    assert len(screen_texts(page)) == 7
    page.go_back()
    expect(page.locator("#pane")).to_be_hidden()


def test_a_report_shows_curves_and_rates_at_once_and_trajectories_by_step(
    visit: Visit, shown_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(shown_folder, tmp_path / "quickstart")
    page = visit(write_report(folder).as_uri())
    expect(page.locator("#charts .main-svg:first-child")).to_have_count(8)
    expect(page.locator(".families tbody tr").first).to_contain_text("41.2%92.5%")
    expect(page.locator("#summary")).to_contain_text("problems solved before training, 92.5% after.")
    expect(page.locator("#notes")).to_contain_text("This report holds ")
    expect(page.locator("#live")).to_have_text("exported file, does not change")
    page.get_by_role("link", name="Show one row").click()
    expect(page.locator(".families")).to_have_count(0)
    page = visit(f"{folder.as_uri()}/report.html#open=eval-24-1&mode=steps&with=eval-0-1")
    expect(page.locator(".diff caption")).to_have_text("Both transcripts are the same, row by row.")
