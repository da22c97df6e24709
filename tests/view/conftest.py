"""A run folder as the trainer writes it, made of real trajectories."""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from repl_rl.config import Config, dump_config, load_config
from repl_rl.dialect import PythonDialect
from repl_rl.dialect.decoder import LineDecoder
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, Trajectory, write_jsonl
from repl_rl.utils.text import whole
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.indexer import update

BANNER = "Python 3.11.7 on linux\n"
FAMILIES = ("binomial", "gcd", "modular_power", "product")
STEPS = 24
TASKS = [f"{family}-heldout-{number}" for number in range(3) for family in FAMILIES]
QUESTION = "What is the greatest common divisor of 12 and 18?"
SESSIONS = yaml.safe_load(Path(__file__).with_name("sessions.yaml").read_text(encoding="utf-8"))
Typed = tuple[str, LineKind, str | None, str]


def make_trajectory(
    task_id: str,
    question: str,
    typed: Sequence[Typed],
    *,
    stop: StopReason = StopReason.ANSWER,
    answer: tuple[str, ...] | None = None,
    grade: float | None = None,
    credited: bool = True,
) -> Trajectory:
    """A trajectory of three tokens a line, with two tokens of output behind every line that shows something.

    What ran is what the `python` dialect reads; what a line showed is its output without the next prompt.
    """
    reader, typed_ahead = PythonDialect().reader(), LineDecoder()
    lines: list[Line] = []
    sampled: list[bool] = []
    for text, kind, error_name, output in typed:
        start = len(sampled)
        reward = {LineKind.EXCEPTION: -0.1, LineKind.ANSWER: grade or 0.0}.get(kind, 0.0) if credited else None
        advantage = (1.25 if grade else -0.75) if credited else None
        physical = () if kind is LineKind.OVERLONG else typed_ahead.take(whole(text).encode(), False).lines
        ran = [cell.source for row in physical for cell in reader.read(f" {row}\n").cells]
        shown = output.removesuffix(">>>").removesuffix("...")
        cells = tuple(RecordedCell(source, shown if source is ran[-1] else "") for source in ran)
        lines.append(Line(start, start + 3, text, kind, error_name, output, reward, advantage, 0.0042, cells=cells))
        sampled += [True] * 3 + [False] * (2 if output else 0)
    return Trajectory(
        task_id=task_id,
        question=question,
        family=task_id.partition("-")[0],
        prompt=f"{BANNER}>>> # {question}\n>>>",
        prompt_ids=(1, 2, 3),
        completion_ids=tuple(range(len(sampled))),
        sampled_mask=tuple(sampled),
        logprobs=tuple(-0.5 if was_sampled else 0.0 for was_sampled in sampled),
        stop_reason=stop,
        lines=tuple(lines),
        answer=answer,
        outcome_reward=grade,
        duration_s=0.31,
    )


def solved_trajectory(task_id: str = "gcd-heldout-12-18", credited: bool = True) -> Trajectory:
    return make_trajectory(task_id, QUESTION, lines_of("solved"), answer=("6",), grade=1.0, credited=credited)


def failed_trajectory(task_id: str = "gcd-heldout-12-18", credited: bool = True) -> Trajectory:
    return make_trajectory(task_id, QUESTION, lines_of("failed"), answer=("12",), grade=0.0, credited=credited)


def lines_of(name: str) -> list[Typed]:
    """The lines of a session in `sessions.yaml`."""
    return [(text, LineKind(kind), error_name, output) for text, kind, error_name, output in SESSIONS[name]]


