"""TRL's own AsyncGRPOTrainer with our sessions: its queue, packing, loss and weight sync; our loop, kernels and credit.

Its attention is a kernel for GPUs; the same attention in plain torch stands in for it (`attention_without_gpu`).
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from repl_rl.errors import ConfigError, EngineError, RewardError
from repl_rl.integrations.async_grpo import SessionWorker, masks_by_advantage
from repl_rl.models.nano import NANO_PATH

pytestmark = pytest.mark.usefixtures("attention_without_gpu")

SMALL = ("engine.backend=transformers", "kernel.size=8", "train.group_size=4", "train.prompts_per_step=2")


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[SessionWorker]:
    with SessionWorker("quickstart", (*SMALL, *getattr(request, "param", ()))) as worker:
        yield worker


def trained(worker: SessionWorker, folder: Path, **arguments: Any) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    settings = {"max_steps": 3, "learning_rate": 1e-3, "report_to": "none", "save_strategy": "no", **arguments}
    trainer = AsyncGRPOTrainer(
        model=worker.model_path,
        args=AsyncGRPOConfig(str(folder), use_cpu=True, bf16=False, **settings, **worker.arguments),
        train_dataset=worker.dataset,
        rollout_worker=worker,
        weight_transfer=worker,
    )
    trainer.train()
    return trainer


def rows_of(worker: SessionWorker, groups: int) -> list[Any]:
    """What the worker gives without a trainer, to the end of so many groups."""
    rows: list[Any] = []
    worker.start()
    while len({row.group_id for row in rows}) <= groups:
        try:
            rows.append(worker.rollout_buffer.get(timeout=1))
        except queue.Empty:
            worker.check_health(60)
    return rows[:-1]


def test_trl_trains_on_sessions(worker: SessionWorker, tmp_path: Path) -> None:
    before = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).state_dict()
    trainer = trained(worker, tmp_path)
    steps = [row for row in trainer.state.log_history if "ratio" in row]
    assert len(steps) == 3
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in steps)
    assert steps[0]["sample/staleness_max"] == 0
    assert {"reward", "rewards/outcome", "solve_rate", "lines_per_trajectory"} <= set(steps[-1])
    assert worker._engine.version == trainer.model_version == 4
    after = trainer.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before if name in after)


def test_the_trainer_sees_what_the_sampler_saw(worker: SessionWorker, tmp_path: Path) -> None:
    """With weights that stay the same: ratios of 1 at every token, over packed trees of many rows."""
    trainer = trained(worker, tmp_path, learning_rate=0.0)
    for row in (row for row in trainer.state.log_history if "ratio" in row):
        assert row["ratio"] == pytest.approx(1, abs=1e-4)
        assert abs(row["kl"]) < 1e-6
        assert row["clip_ratio/region_mean"] == 0


@pytest.mark.parametrize("worker", [("credit={estimator: return_to_go, gamma: 0.9}",)], indirect=True)
def test_each_typed_token_is_trained_once_with_the_advantage_of_its_line(worker: SessionWorker) -> None:
    found: list[Any] = []
    finish = worker._rows

    def kept(group: Any, scored: Any, credited: Any) -> Any:
        found.append((group.number, credited))
        return finish(group, scored, credited)

    worker._rows = kept  # type: ignore[method-assign]
    worker.update_model_version(1)
    rows = rows_of(worker, groups=3)
    several = 0
    for number, credited in found:
        of_group = [row for row in rows if row.group_id == number]
        for each in credited if of_group else ():
            trajectory = each.trajectory
            ids = [*trajectory.prompt_ids, *trajectory.completion_ids]
            own = masks_by_advantage(each)
            several += len(own) > 1
            assert (sum(mask.astype(int) for _, mask in own) == np.array(trajectory.sampled_mask)).all()
            for advantage, mask in own:
                assert {each.token_advantages[place] for place in np.flatnonzero(mask)} == {advantage}
                (row, *_) = [  # equal sessions have log-probabilities that differ in their last bits
                    row
                    for row in of_group
                    if row.advantage == advantage
                    and row.input_ids.tolist() == ids
                    and row.completion_mask[len(trajectory.prompt_ids) :].tolist() == mask.astype(int).tolist()
                ]
                logprobs = row.old_log_probs[len(trajectory.prompt_ids) :]
                assert logprobs[mask].tolist() == pytest.approx(np.array(trajectory.logprobs)[mask].tolist(), abs=1e-5)
                assert not logprobs[~mask].any()
    assert several
    assert {row.model_version for row in rows} == {1}


def test_metrics_of_a_session_are_in_one_of_its_rows(worker: SessionWorker) -> None:
    rows = rows_of(worker, groups=2)
    sessions = [row for row in rows if row.metrics]
    assert len(sessions) == 2 * 4
    assert all(set(row.metrics) == {"reward", "reward_std", "rewards/outcome", "rewards/table"} for row in sessions)
    assert worker.metrics_queue.get_nowait()["lines_per_trajectory"] > 0


def test_no_more_groups_begin_than_the_trainer_may_want(worker: SessionWorker) -> None:
    """prompts_per_step 2, and as many ahead."""
    worker.start()
    deadline = time.monotonic() + 60
    while worker.metrics_queue.qsize() < 4:
        worker.check_health(60)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    assert worker._begun == 4
    while (row := worker.rollout_buffer.get(timeout=60)).group_id == 0:
        pass
    assert row.group_id > 0


def test_weights_that_go_past_the_worker_are_refused(worker: SessionWorker) -> None:
    worker.send_weights(iter(AutoModelForCausalLM.from_pretrained(NANO_PATH).state_dict().items()))
    worker.update_model_version(1)
    worker.start()
    with pytest.raises(ConfigError, match="as rollout_worker and as weight_transfer"):
        worker.update_model_version(2)


def test_what_ends_the_sessions_ends_the_training(tmp_path: Path) -> None:
    def grader(task: Any, answer: Any) -> float:
        raise ValueError("no grade today")

    with SessionWorker("quickstart", SMALL, grader=grader) as worker, pytest.raises(RewardError, match="no grade"):
        trained(worker, tmp_path)


def test_silence_is_an_error(worker: SessionWorker) -> None:
    worker._lived_at = time.monotonic() - 10
    with pytest.raises(EngineError, match="no session has ended for 10 s"):
        worker.check_health(5.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("credit={estimator: reinforce++}", "credit.estimator reinforce\\+\\+ compares the groups of a step"),
        ("credit={estimator: critic}", "credit.estimator critic compares"),
        ("credit={estimator: return_to_go, scale: batch}", "credit.scale batch"),
        ("budget.finish_share=0.9", "budget.finish_share is not for TRL"),
        ("train.redraws=2", "train.redraws is not for TRL"),
    ],
)
def test_what_needs_a_whole_step_is_refused_before_a_model_is_loaded(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionWorker("quickstart", (*SMALL, override))
