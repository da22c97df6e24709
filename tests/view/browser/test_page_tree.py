"""A group that was forked, drawn as a tree in a real browser."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from repl_rl.config import Config, dump_config
from repl_rl.trajectory import Branch, LineKind, Trajectory, write_jsonl
from tests.view.browser.conftest import STORED, Visit
from tests.view.browser.test_accessibility import violations
from tests.view.conftest import make_trajectory
from tests.view.test_viewer_server import viewing

CELLS = """[...document.querySelectorAll("#pane .tree tbody tr")].map((row) => [...row.children].map((cell) =>
    [...cell.querySelectorAll("a, small")].map((part) => part.lastChild.textContent).join(" ")))"""


def typed(lines: int, earned: float, branch: Branch | None = None, advantage: float = 0.5) -> Trajectory:
    lines_ = [(f" x = {number}\n", LineKind.STATEMENT, None, ">>>") for number in range(lines - 1)]
    made = make_trajectory("t-train-1", "Grow.", [*lines_, (" submit_final_answer(x)\n", LineKind.ANSWER, None, "")])
    kept = [replace(line, reward=0.0, advantage=advantage) for line in made.lines]
    kept[-1] = replace(kept[-1], reward=earned)
    return replace(made, lines=tuple(kept), outcome_reward=earned, branch=branch)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A group of two roots of three lines. The first one forked after its first line, into itself and two branches, of
    which one is void; in the place of the second one's branch there is a session from the prompt."""
    folder: Path = tmp_path_factory.mktemp("trees") / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(Config.model_validate({"name": "trees"})), encoding="utf-8")
    group = [
        typed(3, 1.0),
        typed(3, 0.0, advantage=-0.25),
        typed(2, 0.0, Branch(0, 1, 1 / 3, "fork"), -0.75),
        typed(2, 0.0, Branch(0, 1, 1 / 3, "replay"), 0.0),
        typed(3, 1.0, Branch(1, 0, 1.0, "anew")),
    ]
    write_jsonl(folder / "rollouts" / "step_00001.jsonl", [*group, *group])  # the task came twice
    with viewing(folder) as viewer:
        yield f"http://127.0.0.1:{viewer.port}/"


@pytest.mark.more
def test_branches_begin_below_the_line_after_which_their_parent_forked(visit: Visit, address: str) -> None:
    page = visit(f"{address}#open=train-1-0&mode=group")
    expect(page.locator("#pane .tree tbody tr")).to_have_count(10)
    rows = page.evaluate(CELLS)
    assert rows[:5] == STORED["tree"]
    assert [row[0] for row in rows[5:]] == ["#5", "#7", "#8", "#6", "#9"]
    began = page.locator("#pane .tree td.before").first.get_attribute("title")
    assert began == "by fork after line 0 of #0, weight 0.333"
    assert page.locator("#pane .tree td.forks").count() == 2
    assert violations(page) == []
    page.locator("#pane .tree tbody tr").nth(1).locator("td a").first.click()
    expect(page.locator("#pane-title")).to_have_text("t-train-1")
    assert "open=train-1-2" in page.url
    assert "line=0" in page.url
