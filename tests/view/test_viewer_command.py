"""What `repl-rl view` does with its options, short of serving, and that it can begin to without loading much."""

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_trajectories import line, made

from repl_rl.trajectory import LineKind, RecordedCell, StopReason, write_jsonl
from repl_rl.view.run import rollouts_summary, unanswered
from tests.view.conftest import SESSIONS, STEPS, failed_trajectory, indexed, make_trajectory, solved_trajectory

Said = Callable[..., str]


def test_a_file_is_printed_or_summed_up(run_folder: Path, said: Said) -> None:
    file = str(run_folder / "rollouts" / "step_00001.jsonl")
    assert said("view", file).endswith("3 trajectories, 1 of 3 graded ones solved\n")
    assert said("view", file, "--summary").splitlines() == SESSIONS["two failed ones and a solved one summed up"]


def test_an_evaluation_of_several_models_is_told_of_each(tmp_path: Path, said: Said) -> None:
    file = tmp_path / "eval.jsonl"
    for model, dialect, solved, count in (
        ("nano", "python", 3, 4),
        ("nano", "fenced", 0, 4),
        ("other", "python", 1, 2),
    ):
        made = [(solved_trajectory if n < solved else failed_trajectory)("t") for n in range(count)]
        write_jsonl(file, made, labels=[{"model": model, "dialect": dialect}] * count, append=True)
    told = [
        "nano, python: 4 trajectories, 3 of 4 graded ones solved",
        "nano, fenced: 4 trajectories, 0 of 4 graded ones solved",
        "other, python: 2 trajectories, 1 of 2 graded ones solved",
    ]
    assert said("view", str(file)).splitlines()[-3:] == told
    rows = said("view", str(file), "--summary").splitlines()
    assert [rows[rows.index(f"nano, {dialect}") + 3] for dialect in ("python", "fenced")] == [
        "solved: 3 of 4 graded (75.0%)",
        "solved: 0 of 4 graded (0.0%)",
    ]
    assert sorted(indexed(file).run()["summary"]) == sorted(f"eval.jsonl: {each}" for each in told)


def test_a_summary_of_a_run_ends_with_the_rollouts_of_its_last_step(run_folder: Path, said: Said) -> None:
    rows = said("view", str(run_folder), "--summary").splitlines()
    start = rows.index(f"step {STEPS}:")
    assert rows[start + 1 : start + 4] == [
        "  rollouts: 3 of 2 tasks",
        "  solved: 2 of 3 graded (66.7%)",
        "  lines per rollout: 5.3 on average, 2 to 7",
    ]


def test_rollouts_without_grades_rewards_or_lines_have_a_summary_too() -> None:
    void = make_trajectory("t", "Q", [], stop=StopReason.ABORTED)
    assert rollouts_summary([void, replace(void, dialect="mine:Own")]) == SESSIONS["two of nothing summed up"]


def test_a_summary_says_why_sessions_gave_no_answer_and_where_the_remedies_are() -> None:
    unread = made([replace(line("x", LineKind.SYNTAX_ERROR), cells=(RecordedCell("", "no call"),))])
    lost = [StopReason.REPEATS, StopReason.EOS, StopReason.REPEATS]
    sessions = [replace(unread, answer=("1",)), *(replace(unread, stop_reason=stop) for stop in lost)]
    assert rollouts_summary(sessions)[-1] == (
        "without an answer: 3 of 4: repeats 2 (67%), eos 1 (33%); 3 unread calls; docs/faq.md says what helps"
    )
    assert unanswered(sessions[:1]) == ""


@pytest.mark.parametrize("options", [[], ["--summary"], ["--export"], ["--serve", "--no-browser"]])
def test_what_is_empty_is_not_there_or_holds_runs(
    run_folder: Path, tmp_path: Path, options: list[str], said: Said
) -> None:
    empty = run_folder / "empty.jsonl"
    empty.touch()
    for target, message in (
        (empty, f"repl-rl: {empty} is empty: it holds no trajectory"),
        (run_folder / "absent", "nothing to view at"),
        (tmp_path, "it holds runs, name one of them: quickstart"),
    ):
        assert message in said("view", str(target), *options, code=2)
    assert not list(run_folder.glob("*.html"))


@pytest.mark.parametrize(("text", "reason"), [("\n\n", ""), ("hello\n", " that can be read: x.jsonl: 1 line is left")])
def test_a_file_without_a_trajectory_is_said(tmp_path: Path, said: Said, text: str, reason: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    file = str(tmp_path / "x.jsonl")
    assert said("view", file, code=2).startswith(f"repl-rl: {file} holds no trajectory{reason}")
    if reason:
        assert f"{file} holds no trajectory that can be read: x.jsonl: " in said("view", file, "--export", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_an_export_lies_in_the_run_beside_the_file_or_where_it_is_wanted(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = run_folder / "eval" / f"step_{STEPS:05d}.jsonl"
    for arguments, message, page in (
        ([str(run_folder), "--export"], "30 of 30 trajectories", run_folder / "viewer.html"),
        ([str(run_folder), "--export", str(tmp_path / "x.html"), "--most", "3"], "3 of 30", tmp_path / "x.html"),
        ([str(file), "--export"], "12 of 12 trajectories", file.with_suffix(".html")),
    ):
        assert message in said("view", *arguments)
        assert page.stat().st_size > 4_000_000


def test_an_export_does_not_replace_what_it_is_of(run_folder: Path, said: Said) -> None:
    page = run_folder / "report.html"
    page.write_text("kept")
    for arguments in ([str(page), "--export"], [str(page), "--export", str(page)]):
        assert "is the file to view itself; give another name" in said("view", *arguments, code=2)
    assert page.read_text() == "kept"


def test_a_summary_needs_no_report(run_folder: Path, said: Said) -> None:
    (run_folder / "report.html").mkdir()
    text = said("view", str(run_folder), "--summary")
    assert text.startswith("quickstart: 24 steps on nano")
    assert "note: the report is not written:" in text
    assert "report.html can't be written: Is a directory" in text
    assert not (run_folder / "report.html.part").exists()


def test_options_that_mean_nothing_and_a_port_that_is_taken(run_folder: Path, said: Said) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, message in (
            (["--most", "3"], "--most 3: it takes a number from 1 on, and goes with --export"),
            (["--export", "--most", "0"], "--most 0: it takes a number from 1 on"),
            (["--port", "99999"], "port 99999 can't be had: there is no such port; give another, or leave out --port"),
            (["--port", port], f"port {port} can't be had: "),
        ):
            text = said("view", str(run_folder), *options, code=2)
            assert message in text
    assert text.endswith("give another, or leave out --port\n")


@pytest.mark.more
@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import repl_rl.view as v; v.write_report, v.read_run, v.print_trajectory", "vllm plotly jupyter_client"),
        ("import repl_rl.cli, repl_rl.view.viewer.server", "vllm plotly jupyter_client numpy jinja2 tokenizers"),
        ("import repl_rl.view.viewer.indexer", "pydantic aiohttp plotly jinja2 rich yaml"),
        ("from repl_rl.view.tokens import load_token_texts as load; load('nano')([1])", "vllm"),
    ],
)
def test_nothing_heavy_is_loaded(program: str, heavy: str) -> None:
    program = (
        f"import sys\n{program}\nprint(sorted({{'torch', 'transformers', *{heavy.split()}}} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[]\n"
