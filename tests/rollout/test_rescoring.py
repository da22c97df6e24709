"""Recorded sessions scored and credited again: with the same rewards and credit nothing changes, to the bit."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made

from repl_rl.config import Config, CreditConfig, RewardsConfig, load_config
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.credit.critic import Critic
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import RewardTable
from repl_rl.rollout import Rescoring, credit, rescored, reward_table, score
from repl_rl.tasks import grade
from repl_rl.trajectory import Branch, LineKind, StopReason, Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.utils.folders import shipped_configs
from tests.credit.groups import configs

GROUP_SIZE = 4
REWARDS = {
    "none": RewardsConfig(),
    "gentle": RewardsConfig(preset="gentle"),
    "strict": RewardsConfig(preset="strict"),
    "potential": RewardsConfig(preset="strict", shaping={"mode": "potential"}),
    "scheduled": RewardsConfig(
        kinds={"expression": 0.1, "exception": -0.2},
        length={"free": 3, "over": 4},
        rules=[{"name": "again", "reward": -0.1, "times": "repeated"}],
        functions=[f"{__name__}:ungraded"],
        shaping={"weight": {"start": 1.0, "end": 0.0, "steps": 3}, "blocks": "split", "clip": [-0.15, 0.05]},
    ),
}
TYPED = ("x = 1", "x = 2", "x", "x", "y", "# think", "x = 6 * 7", "for i in range(2):", "    i", "1 +")
KINDS = {"x": LineKind.EXPRESSION, "y": LineKind.EXCEPTION, "# think": LineKind.COMMENT, "1 +": LineKind.SYNTAX_ERROR}
KINDS |= {"for i in range(2):": LineKind.OPEN}
FORKABLE = [name for name, record in ESTIMATOR_RECORDS.items() if record.trees.value != "refused"]


def ungraded(trajectory: Trajectory) -> list[float]:
    """A reward that would be another one if it saw the grade, or what lines have earned."""
    assert trajectory.outcome_reward is None
    assert trajectory.reference is None
    assert all(line.reward is None and not line.reward_parts for line in trajectory.lines)
    return [0.01 * len(line.text) for line in trajectory.lines]


def session(random: Random, task: Task) -> Trajectory:
    lines = []
    for _ in range(random.randint(1, 6)):
        text = random.choice(TYPED)
        kind = KINDS.get(text, LineKind.STATEMENT)
        error_name = "NameError" if kind is LineKind.EXCEPTION else None
        output = random.choice(["42\n", "7\n"]) if kind is LineKind.EXPRESSION else ""
        lines.append(line(text, kind, error_name, output, random.choice([None, "a", "b"])))
    stop = random.choice([StopReason.ANSWER, StopReason.MAX_LINES, StopReason.ABORTED])
    answer = (random.choice(["42", "7"]),) if stop is StopReason.ANSWER else None
    return replace(made(lines, task.id), stop_reason=stop, answer=answer)


def branched(group: list[Trajectory], random: Random) -> list[Trajectory]:
    """The group, its last session being a branch of its first, unless that has one line."""
    parent = group[0]
    if len(parent.lines) < 2:
        return group
    fork = random.randint(1, len(parent.lines) - 1)
    prefix = parent.completion_ids[: parent.lines[fork].start]
    branch = replace(group[-1], prompt_ids=parent.prompt_ids + prefix, branch=Branch(0, fork, 1.0))
    return [*group[:-1], branch]


def recorded(
    seed: int, rewards: RewardsConfig, credit_config: CreditConfig, steps: int, forks: bool = False
) -> list[list[Trajectory]]:
    """The sessions of a few steps, as training would record them."""
    random = Random(seed)
    table = reward_table(rewards, credit_config)
    critic = Critic() if credit_config.estimator == "critic" else None
    recorded_steps = []
    for step in range(steps):
        tasks = []
        trajectories = []
        for number in range(3):
            task = Task(f"t{number}", "What is 6 * 7?", "42")
            group = [session(random, task) for _ in range(GROUP_SIZE)]
            trajectories += branched(group, random) if forks else group
            tasks += [task] * GROUP_SIZE
        scored = score(tasks, trajectories, grade, table, step, GROUP_SIZE)
        if random.random() < 0.5:  # reward functions of TRL's kind
            scored = [item.with_bonus(random.choice([0.0, 0.3])) for item in scored]
        credited = credit(scored, GROUP_SIZE, credit_config, rewards.outcome, critic)
        recorded_steps.append([item.trajectory for item in credited])
    return recorded_steps


def assert_nothing_changes(steps: list[list[Trajectory]], rewards: RewardsConfig, credit_config: CreditConfig) -> None:
    again = Rescoring(rewards, credit_config)
    for step, trajectories in enumerate(steps):
        assert again.step(trajectories, GROUP_SIZE, step) == trajectories


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATOR_RECORDS) - {"branch"}))
@given(st.data(), st.integers(0, 2**32))
def test_with_the_same_settings_nothing_changes(estimator: str, data: st.DataObject, seed: int) -> None:
    allowed = [name for name in REWARDS if estimator != "maxrl" or name == "none"]
    rewards = REWARDS[data.draw(st.sampled_from(allowed))]
    credit_config = data.draw(configs(estimator))
    assert_nothing_changes(recorded(seed, rewards, credit_config, steps=3), rewards, credit_config)


@pytest.mark.parametrize("estimator", FORKABLE)
@given(st.integers(0, 2**32), st.sampled_from(sorted(REWARDS)))
def test_nor_in_trees(estimator: str, seed: int, name: str) -> None:
    credit_config = CreditConfig(estimator=estimator)
    steps = recorded(seed, REWARDS[name], credit_config, steps=1, forks=True)
    assert_nothing_changes(steps, REWARDS[name], credit_config)


@pytest.mark.parametrize("name", shipped_configs())
def test_nor_with_what_ships(name: str, tmp_path: Path) -> None:
    """Through a file, as a run keeps them."""
    config: Config = load_config(name)
    for seed in range(20):
        steps = recorded(seed, config.rewards, config.credit, steps=2)
        read = []
        for step, trajectories in enumerate(steps):
            write_jsonl(tmp_path / f"{step}.jsonl", trajectories)
            read.append(list(read_jsonl(tmp_path / f"{step}.jsonl")))
        assert read == steps
        assert_nothing_changes(read, config.rewards, config.credit)


def answering(answer: str, *typed: str) -> Trajectory:
    lines = [line(text, KINDS.get(text, LineKind.STATEMENT)) for text in typed]
    return replace(made([*lines, line("submit", LineKind.ANSWER)]), answer=(answer,))


def test_other_settings_by_hand() -> None:
    task = Task("t", "What is 6 * 7?", "42")
    table = RewardTable(RewardsConfig())
    scored = score([task, task], [answering("42", "x"), answering("7", "1 +")], grade, table)
    sessions = [item.trajectory for item in credit(scored, 2, CreditConfig())]
    assert [[line.advantage for line in session.lines] for session in sessions] == [[1.0, 1.0], [-1.0, -1.0]]
    rewards = RewardsConfig(kinds={"syntax_error": -0.5, "expression": 0.25})
    right, wrong = rescored(sessions, rewards, CreditConfig())
    assert [line.reward for line in right.lines] == [0.25, 1.0]
    assert [line.reward for line in wrong.lines] == [-0.5, 0.0]
    assert [line.advantage for line in right.lines] == [1.75, 1.0]
    assert [line.advantage for line in wrong.lines] == [-1.75, -1.0]
    assert (right.outcome_reward, right.reference, right.grade_reason) == (1.0, "42", sessions[0].grade_reason)


def test_what_an_environment_and_functions_of_whole_batches_paid_stays() -> None:
    task = Task("t", "?", "")
    paid = replace(answering("x", "x"), environment_reward=0.5)
    sessions = score([task] * 2, [paid, paid], grade, RewardTable(RewardsConfig()))
    scored = [item.with_bonus(bonus) for item, bonus in zip(sessions, (0.25, 0), strict=True)]
    credited = [item.trajectory for item in credit(scored, 2, CreditConfig())]
    first, second = rescored(credited, RewardsConfig(outcome=2.0), CreditConfig())
    assert [line.reward for line in first.lines] == [0.0, 1.25]
    assert [line.reward for line in second.lines] == [0.0, 1.0]


def test_groups_are_the_sessions_of_a_task_that_follow_one_another() -> None:
    steps = recorded(3, RewardsConfig(), CreditConfig(), steps=1)
    assert rescored(steps[0], RewardsConfig(), CreditConfig()) == steps[0]
    with pytest.raises(ConfigError, match=r"4 sessions of task 't0' follow one another, and 3 of task 't2'"):
        rescored(steps[0][:-1], RewardsConfig(), CreditConfig())


def test_what_can_not_be_rescored_is_refused() -> None:
    steps = recorded(3, RewardsConfig(), CreditConfig(), steps=1)
    with pytest.raises(ConfigError, match="critic remembers the steps before"):
        rescored(steps[0], RewardsConfig(), CreditConfig(estimator="critic"))
    never = [replace(session, outcome_reward=None, stop_reason=StopReason.ANSWER) for session in steps[0]]
    with pytest.raises(RewardError, match="a session of task 't0' was never graded"):
        rescored(never, RewardsConfig(), CreditConfig())
    assert rescored([], RewardsConfig(), CreditConfig()) == []