def train_row(step: int) -> dict[str, Any]:
    done = step / STEPS
    return {
        "kind": "train",
        "step": step,
        "seconds": 11.5 * step,
        "reward": 0.4 + 0.5 * done,
        "solve_rate": 0.38 + 0.57 * done + 0.04 * math.sin(3 * step),
        "loss": 0.01,
        "kinds/comment": 0.2 - 0.1 * done,
        "kinds/statement": 0.25,
        "kinds/expression": 0.2 + 0.1 * done,
        "kinds/exception": 0.15 * (1 - done),
        "kinds/syntax_error": 0.05 * (1 - done),
        "kinds/answer": 0.15 + 0.2 * done,
        "errors/NameError": 0.1 * (1 - done),
        "errors/ZeroDivisionError": 0.05 * (1 - done),
        "rewards/outcome/mean": 0.38 + 0.57 * done,
        "rewards/table/mean": -0.05 * (1 - done),
        "lines_per_trajectory": 3.4 + math.sin(step) / 4,
        "tokens_per_trajectory": 41.0 - 8 * done,
        "kernel_ms_p50": 4.1,
        "kernel_ms_p99": 38.2,
        "tokens_per_s": 1412.0,
    }


def eval_row(step: int, rates: Sequence[float]) -> dict[str, Any]:
    families = dict(zip(FAMILIES, rates, strict=True))
    rate = sum(rates) / len(rates)
    return {"kind": "eval", "step": step, "seconds": 30.2, "solve_rate": rate, "problems": 240, "families": families}


def metric_rows() -> list[dict[str, Any]]:
    before, after = eval_row(0, (0.2, 0.3, 0.45, 0.7)), eval_row(STEPS, (0.85, 0.95, 0.9, 1.0))
    return [before, *(train_row(step) for step in range(1, STEPS + 1)), after]


def write_metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Indexes of runs that are gone after the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser's path. A machine without one leaves its tests out."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    return path


@pytest.fixture
def small_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of a page of a few lines in place of the real one and of plotly's 5 MB."""
    folder = Path(__file__).with_name("small_page")
    monkeypatch.setattr("repl_rl.view.viewer.export.page_folder", lambda: folder)
    monkeypatch.setattr("repl_rl.view.viewer.export.plotly_path", lambda: folder / "plotly.min.js")


def indexed(path: Path) -> RunApi:
    """What a page would be told of a run or a file."""
    source = RunApi(path)
    update(source.targets, source.index)
    return source


def write_run(folder: Path) -> None:
    """A run of twenty-four steps with evaluations around them, without rollouts of training."""
    folder.mkdir()
    config = Config.model_validate({"name": "quickstart", "seed": 7, "train": {"steps": STEPS}})
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    write_metrics(folder, metric_rows())
    write_jsonl(folder / "eval" / "step_00000.jsonl", [failed_trajectory(task_id, credited=False) for task_id in TASKS])
    after = [(failed_trajectory if task_id == TASKS[1] else solved_trajectory)(task_id, False) for task_id in TASKS]
    write_jsonl(folder / "eval" / f"step_{STEPS:05d}.jsonl", after)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Such a run with rollouts of its first and its last step, all files whole."""
    folder = tmp_path / "quickstart"
    write_run(folder)
    for step, first in ((1, failed_trajectory("gcd-train-4-6")), (STEPS, solved_trajectory("gcd-train-8-20"))):
        other = solved_trajectory(first.task_id) if step == 1 else failed_trajectory("product-train-3-4")
        write_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl", [first, first, other])
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Of twelve held-out problems the first run solves eleven; the second solves six, was not asked one, and ran for
    fewer steps with another reward."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        write_run(folder)
        group = [make("gcd-train-1") for make in (failed_trajectory, solved_trajectory)]
        write_jsonl(folder / "rollouts" / "step_00001.jsonl", group)
    config = load_config(str(second / "config.yaml"), ["rewards.outcome=2.0"])
    (second / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    made = [(solved_trajectory if number < 6 else failed_trajectory)(task) for number, task in enumerate(TASKS[:-1])]
    write_jsonl(second / f"eval/step_{STEPS:05d}.jsonl", made)
    write_metrics(second, [{"kind": "train", "step": 1, "solve_rate": 0.25}])
    return first, second
