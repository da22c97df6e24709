from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from repl_rl.errors import RunError
from repl_rl.trajectory import LineKind, StopReason, Trajectory, write_jsonl
from repl_rl.view import report, write_report
from repl_rl.view.charts import charts, moving_average
from repl_rl.view.examples import examples
from repl_rl.view.facts import family_counts
from repl_rl.view.report import render_report
from repl_rl.view.run import read_run
from repl_rl.view.words import duration
from tests.view.conftest import STEPS, failed_trajectory, make_trajectory, solved_trajectory, train_row, write_metrics

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\udc80"


class Page(HTMLParser):
    """Tags with their attributes, the text outside scripts and styles, and the scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.pieces, self.scripts = "", list[str](), list[str]()
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data
            self.pieces += [word for word in [" ".join(data.split())] if word]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few kilobytes: parsing 5 MB of a library's script in every test proves nothing."""
    monkeypatch.setattr(report, "_plotly_js", lambda: "")


def page_of(folder: Path) -> Page:
    return Page(render_report(read_run(folder)))


def test_the_file_is_whole_and_needs_no_network(run_folder: Path) -> None:
    path = write_report(run_folder)
    html = path.read_text(encoding="utf-8")
    assert path == run_folder / "report.html"
    assert html.rstrip().endswith("</html>")
    assert html.count("Plotly.react(") == 1
    assert 4_000_000 < len(html) < 6_000_000
    assert not re.search(
        r"<(script|link|img|iframe)[^>]+(src|href)=", re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    )
    assert sorted(file.name for file in run_folder.iterdir() if file.name.startswith("report")) == ["report.html"]


def test_writing_again_replaces_the_report(run_folder: Path) -> None:
    (run_folder / "report.html").write_text("old")
    assert write_report(run_folder).stat().st_size > 1000


def test_a_folder_that_is_no_run_gets_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_plotly")
def test_the_head_says_what_training_did(run_folder: Path) -> None:
    page = page_of(run_folder)
    words = page.words
    assert "41.2% → 92.5% of 240 held-out problems solved before and after 24 steps of training." in words
    facts = (("model", "nano"), ("steps", "24"), ("training time", "4 min 36 s"), ("rollouts per step", "8 × 8"))
    for fact in facts:
        assert fact in list(pairwise(page.pieces))
    assert "gcd 3 30.0% 95.0% +65.0" in words


@pytest.mark.usefixtures("without_plotly")
def test_a_transcript_shows_who_wrote_what_and_what_it_was_worth(run_folder: Path) -> None:
    page = page_of(run_folder)
    assert "› >>> math.gcd(12, 18) exception: NameError -0.10 -0.75 4.2 ms" in page.words
    assert "‹ NameError: name 'math' is not defined." in page.words
    assert "stopped: answer · answer: 12 · 2 lines, 6 tokens, 0.3 s" in page.words
    classes = {attributes.get("class") for tag, attributes in page.tags if tag == "span"}
    assert {"typed", "interpreter", "prompt"} <= classes


@pytest.mark.usefixtures("without_plotly")
def test_hostile_text_stays_text_wherever_it_stands(run_folder: Path) -> None:
    typed = [(f" # {EVIL}\n", LineKind.COMMENT, None, f"{EVIL}\n>>>"), (" x\n", LineKind.EXCEPTION, EVIL, EVIL)]
    hostile = make_trajectory(f"t-{EVIL}", EVIL, typed, answer=(EVIL,), grade=1.0)
    hostile = replace(hostile, error=EVIL)
    for step in (1, STEPS):
        write_jsonl(run_folder / "rollouts" / f"step_{step:05d}.jsonl", [hostile])
        write_jsonl(run_folder / "eval" / f"step_{step:05d}.jsonl", [hostile])
    families = {EVIL: 0.5}
    rows = [
        {"kind": "eval", "step": step, "solve_rate": 0.5, "problems": EVIL, "families": families} for step in (0, 9)
    ]
    write_metrics(run_folder, [*rows, {**train_row(3), f"errors/{EVIL}": 0.5, f"rewards/{EVIL}/mean": 1.0}])
    (run_folder / "config.yaml").write_text(json.dumps({"name": EVIL, "model": {"path": EVIL}, "seed": EVIL}))
    html = render_report(read_run(run_folder))
    page = Page(html)
    html.encode("utf-8")
    assert len(page.scripts) == 3
    assert not any("alert" in script for script in page.scripts[1:])
    assert not [tag for tag, attributes in page.tags if tag == "img" or "onerror" in attributes]
    assert page.text.count("alert(1)</script>") > 15
    assert "\x1b" not in html
    assert "\\x1b[31m\\udc80" in page.text
    figures = json.loads(page.scripts[0])
    assert "<" not in json.dumps(figures), "plotly reads tags in labels"


