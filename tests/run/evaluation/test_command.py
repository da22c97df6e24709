"""`repl-rl eval` from the command line on nano and on nano with noise: real engines, real kernels, real files."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import without_times

from repl_rl.config import load_config
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.evaluation.command import keep
from repl_rl.run.folder import new_run
from repl_rl.tasks import grade, load_tasks
from repl_rl.trajectory import Trajectory, read_jsonl
from repl_rl.utils.statistics import Tally, pass_at_k
from tests.run.commands import begin, finish

pytestmark = pytest.mark.more
Compared = tuple[dict[str, Any], list[Trajectory], str]
PROBLEMS, SAMPLES = 6, 3


def noisy_nano(folder: Path, share: float = 0.5) -> Path:
    """nano with normal noise on every matrix, of `share` of the matrix's own deviation."""
    shutil.copytree(NANO_PATH, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(NANO_PATH / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2:
            weights[name] = weight + share * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def evaluate(folder: Path, *arguments: str) -> str:
    kept = ("--json", "out/e.json", "--out", "out/e.jsonl")
    return finish(begin(folder, "eval", "quickstart", *kept, *arguments))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """nano, a run's newest checkpoint with noise in its weights, and nano again: report, rollouts, screen."""
    folder = tmp_path_factory.mktemp("eval")
    run = new_run(load_config("quickstart"), folder / "runs")
    noisy_nano(run.checkpoints / "checkpoint-3", share=3.0)
    (run.checkpoints / "checkpoint-3" / "trainer_state.json").write_text('{"global_step": 3}')
    settings = ["--set", "engine={backend: transformers, deterministic: true, context_tokens: 512}"]
    counts = ["--problems", str(PROBLEMS), "-n", str(SAMPLES), "--k", "2,3"]
    screen = evaluate(folder, *settings, *counts, "--model", "nano", "runs/quickstart", "nano", "--dialect", "python")
    return json.loads((folder / "out/e.json").read_text()), list(read_jsonl(folder / "out/e.jsonl")), screen


def rows_of(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    size = PROBLEMS * SAMPLES
    return [list(trajectories[start : start + size]) for start in range(0, 3 * size, size)]


def test_every_model_gets_the_same_problems_in_the_same_order(compared: Compared) -> None:
    tasks = load_tasks(load_config("quickstart").tasks, "heldout", 0, PROBLEMS)
    expected = [task.id for task in tasks for _ in range(SAMPLES)]
    assert [[one.task_id for one in row] for row in rows_of(compared[1])] == [expected] * 3


def test_one_seed_repeats_every_token_and_another_model_types_others(compared: Compared) -> None:
    first, noisy, again = rows_of(compared[1])
    assert [*map(without_times, first)] == [*map(without_times, again)]
    assert sum(a.completion_ids != b.completion_ids for a, b in zip(first, noisy, strict=True)) > len(first) / 2
    assert len({one.completion_ids for one in first[:SAMPLES]}) > 1


def test_the_figures_are_those_of_the_rollouts(compared: Compared) -> None:
    tasks = load_tasks(load_config("quickstart").tasks, "heldout", 0, PROBLEMS)
    for row, trajectories in zip(compared[0]["rows"], rows_of(compared[1]), strict=True):
        samples = [trajectories[start : start + SAMPLES] for start in range(0, PROBLEMS * SAMPLES, SAMPLES)]
        right = [sum(grade(task, one.answer) for one in own) for task, own in zip(tasks, samples, strict=True)]
        for k in (1, 2, 3):
            expected = sum(pass_at_k(SAMPLES, int(count), k) for count in right) / PROBLEMS
            assert row["pass_at"][str(k)]["value"] == pytest.approx(expected)
        assert row["tokens"] == pytest.approx(sum(one.sampled_tokens for one in trajectories) / len(trajectories))
        assert row["lines"] == pytest.approx(sum(len(one.lines) for one in trajectories) / len(trajectories))
        assert sum(row["stops"].values()) == pytest.approx(1)
        assert row["seconds"] > 0


def test_the_report_says_which_checkpoint_was_meant(compared: Compared) -> None:
    report, _, screen = compared
    assert [(row["model"], row["checkpoint"]) for row in report["rows"]] == [
        ("nano", "nano"),
        ("runs/quickstart", "runs/quickstart/checkpoints/checkpoint-3"),
        ("nano", "nano"),
    ]
    first, noise, again = report["rows"]
    assert first["pass_at"]["1"]["value"] > noise["pass_at"]["1"]["value"] == 0.0
    assert noise["difference_to_first"]["value"] == pytest.approx(-first["pass_at"]["1"]["value"])
    assert again["difference_to_first"]["value"] == 0.0
    assert (report["k"], report["problems"], report["samples"], report["seed"]) == ([1, 2, 3], PROBLEMS, SAMPLES, 0)
    assert f"2 of 3: runs/quickstart, python, {PROBLEMS * SAMPLES} rollouts" in screen
    assert f"{PROBLEMS} held-out problems, {SAMPLES} samples each" in screen


def test_problems_that_are_kept_are_trained_on_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "engine={backend: transformers, deterministic: true, context_tokens: 512}"]
    counts = ["--problems", "12", "-n", "4", "--keep", "0.25:0.75", "--to", "kept.jsonl"]
    screen = evaluate(tmp_path, "--set", "eval.temperature=0", *settings, *counts)
    made = load_config("quickstart").tasks
    tasks = {task.id: task for task in load_tasks(made, "train", 0, 12)}
    right = Counter(dict.fromkeys(tasks, 0))
    for one in read_jsonl(tmp_path / "out/e.jsonl"):
        right[one.task_id] += int(grade(tasks[one.task_id], one.answer))
    wanted = {key for key, count in right.items() if 1 <= count <= 3}
    assert 0 < len(wanted) < 12
    hard, easy = (sum(count == extreme for count in right.values()) for extreme in (0, 4))
    assert f"{len(wanted)} of 12 training problems are kept in kept.jsonl: {hard} too hard, {easy} too easy" in screen
    only = made.model_copy(update={"only": "kept.jsonl"})
    taken = load_tasks(only, "train", 7, 2048)
    assert {task.id: task for task in taken} == {key: tasks[key] for key in wanted}
    assert load_tasks(only, "heldout", 0, 4) == load_tasks(made, "heldout", 0, 4)


def test_both_bounds_are_kept(tmp_path: Path) -> None:
    tallies = [Tally(10, 0), Tally(10, 1), Tally(10, 3), Tally(9, 3), Tally(10, 10), Tally(0, 0)]
    rows = [{"id": f"{tally.right}/{tally.samples}"} for tally in tallies]
    said = keep(rows, tallies, (0.1, 0.3), file := tmp_path / "kept.jsonl")
    assert f"2 of 6 training problems are kept in {file}: 1 too hard, 2 too easy, 1 without a graded session;" in said
    assert [tuple(json.loads(row).values()) for row in file.read_text().splitlines()] == [("1/10", 0.1), ("3/10", 0.3)]


@pytest.mark.slow
def test_two_models_one_after_the_other_on_the_default_engine(tmp_path: Path) -> None:
    noisy_nano(tmp_path / "noisy")
    evaluate(tmp_path, "--problems", "4", "--model", "noisy", "nano")
    report = json.loads((tmp_path / "out/e.json").read_text())
    found = [(row["model"], row["graded"], row["aborted"]) for row in report["rows"]]
    assert found == [("noisy", 4, 0), ("nano", 4, 0)]
    assert len(list(read_jsonl(tmp_path / "out/e.jsonl"))) == 8
