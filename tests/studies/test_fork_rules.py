"""The fork rules of the study of branching: they look at outcomes, and bisect sessions that are over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from growing import TASK, Policy, grow, lines_so_far, texts, typing
from scripted import rollout_of
from vocabularies import nano

from repl_rl.config import BranchConfig, BudgetConfig, parse_config
from repl_rl.errors import ConfigError, RewardError
from repl_rl.trajectory import Task, Trajectory, whole_session

pytestmark = pytest.mark.slow


def decided_at(line: int, wins: int) -> Callable[[str, int], str]:
    """Seven lines; the one with this number is a new number each time, and only `wins` submits 1."""

    def typed(text: str, number: int) -> str:
        line_number = lines_so_far(text)
        if line_number == line:
            return f" x = {number}\n"
        return f" submit_final_answer(1 if x == {wins} else 0)\n" if line_number == 8 else f" {line_number}\n"

    return typed


CONTRAST = BranchConfig(roots=1, branches=6, at="studies.branching.forks:Contrast")


async def test_contrast_bisects_a_root_for_the_line_that_decided() -> None:
    """The root wins by its third line, and nobody else: branches before it lose, those after it win."""
    policy = Policy(nano(), decided_at(3, wins=2))
    root, *branches = await grow(policy, nano(), CONTRAST, budget=BudgetConfig(lines=9, tokens=2000))
    assert root.answer == ("1",)
    assert [each.answer for each in branches] == [("1",), ("0",), ("1",), ("0",), ("0",)]
    assert [each.branch.line for each in branches if each.branch] == [4, 2, 3, 2, 2]
    assert {each.branch.by for each in branches if each.branch} == {"replay"}
    for branch in branches:
        assert branch.prompt == root.prompt + "".join(
            line.text + line.output for line in root.lines[: branch.branch.line if branch.branch else 0]
        )
        assert texts(whole_session(branch, [root]))[:2] == texts(root)[:2]


async def test_where_nothing_comes_out_differently_branches_go_back_to_the_prompt() -> None:
    made = await grow(Policy(nano(), decided_at(3, wins=-1)), nano(), CONTRAST, budget=BudgetConfig(lines=9))
    assert [each.branch.line for each in made if each.branch] == [4, 2, 1, 0, 0]


async def test_contrast_asks_the_environment_and_skips_what_it_is_told_to() -> None:
    class Counted:
        def reset(self, task: Task) -> None:
            self.lines = 0

        def observe(self) -> None:
            self.lines += 1

        def reward(self, trajectory: Trajectory) -> float:
            return float("# lucky" in trajectory.lines[0].text)

    def typed(text: str, number: int) -> str:
        line_number = lines_so_far(text)
        return (" # lucky\n" if number == 0 else " # not\n") if line_number == 1 else f" {line_number}\n"

    config = BranchConfig(roots=1, branches=3, at="studies.branching.forks:Contrast")
    budget = BudgetConfig(lines=4, tokens=2000)
    root, *branches = await grow(Policy(nano(), typed), nano(), config, environment=Counted, budget=budget)
    assert root.environment_reward == 1.0
    # lines 2 and 3 can be forked; in branches the environment looks at their own first line
    assert [each.branch.line for each in branches if each.branch] == [3, 3]
    assert [each.environment_reward for each in branches] == [0.0, 0.0]


@pytest.mark.parametrize(("wins", "lines"), [(-1, [4, 2, 4, 2]), (2, [0, 0, 0, 0])])
async def test_pass_rate_bisects_the_roots_of_a_group_that_all_came_to_the_same(wins: int, lines: list[int]) -> None:
    """With one kernel, the first root types its third line before the second root begins: only it can win."""
    config = BranchConfig(roots=2, branches=3, at="studies.branching.forks:PassRate")
    policy = Policy(nano(), decided_at(3, wins))
    made = await grow(policy, nano(), config, budget=BudgetConfig(lines=9, tokens=2000), size=1)
    assert [each.answer for each in made[:2]] == [("1",) if wins == 2 else ("0",), ("0",)]
    assert [each.branch.line for each in made if each.branch] == lines


async def test_branches_of_a_root_that_can_not_be_run_again_begin_at_the_prompt() -> None:
    policy = Policy(nano(), typing(" import time; time.perf_counter_ns()\n", " 2\n", " submit_final_answer(0)\n"))
    made = await grow(policy, nano(), CONTRAST)
    assert [each.branch.by for each in made if each.branch] == ["anew"] * 5


async def test_a_grader_that_fails_where_outcomes_decide_is_named() -> None:
    def strict(task: Task, answer: Sequence[str] | None) -> float:
        raise ValueError("no grade")

    rollout = rollout_of(Policy(nano(), typing(" submit_final_answer(1)\n")), at_once=8, grader=strict)
    with pytest.raises(RewardError, match="grader 'strict' raised ValueError: no grade"):
        await rollout.many([TASK] * 6, branch=CONTRAST)


@pytest.mark.parametrize("rule", ["Contrast", "PassRate"])
def test_estimators_without_a_bias_are_refused(rule: str) -> None:
    at = f"studies.branching.forks:{rule}"
    with pytest.raises(ConfigError, match=f"branch.at: {at} chooses by outcomes where to fork.* is unbiased only"):
        parse_config({"branch": {"at": at}, "credit": {"estimator": "branch"}, "train": {"group_size": 12}})
