"""Timelines on the page: links that keep a file, and a sentence that says where to open it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_rl.trajectory import write_jsonl
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.export import export
from tests.view.browser.conftest import Visit, step_of
from tests.view.conftest import write_run
from tests.view.test_timeline_files import CONTENT, write_timelines
from tests.view.test_viewer_server import viewing

pytestmark = pytest.mark.more


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    folder = tmp_path / "quickstart"
    write_run(folder)
    for step in (1, 2):
        write_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl", step_of(step))
    write_timelines(folder, [f"step_{step:05d}.json.gz" for step in range(2, 20)])
    return folder


@pytest.fixture
def traced_address(traced: Path) -> Iterator[str]:
    with viewing(traced) as viewer:
        yield f"http://127.0.0.1:{viewer.port}/"


@pytest.mark.parametrize("width", [1280, 360])
def test_a_click_keeps_the_timeline_of_a_step(traced_address: str, visit: Visit, tmp_path: Path, width: int) -> None:
    page = visit(traced_address, width=width)
    links = page.locator("#timelines a")
    expect(links).to_have_text([f"step {step}" for step in range(8, 20)])
    said = "and 6 before these, in trace/. Download one, and open it at ui.perfetto.dev."
    expect(page.locator("#timelines")).to_contain_text(said)
    with page.expect_download() as kept:
        links.last.click()
    assert kept.value.suggested_filename == "step_00019.json.gz"
    kept.value.save_as(tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == CONTENT
    page.goto(f"{traced_address}#open=train-2-0")
    of_step = page.locator("#pane a", has_text="timeline of the step")
    with page.expect_download() as kept:
        of_step.click()
    assert kept.value.suggested_filename == "step_00002.json.gz"
    page.goto(f"{traced_address}#open=train-1-0")
    expect(page.locator("#pane-title")).to_have_text("gcd-train-1-1")
    expect(of_step).to_have_count(0)


def test_an_exported_file_offers_none(visit: Visit, traced: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    export(RunApi(traced), path)
    page = visit(f"{path.as_uri()}#open=train-2-0")
    expect(page.locator("#pane-title")).to_have_text("gcd-train-2-1")
    expect(page.locator("#pane a", has_text="timeline of the step")).to_have_count(0)
    expect(page.locator("#timelines a")).to_have_count(0)
