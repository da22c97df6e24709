"""`repl-rl rollout`: a problem of one's own, graded, from a run's folder, without a file."""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from repl_rl.cli import main, make_parser
from repl_rl.config import SamplingConfig
from repl_rl.errors import KernelError
from repl_rl.rollout import RolloutBatch, service
from repl_rl.rollout.batch import OnEnd
from repl_rl.run.evaluation import comparison
from repl_rl.trajectory import Task, Trajectory, read_jsonl

Said = Callable[..., str]
pytestmark = [pytest.mark.more, pytest.mark.usefixtures("stored")]


def test_a_task_with_an_answer_is_graded_and_credited(said: Said) -> None:
    for file in Path("model").glob("tokenizer*"):  # which the stored checkpoint is without
        shutil.copy(file, "run/checkpoints/checkpoint-2")
    problem = ["--task", "What is 1 + 1?", "--answer", "2", "-n", "3"]
    shown = said("rollout", "--model", "run", *problem, "--out", "new/x.jsonl")
    assert shown.startswith("loading the model and the first kernels ...\n3 rollouts ...\n")
    assert "3 trajectories in new/x.jsonl, 0 solved; without an answer, 3 of 3: " in shown
    assert "docs/faq.md says what helps\n" in shown
    assert "What is 1 + 1?" in shown
    trajectories = list(read_jsonl(Path("new/x.jsonl")))
    assert [trajectory.outcome_reward for trajectory in trajectories] == [0.0, 0.0, 0.0]
    assert {trajectory.task_id for trajectory in trajectories} == {"task"}
    records = [json.loads(line) for line in Path("new/x.jsonl").read_text().splitlines()]
    assert [Trajectory.from_dict(record) for record in records] == trajectories
    lines = [line for trajectory in trajectories for line in trajectory.lines]
    assert {line.reward for line in lines} >= {-0.3}, "the run's own rewards: a syntax error costs 0.3"
    assert any(line.advantage for line in lines)
    assert {len(trajectory.lines) <= 4 for trajectory in trajectories} == {True}, "the run's own budget"


def test_one_problem_needs_neither_a_file_nor_an_answer(said: Said) -> None:
    shown = said("rollout", "sample.yaml", "--task", "What is 1 + 1?")
    assert "\n1 trajectory; without an answer, 1 of 1: " in shown
    assert sorted(path.name for path in Path().iterdir()) == ["model", "run", "sample.yaml", "step_00003.jsonl"]


def test_a_terminal_shows_one_session_as_it_happens_and_then_what_it_earned() -> None:
    file = StringIO()
    console = Console(file=file, force_terminal=True, width=120, height=40, _environ={})
    options = make_parser().parse_args(["rollout", "sample.yaml", "--task", "What is 1 + 1?", "--answer", "2"])
    assert options.command(options, console) == 0
    redrawn, _, whole = file.getvalue().rpartition("\x1b[?25h")
    assert "loading model" in redrawn
    assert whole.count("What is 1 + 1?") == 1
    assert "graded 0" in whole
    assert whole.endswith("docs/faq.md says what helps\n")


def test_without_a_config_a_model_is_sampled_as_its_own_settings_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[SamplingConfig] = []

    class Service:
        def generate(self, tasks: Sequence[Task], sampling: SamplingConfig, on_end: OnEnd) -> None:
            taken.append(sampling)
            raise KernelError("it was killed")

    monkeypatch.setattr(service, "open_service", lambda *_, **__: nullcontext(Service()))
    settings = {"eos_token_id": 0, "temperature": 0.7, "top_p": None, "top_k": 20, "repetition_penalty": 1.1}
    Path("model/generation_config.json").write_text(json.dumps(settings))
    asked = ["--task", "x", "-n", "2"]
    assert main(["rollout", "--model", "model", *asked, "--set", "sampling.top_k=5"]) == 2
    said = "temperature 0.7, repetition_penalty 1.1: the model's generation settings, unless --set"
    assert capsys.readouterr().out.startswith(said)
    assert main(["rollout", "sample.yaml", "--model", "model", *asked]) == 2
    assert main(["rollout", "--model", "qwen2.5-coder-0.5b", *asked]) == 2
    assert [(each.temperature, each.top_p, each.top_k, each.repetition_penalty) for each in taken] == [
        (0.7, 1.0, 5, 1.1),
        (1.0, 1.0, 0, 1.0),
        (0.7, 0.8, 20, 1.1),
    ]


