"""`ReplGRPOTrainer` from Python, with the arguments that people know from TRL, on real vLLM and real kernels."""

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from recorded import first_is_right, make_tasks_named, recorded_trainer
from small import rows_of, small_args, small_trainer

from repl_rl import ReplGRPOTrainer, Trajectory, read_jsonl
from repl_rl.errors import ConfigError, RewardError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rewards import ScoredTrajectory
from repl_rl.tasks import make_tasks
from repl_rl.trainer.reward_functions import component_sum
from repl_rl.trainer.rows import Row
from repl_rl.trainer.run_files import RunFiles
from repl_rl.trajectory import Line, LineKind, StopReason
from repl_rl.view.run import read_run

pytestmark = pytest.mark.more


def brevity(trajectory: Trajectory) -> list[float]:
    return [-0.01 * len(line.text) for line in trajectory.lines]


def looking(paid: float) -> Callable[[Trajectory], list[float]]:
    """A closure, as a notebook may have it: nothing can import it, and nothing can pickle it."""

    def looks(trajectory: Trajectory) -> list[float]:
        return [paid * (line.kind is LineKind.EXPRESSION) for line in trajectory.lines]

    return looks


def submitted(completions: list[str], scored: list[Any], **columns: Any) -> list[float]:
    """TRL's kind of reward: one number per completion."""
    assert set(columns) >= {"answer", "task_id", "prompts"}
    return [0.5 * ("submit_final_answer" in completion) for completion in completions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def trainer(folder: Path) -> Iterator[ReplGRPOTrainer]:
    settings = {
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-4,
        "engine": {"context_tokens": 384, "places": 16},
        "budget": {"lines": 3, "tokens": 96, "line_tokens": 32},
        "rewards": {"kinds": {"exception": -0.25}, "functions": [looking(0.125)]},
        "credit": {"estimator": "outcome"},
    }
    own = {"line_rewards": [brevity], "reward_funcs": submitted}
    with small_trainer(folder, trainer=own, **settings) as trainer:
        yield trainer
    trainer.close()  # a second call does nothing


@pytest.fixture(scope="module")
def history(trainer: ReplGRPOTrainer) -> list[dict[str, float]]:
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert any(not torch.equal(before[name], value) for name, value in trainer.model.named_parameters())
    return rows_of(trainer)


def test_every_reward_is_logged_under_its_own_name(history: list[dict[str, float]]) -> None:
    assert len(history) == 2
    for row in history:
        parts = [row[f"rewards/{name}/mean"] for name in ("outcome", "table", "looks", "brevity", "submitted")]
        assert sum(parts) == pytest.approx(row["reward"], abs=1e-5)
        assert row["rewards/brevity/mean"] < 0


def test_metrics_per_line_stand_in_the_trainers_own_logs(history: list[dict[str, float]]) -> None:
    for row in history:
        assert sum(value for key, value in row.items() if key.startswith("kinds/")) == pytest.approx(1.0)
        assert sum(value for key, value in row.items() if key.startswith("stops/")) == pytest.approx(1.0)
        assert 1.0 <= row["lines_per_trajectory"] <= 3.0
        assert 0.0 < row["kernel_ms_p50"] <= row["kernel_ms_p99"]
        assert row["tokens_per_s"] > 0.0
        assert row["kernels/sessions"] > 0
        assert row["kernels/restarts"] == row["kernels/failed_starts"] == 0
        assert 0.0 < row["kernels/queue_s_p50"] <= row["kernels/queue_s_p99"]
        assert min(row[f"time/{name}"] for name in ("engine_s", "kernel_s", "queue_s", "own_s", "loop_share")) > 0.0


def test_clipped_is_what_a_budget_ended(history: list[dict[str, float]], folder: Path) -> None:
    clipped = 0
    for step, row in enumerate(history, start=1):
        trajectories = list(read_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl"))
        lengths = [each.sampled_tokens for each in trajectories if not each.is_overlong]
        clipped += 16 - len(lengths)
        assert row["completions/clipped_ratio"] == 1 - len(lengths) / 16
        assert row["completions/mean_terminated_length"] == pytest.approx(sum(lengths) / len(lengths))
        assert row["completions/min_terminated_length"] == min(lengths)
        assert row["completions/max_terminated_length"] == max(lengths)
    assert 0 < clipped < 32


def test_functions_are_stored_as_their_import_paths(trainer: ReplGRPOTrainer) -> None:
    path = f"{__name__}:looking.<locals>.looks"
    assert trainer.args.to_dict()["rewards"]["functions"] == [path]
    assert json.loads(trainer.args.to_json_string())["rewards"]["functions"] == [path]
    assert pickle.loads(pickle.dumps(trainer.args)).rewards.functions == (path,), "as a checkpoint holds them"
    assert copy.deepcopy(trainer.args).rewards.functions == trainer.args.rewards.functions


def test_drift_is_logged_in_every_step_as_trl_measures_it(history: list[dict[str, float]]) -> None:
    for row in history:
        assert 0.0 < row["drift/logprob_mean"] <= row["drift/logprob_max"] < 1e-3
        assert row["drift/logprob_mean"] == pytest.approx(row["sampling/sampling_logp_difference/mean"], rel=1e-4)
        assert row["drift/logprob_max"] == pytest.approx(row["sampling/sampling_logp_difference/max"], rel=1e-4)


def test_without_trls_importance_ratios_the_drift_is_the_same(tmp_path: Path) -> None:
    found = []
    for is_on in (True, False):
        settings = {"vllm_importance_sampling_correction": is_on}
        trainer = recorded_trainer(tmp_path, first_is_right, make_tasks_named("a", "b"), **settings)
        trainer.train()
        found.append(rows_of(trainer)[0])
    for name in ("drift/logprob_mean", "drift/logprob_max"):
        assert found[0][name] == pytest.approx(found[1][name], abs=1e-5)
        assert found[0][name] > 0.1


def test_a_second_training_begins_with_the_weights_that_the_first_one_left(tmp_path: Path) -> None:
    with small_trainer(tmp_path, max_steps=1, learning_rate=1e-2) as trainer:
        for _ in range(2):
            trainer.train()
            [row] = rows_of(trainer)
            assert row["drift/logprob_max"] < 1e-3


def test_trl_rewards_are_paid_at_the_last_line(history: list[dict[str, float]], folder: Path) -> None:
    trajectories = list(read_jsonl(folder / "rollouts" / "step_00001.jsonl"))
    assert len(trajectories) == 16
    for trajectory in trajectories:
        typed = "".join(line.text for line in trajectory.lines)
        *_, last = trajectory.lines
        expected = -0.01 * len(last.text) + (trajectory.outcome_reward or 0.0) + 0.5 * ("submit_final_answer" in typed)
        expected += 0.125 * (last.kind == "expression") - 0.25 * (last.kind == "exception")
        assert last.reward == pytest.approx(expected)


def test_groups_that_teach_nothing_are_counted_each_step(history: list[dict[str, float]], folder: Path) -> None:
    for step, row in enumerate(history, start=1):
        trajectories = list(read_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl"))
        groups = [trajectories[start : start + 4] for start in range(0, len(trajectories), 4)]
        paid = [
            {(one.outcome_reward, any("submit_final_answer" in line.text for line in one.lines)) for one in group}
            for group in groups
        ]
        idle = [outcomes for outcomes in paid if len(outcomes) == 1]
        assert row["credit/groups_without_variance"] == len(idle)
        assert row["credit/void_trajectories"] == sum(trajectory.is_void for trajectory in trajectories)


def test_a_void_trajectory_is_one_masked_token() -> None:
    aborted = Trajectory("t", "p", (1, 2), (3, 4), (False, False), (0.0, 0.0), StopReason.ABORTED, error="x")
    row = Row(0, (), aborted, 0).lists(pad_id=9)
    assert row == {"prompt_ids": [1, 2], "completion_ids": [9], "logprobs": [0.0], "env_mask": [0]}


def test_void_trajectories_are_left_out_of_the_rewards_that_are_logged() -> None:
    line = Line(0, 1, " 1\n", LineKind.EXPRESSION)
    ended, cut = (
        Trajectory("t", "p", (1,), (3,), (True,), (-0.5,), reason, (line,))
        for reason in (StopReason.ANSWER, StopReason.UNFINISHED)
    )
    scored = [ScoredTrajectory(trajectory, {"table": (-0.25,)}) for trajectory in (ended, cut)]
    assert component_sum("table")(scored, prompts=["x", "x"]) == [-0.25, None]


def test_a_data_set_without_its_columns_or_rows_is_refused(folder: Path) -> None:
    args = small_args(folder)
    pictured = Dataset.from_list([{"prompt": "What is it?", "answer": "1", "images": ["a.png"]}])
    with pytest.raises(
        ConfigError, match=r"has a column 'images', and .*drop it: dataset.remove_columns\(\['images'\]\)"
    ):
        ReplGRPOTrainer(str(NANO_PATH), args, pictured)
    with pytest.raises(ConfigError, match=r"lacks the columns \['answer'\]; it has \['prompt'\]"):
        ReplGRPOTrainer(str(NANO_PATH), args, Dataset.from_list([{"prompt": "What is 1 + 1?"}]))
    with pytest.raises(ConfigError, match="the task set is empty"):
        ReplGRPOTrainer(str(NANO_PATH), args, [])
    with pytest.raises(ConfigError, match=r"What is 1 .*is not a task: give Task\(id"):
        ReplGRPOTrainer(str(NANO_PATH), args, [{"prompt": "What is 1 + 1?"}])


def test_a_trainer_made_in_python_keeps_a_run_that_view_reads_and_goes_on_with_it(tmp_path: Path) -> None:
    kept = {"rollout_dir": None, "save_strategy": "steps", "save_steps": 1}
    with small_trainer(tmp_path, max_steps=2, **kept) as trainer:
        trainer.train()
    run = read_run(tmp_path / "run_001")
    assert [row["step"] for row in run.train] == [1, 2]
    assert [len(each.trajectories) for each in run.rollouts] == [8, 8]
    (tmp_path / "checkpoint-2").rename(tmp_path / "later")
    with small_trainer(tmp_path, max_steps=2, **kept) as trainer:
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        assert trainer.args.rollout_dir is None, "the next trainer with these arguments keeps a run of its own"
    assert [row["step"] for row in read_run(tmp_path / "run_001").train] == [1, 2]
    assert RunFiles.within(tmp_path, step=0).path.name == "run_002"
    assert RunFiles.within(tmp_path, step=1).path.name == "run_002"


def test_what_a_step_has_sampled_is_kept_if_it_fails(tmp_path: Path) -> None:
    tasks = make_tasks(["product"], 16, seed=1, split="train")

    def fails(trajectory: Trajectory) -> list[float]:
        assert trajectory.task_id not in {task.id for task in tasks}, "it passes the check before training"
        return [0.0] * len(trajectory.lines)

    with (
        small_trainer(tmp_path, tasks, {"line_rewards": [fails]}) as trainer,
        pytest.raises(RewardError, match="it passes the check"),
    ):
        trainer.train()
    assert len(list(read_jsonl(tmp_path / "rollouts/step_00001.jsonl"))) == 8
