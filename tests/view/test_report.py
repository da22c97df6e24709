"""`report.html` is the viewer with a sample of the run, and the charts say what its metrics say."""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from repl_rl.config import load_config
from repl_rl.errors import DependencyError, RunError
from repl_rl.run import training
from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import LineKind, write_jsonl
from repl_rl.view import write_report
from repl_rl.view.charts import BLUE, GREEN, Chart, chart_svg, charts, charts_of_several, moving_average
from repl_rl.view.run import read_run
from repl_rl.view.viewer import export
from tests.view.conftest import STEPS, indexed, make_trajectory, solved_trajectory, train_row, write_metrics
from tests.view.fragments import Fragment

pytestmark = pytest.mark.usefixtures("small_page")
EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\x1b[31m\udc80\u2028\x00"


def page_of(folder: Path) -> Fragment:
    return Fragment(write_report(folder).read_text(encoding="utf-8"))


def test_the_report_lies_in_the_run_folder_and_leaves_nothing_else(run_folder: Path) -> None:
    before = {path.name for path in run_folder.iterdir()}
    for _ in range(2):  # it replaces what was there
        assert write_report(run_folder) == run_folder / "report.html"
        assert (run_folder / "report.html").stat().st_size > 1000
        assert {path.name for path in run_folder.iterdir()} == before | {"report.html"}
        (run_folder / "report.html").write_text("old")


def test_what_keeps_a_report_from_being_written_is_one_of_our_errors(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_folder / "report.html").mkdir()
    with pytest.raises(RunError, match=r"report.html can't be written: "):
        write_report(run_folder)
    (run_folder / "report.html").rmdir()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(run_folder / "nowhere"))
        with pytest.raises(RunError, match=r"report.html can't be written: "):
            write_report(run_folder)
    monkeypatch.undo()  # of the small page, which brings a plotly of its own
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match="the script that draws the charts is missing"):
        write_report(run_folder)
    assert not (run_folder / "report.html").exists()