@pytest.mark.parametrize(("failure", "code"), [(KeyboardInterrupt(), 130), (KernelError("it was killed"), 2)])
def test_what_has_ended_is_kept_and_graded_when_the_rest_is_not_to_come(
    failure: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    ended = [replace(one, task_id="", outcome_reward=None) for one in read_jsonl(Path("step_00003.jsonl"))][:2]
    so_far: list[int] = []

    class Service:
        def generate(self, tasks: Sequence[Task], sampling: object, on_end: OnEnd) -> None:
            for index, trajectory in zip((3, 1), ended, strict=True):
                on_end(index, replace(trajectory, task_id=tasks[index].id))
            so_far.append(len([*read_jsonl(Path("x.part.jsonl"))]))
            raise failure

    monkeypatch.setattr(service, "open_service", lambda *_, **__: nullcontext(Service()))
    Path("x.part.jsonl").write_text("of one that was killed")
    shown = said("rollout", "sample.yaml", "-n", "5", "--out", "x.jsonl", code=code)
    assert so_far == [2]
    assert not Path("x.part.jsonl").exists()
    assert "2 of 5 trajectories in x.jsonl, 0 solved; without an answer, 2 of 2: max tokens 2" in shown
    assert ("interrupted" if code == 130 else "it was killed") in shown
    kept = list(read_jsonl(Path("x.jsonl")))
    assert [one.completion_ids for one in kept] == [one.completion_ids for one in reversed(ended)]
    assert [one.outcome_reward for one in kept] == [0.0, 0.0]


def test_a_data_set_has_so_many_problems_and_no_more(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    [one, *_] = read_jsonl(Path("step_00003.jsonl"))
    opened: list[int] = []

    class Service:
        def generate(self, tasks: Sequence[Task], sampling: object, on_end: OnEnd) -> None:
            for index, task in enumerate(tasks):
                on_end(index, replace(one, task_id=task.id, outcome_reward=None))

    def open_service(config: object, wrap_kernels: object, sessions: int, checked: object) -> object:
        opened.append(sessions)
        return nullcontext(Service())

    monkeypatch.setattr(service, "open_service", open_service)
    rows = [{"question": f"Question {number}?", "answer": "1"} for number in range(3)]
    Path("held_out.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = ["tasks.folder=held_out.jsonl", "tasks.split=test", "tasks.heldout=test"]
    overrides = [argument for setting in settings for argument in ("--set", setting)]
    shown = said("rollout", "sample.yaml", *overrides, "-n", "500")
    assert opened == [3]
    assert "\n3 rollouts ...\n" in shown
    assert "\n3 trajectories, " in shown
    refused = said("play", "sample.yaml", *overrides, "--problem", "4", code=2)
    assert "--problem 4: there are 3 held-out problems, counted from 1" in refused


@pytest.mark.parametrize(("failure", "code"), [(KeyboardInterrupt(), 130), (KernelError("it was killed"), 2)])
def test_what_has_ended_of_an_evaluation_is_kept_beside_those_that_are_complete(
    failure: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    one = next(iter(read_jsonl(Path("step_00003.jsonl"))))
    asked: list[int] = []

    class Service:
        def roll_out(self, batch: RolloutBatch, on_end: OnEnd) -> list[Trajectory]:
            asked.append(len(batch.tasks))
            trajectories = [replace(one, task_id=task.id, outcome_reward=None) for task in batch.tasks]
            for index, trajectory in enumerate(trajectories[: 3 if len(asked) == 2 else None]):
                on_end(index, trajectory)
            if len(asked) == 2:
                raise failure
            return trajectories

    monkeypatch.setattr(comparison, "open_service", lambda *_, **__: nullcontext(Service()))
    models = ("--model", "model", "model", "model")
    shown = said("eval", "sample.yaml", *models, "-n", "2", "--out", "x.jsonl", code=code)
    assert "3 of 4 rollouts of model, python are kept in x.jsonl\n" in shown
    records = [json.loads(line) for line in Path("x.jsonl").read_text().splitlines()]
    assert [record["sample"] for record in records] == [0, 1, 0, 1, 0, 1, 0]
    assert {(record["model"], record["dialect"], record["outcome_reward"]) for record in records} == {
        ("model", "python", 0.0)
    }
    assert asked == [4, 4]
