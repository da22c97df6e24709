"""TRL's reward functions: what they get, that they are tried before anything is loaded, what is said of their slips."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from recorded import RecordedTrainer, make_tasks_named, recorded_trainer
from small import small_args
from vocabularies import nano

from repl_rl import ReplGRPOConfig, ReplGRPOTrainer, Task
from repl_rl.errors import ConfigError, ModelError, RewardError
from repl_rl.rewards.table import PROBE, ScoredTrajectory
from repl_rl.trainer.reward_functions import asked_of_valid
from repl_rl.trainer.step import Sessions, whole_sessions
from repl_rl.trajectory import Branch, Compaction, Line, LineKind, RewardPart, StopReason, Trajectory, read_jsonl

TASKS = [Task(str(n), f"What is {n} * 2?", str(2 * n)) for n in range(100, 108)]
ROWS = Dataset.from_list([{"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": ["2", "two"], "level": 3}] * 4)
SEEN: dict[str, Any] = {}


def seeing(**columns: Any) -> list[float | None]:
    SEEN.update(columns)
    return [1, None, 0.5, True]


async def later(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


class Judge:
    async def __call__(self, prompts: list[str], **_: Any) -> list[float]:
        return [0.0] * len(prompts)


class Environment:
    def reset(self, **_: Any) -> None:
        raise AssertionError("no environment begins for a trial")


def given(folder: Path, *functions: Any, rows: Any = TASKS, **arguments: Any) -> None:
    """A trainer with these reward functions, four completions to a group, of a model that is not there."""
    ReplGRPOTrainer("no/such/model", small_args(folder), rows, reward_funcs=list(functions), **arguments)


def plain(prompts: list[str], completions: list[str]) -> list[float]:
    return [0.0] * len(completions)


def of_verifiers(prompt: str, completion: str, answer: str, state: Any) -> float:
    return 0.0


def of_lines(trajectory: Any) -> list[float]:
    return []


def wrong(**columns: Any) -> list[float]:
    return [float(columns["completions"][0]["content"])]


async def wrong_later(**columns: Any) -> list[float]:
    raise KeyError("solution")


def exits(**_: Any) -> list[float]:
    raise SystemExit("no judge")


def returning(value: Any) -> Callable[..., Any]:
    def returns(**_: Any) -> Any:
        return value

    return returns


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (plain, r"reward function '.*plain' takes .* and is given more by name: .*; end its arguments with \*\*kwargs"),
        (
            of_verifiers,
            "reward function '.*:of_verifiers' wants prompt, completion, state, which it is not given: it gets ",
        ),
        (of_lines, "of_lines' wants trajectory, .* Functions of one trajectory, with a number per line, are line_rew"),
        (wrong, r":wrong' raised TypeError: .* \(.*test_reward_functions.py:\d+, tried on 4 completions of a made-"),
        (
            wrong_later,
            r"function '.*:wrong_later' raised KeyError: 'solution' \(.*test_reward_functions.py:\d+, ",
        ),
        (exits, "reward function '.*:exits' raised SystemExit: no judge"),
        (
            returning([1.0]),
            "returns' returned 1 rewards for 4 completions .*; it has to return a list",
        ),
        (
            returning(1.0),
            "returns' returned 1.0 .*; it has to return a list with a finite number, or None, for each",
        ),
        (returning(None), r"returns' returned None \(.*; it has to return a list"),
        (returning(["good"] * 4), "returns' returned .*'good'.*; it has to return a list with a finite number"),
        (returning({"a": 1, "b": 2, "c": 3, "d": 4}), "returns' returned {'a'.*; it has to return a list"),
        (
            returning([0.0, float("nan"), 0.0, 0.0]),
            r"returns' returned \[0.0, nan, .*; it has to return a list with a finite",
        ),
        (functools.partial(plain, prompts=[]), ":plain' takes .* and is given more by name"),
    ],
)
def test_a_slip_of_a_function_is_said_before_anything_is_loaded(
    tmp_path: Path, function: Callable[..., Any], says: str
) -> None:
    with pytest.raises(RewardError, match=says):
        given(tmp_path, later, function)


def test_what_is_not_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reward_funcs: 5 is int, not a function"):
        given(tmp_path, 5)


def test_functions_that_work_are_tried_with_what_they_will_get(tmp_path: Path) -> None:
    """And then the model is looked for. The completion is the session, with its traceback."""
    functions = [seeing, later, Judge(), functools.partial(later, level=1)]
    with pytest.raises(ModelError, match="no/such/model"):
        given(tmp_path, *functions, rows=ROWS)
    assert SEEN["prompts"] == [[{"role": "user", "content": "1 + 1?"}]] * 4
    [message] = SEEN["completions"][0]
    assert message["role"] == "assistant"
    assert "NameError: name 'seven' is not defined" in message["content"]
    assert "submit_final_answer" in message["content"]
    assert (SEEN["answer"], SEEN["level"]) == ([["2", "two"]] * 4, [3] * 4)
    assert {"completion_ids", "scored", "trainer_state", "log_extra", "log_metric"} <= SEEN.keys()
    with pytest.raises(ModelError, match="no/such/model"):
        given(tmp_path, seeing)
    assert SEEN["prompts"] == ["What is 100 * 2?"] * 4
    assert isinstance(SEEN["completions"][0], str)


def test_where_there_are_environments_arguments_alone_are_looked_at(tmp_path: Path) -> None:
    def of_environment(environments: list[Any], **_: Any) -> list[float]:
        raise AssertionError("not tried")

    with pytest.raises(ModelError):
        given(tmp_path, of_environment, environment_factory=Environment)
    with pytest.raises(RewardError, match=":of_verifiers' wants prompt, completion, state"):
        given(tmp_path, of_verifiers, environment_factory=Environment)


def test_rewards_are_checked_in_training_too() -> None:
    lost = ScoredTrajectory(replace(PROBE, stop_reason=StopReason.ABORTED), {})
    scored = [ScoredTrajectory(PROBE, {}), lost, ScoredTrajectory(PROBE, {})]
    assert asked_of_valid(returning([1, None]))(scored=scored, completions=["a", "b", "c"]) == [1.0, None, None]
    for value, says in (
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, float("nan")], "returned .1.0, nan"),
    ):
        with pytest.raises(RewardError, match=says):
            asked_of_valid(returning(value))(scored=scored, completions=["a", "b", "c"])


def session_of(task: Task, answer: str) -> Trajectory:
    """Three lines, the last of which hands over this answer."""
    turns = [
        (" x = 1\n", LineKind.STATEMENT, ">>>"),
        (" x + 1\n", LineKind.EXPRESSION, "2\n>>>"),
        (f" submit_final_answer({answer})\n", LineKind.ANSWER, ""),
    ]
    ids: list[int] = []
    mask: list[bool] = []
    lines = []
    for text, kind, output in turns:
        typed = nano().tokenizer.encode(text, add_special_tokens=False)
        shown = nano().tokenizer.encode(output, add_special_tokens=False)
        lines.append(Line(len(ids), len(ids) + len(typed), text, kind, output=output))
        ids += typed + shown
        mask += [True] * len(typed) + [False] * len(shown)
    prompt = f">>> # {task.question}\n>>>"
    return Trajectory(
        task_id=task.id,
        prompt=prompt,
        prompt_ids=tuple(nano().tokenizer.encode(prompt, add_special_tokens=False)),
        completion_ids=tuple(ids),
        sampled_mask=tuple(mask),
        logprobs=tuple(-4.0 if is_typed else 0.0 for is_typed in mask),
        stop_reason=StopReason.ANSWER,
        lines=tuple(lines),
        answer=(answer,),
    )


def text_of(answer: str) -> str:
    return f" x = 1\n>>> x + 1\n2\n>>> submit_final_answer({answer})\n"


def in_a_tree(task: Task, index: int) -> Trajectory:
    """Two roots, a branch of the first one's third line and one of the second one's second line."""
    session = session_of(task, f"{task.id}{index}")
    if index == 2:
        return session.as_branch(2, 0, 0.5)
    return session.as_branch(1, 1, 0.5) if index == 3 else session


def pays_by_index(completions: list[str], **columns: Any) -> list[float]:
    SEEN.update(columns, completions=completions)
    return [index / 8 for index in range(len(completions))]


def trainer_that_pays_by_index(folder: Path, recording: Any, **settings: Any) -> RecordedTrainer:
    return recorded_trainer(
        folder, recording, make_tasks_named("a", "b"), trainer={"reward_funcs": pays_by_index}, **settings
    )


def test_functions_see_the_lines_before_a_fork_and_pay_a_branchs_own_last_line(tmp_path: Path) -> None:
    trainer = trainer_that_pays_by_index(
        tmp_path,
        in_a_tree,
        per_device_train_batch_size=8,
        num_generations=4,
        branch={"roots": 2, "forks": 1, "branches": 2},
        credit={"estimator": "branch"},
        rewards={"kinds": {"statement": 0.5}},
    )
    trainer.batch((0, 0, 0, 0, 1, 1, 1, 1))
    answers = [f"{task}{index}" for task in "ab" for index in range(4)]
    assert SEEN["completions"] == [text_of(answer) for answer in answers]
    wholes = [session_of(task, f"{task.id}{index}") for task in make_tasks_named("a", "b") for index in range(4)]
    assert SEEN["completion_ids"] == [list(whole.completion_ids) for whole in wholes]
    seen_lines = [[(line.start, line.text) for line in item.trajectory.lines] for item in SEEN["scored"]]
    assert seen_lines == [[(line.start, line.text) for line in whole.lines] for whole in wholes]
    assert [item.trajectory.answer for item in SEEN["scored"]] == [(answer,) for answer in answers]
    assert trainer.table["completion"] == SEEN["completions"]

    kept = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert [len(trajectory.lines) for trajectory in kept] == [3, 3, 1, 2] * 2
    paid = [trajectory.lines[-1].reward_parts for trajectory in kept]
    assert paid == [(), *((RewardPart("reward_funcs", index / 8),) for index in range(1, 8))]
    assert all(not line.reward_parts for trajectory in kept for line in trajectory.lines[1:-1])
    # the first line earned something, and is the roots' alone
    assert trainer.metrics["rewards/table/mean"] == [0.25]


def test_functions_see_what_was_typed_after_a_compaction(tmp_path: Path) -> None:
    def compacted(task: Task, index: int) -> Trajectory:
        session = session_of(task, f"{task.id}{index}")
        return replace(session, compactions=(Compaction(session.lines[2].start, "shorter", (1, 2)),))

    trainer = trainer_that_pays_by_index(tmp_path, compacted, budget={"compact_at": 0.5})
    trainer.batch()
    assert SEEN["completions"] == [text_of(answer) for answer in ("a0", "a1", "b0", "b1")]
    assert [len(item.trajectory.lines) for item in SEEN["scored"]] == [3] * 4
    assert trainer.table["completion"] == SEEN["completions"]
    kept = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert [trajectory.lines[2].reward for trajectory in kept] == [0.0, 0.125, 0.25, 0.375]


def test_a_branch_that_is_void_has_no_lines_of_its_parent() -> None:
    """It would be asked of functions otherwise, as one that typed them."""
    root = session_of(TASKS[0], "1")
    empty = replace(
        root,
        prompt_ids=root.prompt_ids + root.completion_ids[: root.lines[1].start],
        **dict.fromkeys(("completion_ids", "sampled_mask", "logprobs", "lines"), ()),
        stop_reason=StopReason.MAX_TOKENS,
        branch=Branch(0, 1, 0.5),
    )
    scored = [ScoredTrajectory(trajectory, {}) for trajectory in (root, empty)]
    whole = whole_sessions(Sessions([{}, {}], scored, 0.0), group_size=2)
    assert whole.trajectories == [root, empty]
    assert whole.trajectories[1].is_void


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size times steps_per_generation is 4, .* of 8, "),
        (
            {"per_device_train_batch_size": 16, "num_generations": 16, "eval_strategy": "steps", "eval_steps": 1},
            "per_device_eval_batch_size is 8, and each process takes whole groups of 16",
        ),
        ({"per_device_train_batch_size": 16, "num_generations": 16}, ""),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, ""),
        ({"per_device_train_batch_size": 8, "eval_strategy": "steps", "eval_steps": 1}, ""),
    ],
)
def test_two_processes_take_whole_groups_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    """TRL takes groups that are whole in the batch of both."""
    monkeypatch.setattr(ReplGRPOConfig, "world_size", property(lambda args: 2))
    args = small_args(tmp_path, **{"num_generations": 8, **settings})
    with pytest.raises(ConfigError if message else ModelError, match=message or "no/such/model"):
        ReplGRPOTrainer("no/such/model", args, TASKS, eval_dataset=TASKS)


def test_an_evaluation_by_hand_takes_whole_groups_too(tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 16, "num_generations": 16, "per_device_eval_batch_size": 8}
    trainer = recorded_trainer(tmp_path, in_a_tree, TASKS, **settings)
    with pytest.raises(ConfigError, match="8 sessions of a process are not whole groups of 16; make per_device_eval_"):
        trainer.evaluate(TASKS)
    assert trainer.service.calls == []