def test_a_training_whose_report_fails_ends_as_it_would_have(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    (run_folder / "report.html").mkdir()
    run = read_run(run_folder)
    prepared = SimpleNamespace(folder=RunFolder(run_folder), notes=(), config=load_config("quickstart"))
    outcome = SimpleNamespace(step=3, before=run.before, after=run.after, train_seconds=60.0)
    monkeypatch.setattr(training, "prepare", lambda *_: nullcontext(prepared))
    monkeypatch.setattr(training, "train", lambda *_: outcome)
    assert "trained in 1.0 minutes; report: not written: " in said("train", "quickstart")
    outcome.after = None
    assert "go on with: repl-rl train --resume" in said("train", "quickstart", code=130)


def test_the_head_says_what_training_did_and_a_small_run_is_below_it_as_a_whole(run_folder: Path) -> None:
    page = page_of(run_folder)
    run = page.data["run"]
    assert len(page.data["rows"]) == len(page.data["trajectories"]) == len(page.data["tokens"]) == 30
    [attributes] = [attributes for attributes, _ in page.scripts if attributes.get("id") == "run-data"]
    assert (attributes["data-curves"], run["notes"], run["live"]) == ("all", [], False)
    head, rates = run["summary"]
    assert head == "quickstart: 24 steps on nano"
    assert rates == "41.2% of 240 held-out problems solved before training, 92.5% after"
    expected = (("model", "nano"), ("steps", "24"), ("training time", "4 min 36 s"), ("rollouts per step", "8 × 8"))
    assert [list(fact) for fact in expected] == [fact for fact in run["facts"] if tuple(fact) in expected]
    assert not {"workers", "staleness"} & {name for name, _ in run["facts"]}
    rates = {row["name"]: (row["before"], row["after"], row["count"]) for row in run["families"]}
    assert rates["all"] == (pytest.approx(0.4125), pytest.approx(0.925), 240)
    assert rates["gcd"] == (0.3, 0.95, None)
    assert run["families"][2]["change"] == pytest.approx(65.0)
    assert [chart["id"] for chart in run["charts"]][:2] == ["learning", "families"]


@pytest.mark.more
def test_a_long_run_is_sampled_over_its_steps_and_says_so(run_folder: Path) -> None:
    for step in range(1, 100):
        write_jsonl(run_folder / "rollouts" / f"step_{step:05d}.jsonl", [solved_trajectory(f"gcd-train-{step}")] * 20)
    data = page_of(run_folder).data
    steps = {row["step"] for row in data["rows"] if row["split"] == "train"}
    assert len(steps) == export.REPORT_STEPS
    assert {1, 50, 99} <= steps
    positions = [row["position"] for row in data["rows"] if (row["split"], row["step"]) == ("train", 50)]
    assert positions == list(range(export.REPORT_PER_STEP))
    held_out = [(row["step"], row["task_id"]) for row in data["rows"] if row["split"] == "eval"]
    before, after = (sorted(task for at, task in held_out if at == step) for step in (0, STEPS))
    assert before == after, "the same problems before and after training"
    assert data["run"]["notes"] == [
        "This report holds 216 trajectories, the first ones of 14 of the run's 101 files of rollouts. `repl-rl view` "
        "shows all of them."
    ]


def test_every_step_has_fewer_where_trajectories_are_large(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "REPORT_BYTES", 30_000)
    data = page_of(run_folder).data
    counts = Counter((row["split"], row["step"]) for row in data["rows"])
    assert counts.keys() == {("eval", 0), ("eval", STEPS), ("train", 1), ("train", STEPS)}
    assert 4 <= counts.total() < 30
    assert max(counts.values()) <= min(counts.values()) + 1
    assert "This report holds" in data["run"]["notes"][0]


def test_hostile_text_stays_text_wherever_it_stands(run_folder: Path) -> None:
    typed = [(f" # {EVIL}\n", LineKind.COMMENT, None, f"{EVIL}\n>>>"), (" x\n", LineKind.EXCEPTION, EVIL, EVIL)]
    hostile = replace(make_trajectory(f"t-{EVIL}", EVIL, typed, answer=(EVIL,), grade=1.0), error=EVIL)
    for step in (1, STEPS):
        write_jsonl(run_folder / "rollouts" / f"step_{step:05d}.jsonl", [hostile])
        write_jsonl(run_folder / "eval" / f"step_{step:05d}.jsonl", [hostile])
    evaluation = {"kind": "eval", "solve_rate": 0.5, "problems": EVIL, "families": {EVIL: 0.5}}
    named = {f"errors/{EVIL}": 0.5, f"rewards/{EVIL}/mean": 1.0, "reward": 1e400}
    write_metrics(run_folder, [*({**evaluation, "step": step} for step in (0, 9)), {**train_row(3), **named}])
    (run_folder / "config.yaml").write_text(json.dumps({"name": EVIL, "model": {"path": EVIL}, "seed": EVIL}))
    page = page_of(run_folder)
    assert len(page.scripts) == 3
    assert not any("alert" in text for attributes, text in page.scripts if attributes.get("id") != "run-data")
    assert not page.named("img")
    html = (run_folder / "report.html").read_text(encoding="utf-8")
    assert html.count("alert(1)") > 15
    assert "<img" not in html.partition("<style>")[0]
    assert "<" not in json.dumps(page.data["run"]["charts"]), "plotly reads tags in labels"
    api = indexed(run_folder)
    found = api.rows({"q": "onerror", "error": page.data["rows"][-1]["errors"][0]})
    shown = api.trajectory("train-1-0")
    assert shown["answer"] == [
        "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\\x1b[31m\\udc80\\u2028\\x00"
    ]
    assert found["total"] == 4
    ask = [api.run(), found, shown, api.tokens("train-1-0"), api.group("train-1-0"), api.task("train-1-0"), page.data]
    for answer in ask:
        text = json.dumps(answer, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        assert not re.search("[\x1b\u2028]|\\\\u00(?:00|1b)", text)


def test_a_run_that_has_only_begun_has_a_report_without_charts(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: begun\n")
    data = page_of(folder).data
    assert data["run"]["summary"] == ["begun: no training step yet"]
    assert data["run"]["notes"] == ["there is no metrics.jsonl yet"]
    assert (data["run"]["charts"], data["run"]["families"], data["rows"]) == ([], [], [])


def test_an_evaluation_without_a_second_one_says_so(run_folder: Path) -> None:
    write_metrics(run_folder, [{"kind": "eval", "step": 0, "solve_rate": 0.25}])
    run = page_of(run_folder).data["run"]
    assert run["summary"][1] == "25.0% of the held-out problems solved before training"
    assert [(row["before"], row["after"]) for row in run["families"]] == [(0.25, None)]


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
        | {"drift/logprob_mean": 1e-6}
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


def test_an_exception_that_a_step_does_not_name_counts_zero(run_folder: Path) -> None:
    rows = [{"kind": "train", "step": 1, "errors/A": 0.5}, {"kind": "train", "step": 2, "errors/B": 0.25}]
    write_metrics(run_folder, rows)
    (chart,) = [chart for chart in charts(read_run(run_folder)) if chart.id == "errors"]
    assert {trace["name"]: trace["y"] for trace in chart.data} == {"A": [0.5, 0.0], "B": [0.0, 0.25]}
    assert moving_average([1.0, None, 3.0, 5.0], 2) == [1.0, None, 3.0, 4.0], "a gap in a series stays a gap"


def test_of_very_many_names_some_are_drawn_and_the_others_are_counted(run_folder: Path) -> None:
    parts = {f"rewards/{number:05d}/mean": 0.5 for number in range(20_000)}
    families = {f"family {number}": 0.5 for number in range(20_000)}
    rows = [
        {"kind": "train", "step": 1, "reward": 0.5, **parts},
        {"kind": "eval", "step": 1, "solve_rate": 0.5, "families": families},
    ]
    write_metrics(run_folder, rows)
    run = read_run(run_folder)
    drawn = {chart.id: chart for chart in charts(run)}
    assert [trace["name"] for trace in drawn["rewards"].data[:3]] == ["total", "00000", "00001"]
    assert (len(drawn["rewards"].data), len(drawn["families"].data[0]["y"])) == (41, 40)
    beside = [chart for chart in charts_of_several({"a": run, "b": run}) if chart.id.startswith("rewards-")]
    assert [chart.id for chart in beside] == [f"rewards-{number:05d}-mean" for number in range(40)]
    for chart in (drawn["rewards"], drawn["families"], beside[-1]):
        assert chart.caption.endswith("19,960 more are left out.")


SVG = "{http://www.w3.org/2000/svg}"


def test_curves_gaps_markers_and_names_are_drawn() -> None:
    steps = {"mode": "lines", "name": "solved &lt;b&gt; $5$", "x": [0, 1, 2, 3], "y": [0.0, None, 0.5, 1.0]}
    held_out = {"mode": "lines+markers", "name": "held-out", "x": [0, 3], "y": [0.2, 0.4], "opacity": 0.5}
    data = [{**steps, "line": {"color": BLUE}}, {**held_out, "line": {"color": GREEN, "dash": "dot"}}]
    layout = {"yaxis": {"tickformat": ".0%", "range": [0, 1]}, "xaxis": {"title": {"text": "step"}}}
    text = chart_svg(Chart("c", "<script>", "What it is.", data, layout, 240))
    svg = ElementTree.fromstring(text)
    labels = {"".join(each.itertext()).strip() for each in svg.iter(f"{SVG}text")}
    assert {"0%", "100%", "step", "solved <b> $5$", "held-out", "<script>", "0", "3"} <= labels
    assert "0.5" not in labels  # of steps
    [curve] = [path for path in svg.iter(f"{SVG}path") if BLUE in path.get("style", "") and path.get("clip-path")]
    assert len(re.findall(r"[ML] ", curve.attrib["d"])) == 3
    dots = [each for each in svg.iter(f"{SVG}use") if GREEN in each.get("style", "")]
    assert len(dots) == 3  # two points, and one in the legend
    assert text == chart_svg(Chart("c", "<script>", "What it is.", data, layout, 240))
    assert not list(svg.iter(f"{SVG}script"))
