"""TRL's reward functions: what they get, that they are tried before anything is loaded, what is said of their slips."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from small import small_args

from repl_rl import ReplGRPOTrainer, Task
from repl_rl.errors import ConfigError, ModelError, RewardError
from repl_rl.rewards.table import PROBE, ScoredTrajectory
from repl_rl.trainer.reward_functions import asked_of_valid
from repl_rl.trajectory import StopReason

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
