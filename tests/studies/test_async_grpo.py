"""TRL's own AsyncGRPOTrainer with our sessions: its queue, packing, loss and weight sync; our loop, kernels and credit.

Its attention is a kernel for GPUs; the same attention in plain torch stands in for it (`attention_without_gpu`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from repl_rl.errors import ConfigError, EngineError, RewardError
from repl_rl.models.nano import NANO_PATH
from repl_rl.trajectory import Trajectory
from studies.async_grpo.attention import attention_without_gpu
from studies.async_grpo.worker import SessionWorker

pytestmark = pytest.mark.slow

REFUSED = yaml.safe_load(Path(__file__).with_name("refused_overrides.yaml").read_text(encoding="utf-8"))
SMALL = ("engine.backend=transformers", "kernel.size=8", "train.group_size=4", "train.prompts_per_step=2")


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    with attention_without_gpu():
        yield


@pytest.fixture
def worker() -> Iterator[SessionWorker]:
    with SessionWorker("quickstart", SMALL) as worker:
        yield worker


def trained(worker: SessionWorker, folder: Path) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    settings = {"max_steps": 3, "learning_rate": 1e-3, "report_to": "none", "save_strategy": "no"}
    trainer = AsyncGRPOTrainer(
        model=worker.model_path,
        args=AsyncGRPOConfig(str(folder), use_cpu=True, bf16=False, **settings, **worker.arguments),
        train_dataset=worker.dataset,
        rollout_worker=worker,
        weight_transfer=worker,
    )
    trainer.train()
    return trainer


def test_trl_trains_on_sessions_and_sees_what_the_sampler_saw(worker: SessionWorker, tmp_path: Path) -> None:
    before = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).state_dict()
    trainer = trained(worker, tmp_path)
    first, *later = steps = [row for row in trainer.state.log_history if "ratio" in row]
    assert len(steps) == 3
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in steps)
    assert first["sample/staleness_max"] == 0
    assert first["ratio"] == pytest.approx(1, abs=1e-4)
    assert abs(first["kl"]) < 1e-6
    assert {"reward", "rewards/outcome", "solve_rate", "lines_per_trajectory"} <= set(later[-1])
    assert trainer.model_version == 4
    after = trainer.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before if name in after)


def test_each_typed_token_is_in_one_row_with_its_line() -> None:
    """Two groups begin, and no more than as many ahead; metrics of a session are in one of its rows."""
    sessions: dict[tuple[int, ...], Trajectory] = {}

    def kept(trajectory: Trajectory) -> list[float]:
        sessions[(*trajectory.prompt_ids, *trajectory.completion_ids)] = trajectory
        return [float(number) for number, _ in enumerate(trajectory.lines)]

    credit = "credit={estimator: return_to_go, gamma: 0.9}"
    with SessionWorker("quickstart", (*SMALL, credit), line_rewards=[kept]) as worker:
        worker.update_model_version(1)
        worker.start()
        deadline = time.monotonic() + 600
        while worker.metrics_queue.qsize() < 4:
            worker.check_health(600)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        rows = [worker.rollout_buffer.get() for _ in range(worker.rollout_buffer.qsize())]
    assert {row.group_id for row in rows} == set(range(4))
    assert {row.model_version for row in rows} == {1}
    assert sum(bool(row.metrics) for row in rows) == 4 * 4
    masks: dict[tuple[int, ...], list[Any]] = {}
    for row in rows:
        masks.setdefault(tuple(row.input_ids.tolist()), []).append(row.completion_mask)
        assert not row.old_log_probs[row.completion_mask == 0].any()
    assert any(len(each) > 1 for each in masks.values())
    for ids, of_it in masks.items():
        trajectory = sessions[ids]
        typed, of_session = np.array(trajectory.sampled_mask), np.stack(of_it)[:, len(trajectory.prompt_ids) :]
        times = of_session.sum(axis=0)  # more than once only if sessions are equal
        assert len(set(times[typed])) == 1
        assert not times[~typed].any()
        for line in trajectory.lines:
            assert all(len(set(mask[line.start : line.end])) == 1 for mask in of_session)


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
    with pytest.raises(EngineError, match=r"no session has ended for \d+ s, and TRL's heartbeat_stale_after_s is -1"):
        worker.check_health(-1.0)


@pytest.mark.parametrize(("override", "message"), REFUSED.items())
def test_what_needs_a_whole_step_is_refused_before_a_model_is_loaded(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionWorker("quickstart", (*SMALL, override))