@pytest.mark.usefixtures("without_plotly")
def test_a_run_that_has_only_begun_has_a_report_without_charts(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: begun\n")
    page = page_of(tmp_path)
    assert "No held-out evaluation yet." in page.words
    assert "there is no metrics.jsonl yet" in page.words
    assert page.scripts == []


@pytest.mark.usefixtures("without_plotly")
def test_an_evaluation_without_a_second_one_says_so(run_folder: Path) -> None:
    write_metrics(run_folder, [{"kind": "eval", "step": 0, "solve_rate": 0.25}])
    assert "25.0% of held-out problems solved at step 0; there is no later evaluation yet." in page_of(run_folder).words


@pytest.mark.usefixtures("without_plotly")
def test_a_long_prompt_is_folded(run_folder: Path) -> None:
    long = replace(solved_trajectory(), prompt="line\n" * 20 + ">>>")
    write_jsonl(run_folder / "rollouts" / "step_00001.jsonl", [long])
    page = page_of(run_folder)
    assert "the prompt, 20 rows" in page.words
    assert [tag for tag, _ in page.tags].count("details") == 1


@pytest.mark.usefixtures("without_plotly")
def test_aborted_and_ungraded_trajectories_are_told_apart(run_folder: Path) -> None:
    aborted = Trajectory("a-1", ">>>", (1,), (), (), (), StopReason.ABORTED, error="the kernel went away")
    for step in (0, STEPS):
        write_jsonl(run_folder / "eval" / f"step_{step:05d}.jsonl", [aborted, make_trajectory("b-1", "q", [])])
    words = page_of(run_folder).words
    assert "· void a-1" in words
    assert "failure: the kernel went away" in words


def test_charts_are_those_that_there_are_numbers_for(run_folder: Path) -> None:
    drawn = {chart.id: chart for chart in charts(read_run(run_folder))}
    assert list(drawn) == [*("learning", "families", "kinds", "errors", "rewards", "lengths", "latency", "speed")]
    assert [trace["name"] for trace in drawn["learning"].data] == ["training batch", "mean of 3 steps", "held-out"]
    assert drawn["learning"].data[-1]["x"] == [0, STEPS]
    assert [trace["name"] for trace in drawn["rewards"].data] == ["total", "outcome", "table"]
    kinds = {trace["name"]: trace["y"][-1] for trace in drawn["kinds"].data}
    assert kinds["answer"] == pytest.approx(0.35)
    assert "timeout" not in kinds
    write_metrics(run_folder, [{"kind": "train", "step": 1, "solve_rate": 0.5, "reward": float("nan")}])
    assert [chart.id for chart in charts(read_run(run_folder))] == ["learning"]


def test_charts_of_the_machine_s_side(run_folder: Path) -> None:
    rows = [
        {**train_row(step), "entropy": 0.5 / step, "kl": 0.01 * step, "step_time": 5.0 + step}
        | {"sampling/sampling_logp_difference/mean": 1e-6}
        for step in (1, 2)
    ]
    write_metrics(run_folder, rows)
    drawn = {chart.id: chart for chart in charts(read_run(run_folder))}
    assert list(drawn)[-4:] == ["entropy", "kl", "latency", "speed"]
    assert [trace["y"] for trace in drawn["entropy"].data] == [[0.5, 0.25]]
    assert [trace["y"] for trace in drawn["kl"].data] == [[0.01, 0.02], [1e-6, 1e-6]]
    median, slowest, step = drawn["latency"].data
    assert (median["y"], slowest["y"], step["y"]) == ([4.1, 4.1], [38.2, 38.2], [6.0, 7.0])
    assert ("yaxis" in median, step["yaxis"], drawn["latency"].layout["yaxis2"]["side"]) == (False, "y2", "right")
    assert [trace["y"] for trace in drawn["speed"].data] == [[1412.0, 1412.0]]


def test_latency_of_steps_alone_needs_one_scale(run_folder: Path) -> None:
    write_metrics(run_folder, [{"kind": "train", "step": 1, "step_time": 5.0}])
    (chart,) = charts(read_run(run_folder))
    assert (chart.id, chart.layout["yaxis"]["title"]["text"]) == ("latency", "s")
    assert "yaxis" not in chart.data[0]


def test_a_gap_in_a_series_stays_a_gap_and_leaves_its_mean_alone() -> None:
    assert moving_average([1.0, None, 3.0, 5.0], 2) == [1.0, None, 3.0, 4.0]


def test_an_exception_that_a_step_does_not_name_counts_zero(run_folder: Path) -> None:
    rows = [{"kind": "train", "step": 1, "errors/A": 0.5}, {"kind": "train", "step": 2, "errors/B": 0.25}]
    write_metrics(run_folder, rows)
    (chart,) = [chart for chart in charts(read_run(run_folder)) if chart.id == "errors"]
    assert {trace["name"]: trace["y"] for trace in chart.data} == {"A": [0.5, 0.0], "B": [0.0, 0.25]}


def test_examples_show_what_changed_first_and_one_task_solved_and_not(run_folder: Path) -> None:
    groups = examples(read_run(run_folder))
    assert [group.heading for group in groups] == [
        "Learned: unsolved before, solved after",
        "Learned: unsolved before, solved after",
        "Learned: unsolved before, solved after",
        "Unsolved before and after",
        "Training, step 1: one task, solved and not",
        f"Training, step {STEPS}",
    ]
    learned = [group.examples[0].trajectory.task_id.partition("-")[0] for group in groups[:3]]
    assert len(set(learned)) == 3
    for group in groups[:5]:
        assert len({example.trajectory.task_id for example in group.examples}) == 1
    assert [example.trajectory.outcome_reward for example in groups[4].examples] == [1.0, 0.0]


def test_examples_of_a_step_where_nothing_was_solved(run_folder: Path) -> None:
    write_jsonl(run_folder / "rollouts" / "step_00001.jsonl", [failed_trajectory(), failed_trajectory()])
    groups = examples(read_run(run_folder))
    assert [len(group.examples) for group in groups if group.heading == "Training, step 1"] == [1]


def test_counts_go_to_the_longest_family_that_fits() -> None:
    ids = ["sum-heldout-1", "sum-range-heldout-1", "sum-range-heldout-2", "other-1"]
    assert family_counts(ids, ["sum", "sum-range"]) == {"sum": 1, "sum-range": 2}


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.44, "8.4 s"), (192.0, "3 min 12 s"), (7500.0, "2 h 05 min"), (math.inf, "–")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
