"""`ReplGRPOTrainer` with tools, an environment written for TRL, and the data sets and rewards that TRL users have."""

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from scripted import multiply
from small import ENGINE, rows_of, small_args, small_trainer

from repl_rl import ReplGRPOTrainer, Task, read_jsonl
from repl_rl.errors import ConfigError, ToolError
from repl_rl.trainer.rows import as_dataset, task_of
from repl_rl.trajectory import Message, StopReason

SEEN: dict[str, Any] = {}


class Counter:
    """An environment as TRL's documentation writes them."""

    def reset(self, **row: Any) -> str:
        self.start = self.count = row["start"]
        return f" The counter is at {self.count}."

    def increment(self, step: int) -> int:
        """Raise the counter.

        Args:
            step: By how much.
        """
        self.count += step
        return self.count


def accuracy(completions: list[Any], result: list[int], prompts: list[Any], **columns: Any) -> list[float]:
    SEEN.update(completions=completions, result=result, prompts=prompts, columns=columns)
    return [float(str(right) in str(completion)) for completion, right in zip(completions, result, strict=True)]


def started(environments: list[Any], start: list[int], **_: Any) -> list[float]:
    return [float(made.start == wanted) for made, wanted in zip(environments, start, strict=True)]


def step(folder: Path, trainer: dict[str, Any], **given: Any) -> ReplGRPOTrainer:
    """A trainer after its only step, which has been evaluated if there is an `eval_dataset`."""
    settings = {"max_steps": 1, "per_device_eval_batch_size": 16, "credit": {"estimator": "outcome"}, "seed": 0}
    engine = {**ENGINE, "context_tokens": 512}
    with small_trainer(folder, dataset(8), trainer, engine=engine, **settings, **given) as made:
        made.train()
        if "eval_dataset" in trainer:
            made.evaluate()
    return made


def dataset(rows: int) -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"Multiply {n} and 7."}], "result": 7 * n, "start": n}
            for n in range(11, 11 + rows)
        ]
    )


@pytest.mark.more
def test_a_step_as_trl_users_write_it(tmp_path: Path) -> None:
    """Groups are drawn again, for none of them earns an outcome; reward functions see the environments of the new."""
    given = {"tools": [multiply], "environment_factory": Counter, "reward_funcs": [accuracy, started]}
    trainer = step(tmp_path, {**given, "eval_dataset": dataset(4)}, redraws=1)
    [logged], [metrics] = (
        [row for row in trainer.state.log_history if name in row] for name in ("reward", "eval_reward")
    )
    assert logged["rewards/started/mean"] == 1.0
    assert logged["credit/redrawn_groups"] == 2
    assert {"tools/multiply/call_frequency", "tools/failure_frequency"} <= logged.keys()
    assert "eval_rewards/accuracy/mean" in metrics
    assert len(SEEN["result"]) == len(SEEN["completions"])
    assert SEEN["prompts"][0][0]["content"].startswith("Multiply")
    trajectories = list(read_jsonl(next((tmp_path / "rollouts").glob("*.jsonl"))))
    assert len(trajectories) == 8
    for trajectory in trajectories:
        assert "multiply(a: int, b: int) -> int: Multiply two integers." in trajectory.prompt
        assert "increment(step: int) -> int: Raise the counter." in trajectory.prompt
        assert " The counter is at 1" in trajectory.prompt


@pytest.mark.slow
def test_an_environment_that_fails_costs_its_trajectory_and_no_reward_function_sees_it(tmp_path: Path) -> None:
    made: list[Counter] = []

    class Flaky(Counter):
        def __init__(self) -> None:
            made.append(self)
            if len(made) == 3:
                raise OSError("connection refused")

    async def later(environments: list[Any], start: list[int], **_: Any) -> list[float]:
        return started(environments, start)

    trainer = step(tmp_path, {"environment_factory": Flaky, "reward_funcs": [started, later]})
    [logged] = rows_of(trainer)
    assert (logged["rewards/started/mean"], logged["rewards/later/mean"]) == (1.0, 1.0)
    stops = [trajectory.stop_reason for trajectory in read_jsonl(next((tmp_path / "rollouts").glob("*.jsonl")))]
    assert stops.count(StopReason.ABORTED) == 1


def test_bad_tools_and_data_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    def refuse(match: str, error: type[Exception] = ConfigError, args: Any = None, **given: Any) -> None:
        with pytest.raises(error, match=match):
            ReplGRPOTrainer("no/such/model", args or small_args(tmp_path), dataset(8), **given)

    def undocumented(a: int) -> int:
        return a

    refuse("no docstring", ToolError, tools=[undocumented])
    refuse("two tools", ToolError, tools=[multiply, multiply])
    refuse("two names for one thing", environment=Counter, environment_factory=Counter)
    refuse(
        "environment, reward_funcs and make_runner exclude one",
        environment=Counter,
        reward_funcs=started,
        make_runner=print,
    )
    refuse("no sandbox profile 'physics'", args=small_args(tmp_path, kernel={"profile": "physics"}))
    refuse("there is no kernelspec 'sage'", args=small_args(tmp_path, kernel={"backend": "sage"}))
    with pytest.raises(ConfigError, match=r"lacks the columns \['answer'\]"):
        as_dataset(dataset(2))


def test_messages_and_metadata_come_through_the_data_set() -> None:
    history = (Message("user", "A?"), Message("assistant", "Which?"))
    task = Task("t", "That one.", "1", "f", {"operands": [1, 2], "references": ("1", "one")}, history)
    assert task_of(as_dataset([task])[0]) == task
    task = Task("t", "?", "1 #### 2", metadata={"question": "x"})
    assert task_of(as_dataset([task], graded=False)[0]) == task, "what a Task says is not read once more"


def test_a_grade_of_the_environment_needs_no_answer() -> None:
    assert as_dataset(dataset(2), graded=False).num_rows == 2
