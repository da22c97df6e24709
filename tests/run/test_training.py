"""Real GRPO steps on nano: weights move and reach the sampler, and what is promised of a run is there."""

from pathlib import Path

import pytest
import yaml
from commands import CONFIGS, begin, finish, rollouts, rows

from repl_rl.rewards.table import PROBE

COUNTED = """
def nothing(trajectory):
    with open("calls.txt", "a") as file:
        file.write(trajectory.task_id + "\\n")
    return [0.0] * len(trajectory.lines)
"""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps from beginning to end."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "counted.py").write_text(COUNTED)
    rewards = CONFIGS["small"]["rewards"] | {"functions": ["counted:nothing"]}
    train = CONFIGS["small"]["train"] | {"steps": 2}
    config = CONFIGS["small"] | {"rewards": rewards, "train": train}
    (folder / "small.yaml").write_text(yaml.safe_dump(config))
    assert "held-out problems" in finish(begin(folder, "train", "small.yaml"))
    return folder / "runs" / "small"


def test_a_run_leaves_what_it_promises(whole_run: Path) -> None:
    assert [row["step"] for row in rows(whole_run, "train")] == [1, 2]
    assert [row["step"] for row in rows(whole_run, "eval")] == [0, 2]
    assert (whole_run / "report.html").stat().st_size > 10_000
    assert yaml.safe_load((whole_run / "config.yaml").read_text())["train"]["steps"] == 2
    for step in (1, 2):
        trajectories = rollouts(whole_run, step)
        assert len(trajectories) == 16
        assert {trajectory.version for trajectory in trajectories} == {step}
        assert all(line.reward is not None and line.advantage is not None for t in trajectories for line in t.lines)


def test_a_reward_function_is_tried_once(whole_run: Path) -> None:
    """By the command, before anything is loaded; what it has checked goes to the trainer and to the evaluations."""
    asked = (whole_run.parents[1] / "calls.txt").read_text().splitlines()
    assert asked[0] == PROBE.task_id
    assert asked.count(PROBE.task_id) == 1
    assert len(asked) == 1 + 2 * 16 + 2 * CONFIGS["small"]["eval"]["problems"]


@pytest.mark.covers(
    "one process, vLLM in it", "runs: trained, evaluated, saved; each step is sampled with its own weights"
)
def test_the_sampler_has_the_trainers_weights_in_every_step(whole_run: Path) -> None:
    for row in rows(whole_run, "train"):
        assert row["sampling/sampling_logp_difference/max"] < 1e-3
        assert row["grad_norm"] > 0
