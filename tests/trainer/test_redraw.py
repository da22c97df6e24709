"""Groups that teach nothing give way to further tasks: which, how often, and what the rest of the step sees of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from recorded import make_tasks_named, recorded, recorded_trainer

from repl_rl.config import CreditConfig
from repl_rl.errors import KernelError
from repl_rl.rewards import ScoredTrajectory
from repl_rl.rollout import is_flat
from repl_rl.trainer.redraw import further_rows, redraw
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory, read_jsonl

RLOO = CreditConfig(estimator="rloo")


def earning(reward: float, stop_reason: StopReason = StopReason.ANSWER, name: str = "t") -> ScoredTrajectory:
    line = Line(0, 1, "x\n", LineKind.STATEMENT, reward=reward)
    return ScoredTrajectory(Trajectory(name, "p", (1,), (2,), (True,), (-1.0,), stop_reason, (line,)), {}, reward)


def rows(*names: str) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {name}?", "answer": name, "task_id": name, "family": ""} for name in names]


def is_idle(rewards: Sequence[float], config: CreditConfig = RLOO, void: Sequence[int] = ()) -> bool:
    reasons = [StopReason.ABORTED if index in void else StopReason.ANSWER for index in range(len(rewards))]
    scored = [earning(reward, reason) for reward, reason in zip(rewards, reasons, strict=True)]
    return is_flat(scored, config)


@pytest.mark.parametrize(
    ("rewards", "void", "expected"),
    [
        ((1.0, 1.0, 1.0), (), True),
        ((0.0, 0.0, 0.0), (), True),
        ((1.0, 0.0, 0.0), (), False),
        ((1.0, 0.0, 0.0), (0,), True),  # what is left is equal
        ((1.0, 0.0, 0.0), (1, 2), True),  # one alone has nothing to be compared with
        ((1.0, 0.0, 0.0), (0, 1, 2), False),  # the machinery's fault: another task would not help
    ],
)
def test_a_group_teaches_nothing_if_its_valid_trajectories_are_worth_the_same(
    rewards: tuple[float, ...], void: tuple[int, ...], expected: bool
) -> None:
    assert is_idle(rewards, void=void) is expected


@pytest.mark.parametrize(("paid", "expected"), [(1.0, True), (None, False)])
def test_what_lines_earn_besides_counts_only_where_nothing_is_paid_for_outcomes(
    paid: float | None, expected: bool
) -> None:
    group = [replace(earning(reward), outcome=paid) for reward in (1.0, 0.98)]
    assert is_flat(group, RLOO) is expected
    assert is_flat([replace(each, outcome=paid) for each in (earning(0.5), earning(0.5))], RLOO)


def test_without_a_baseline_equal_rewards_teach_and_no_reward_does_where_the_batch_is_the_baseline() -> None:
    alone = CreditConfig(estimator="outcome", baseline="none")
    over_batch = CreditConfig(estimator="reinforce++", baseline="none")
    assert [is_idle(rewards, alone) for rewards in ((1.0, 1.0), (0.0, 0.0))] == [False, True]
    assert [is_idle(rewards, over_batch) for rewards in ((1.0, 1.0), (0.0, 0.0))] == [False, False]
    assert is_idle((1.0, 1.0), CreditConfig(estimator="reinforce++"))


def test_idle_groups_are_replaced_in_place_until_none_is_left() -> None:
    """Groups a, b, c of two; b and c are idle. The first further task teaches at once, the second never does."""
    drawn, scored = rows(*"aabbcc"), [earning(value) for value in (1.0, 0.0, 1.0, 1.0, 0.0, 0.0)]
    kept = scored[:2]
    asked: list[list[str]] = []

    def roll_out(tasks: Sequence[Task]) -> list[ScoredTrajectory]:
        asked.append([task.id for task in tasks])
        return [earning(float(index % 2 and task.id != "e"), name=task.id) for index, task in enumerate(tasks)]

    assert redraw(drawn, scored, 2, iter(rows(*"defgh")), roll_out, RLOO, rounds=3) == 3
    assert asked == [["d", "d", "e", "e"], ["f", "f"]]
    assert [row["task_id"] for row in drawn] == list("aaddff")
    assert [item.trajectory.task_id for item in scored] == ["t", "t", "d", "d", "f", "f"]
    assert scored[:2] == kept
    assert drawn[2] is not drawn[3], "TRL writes into each row"


def test_rounds_are_bounded_and_the_last_draw_stays() -> None:
    drawn, scored = rows("a", "a"), [earning(1.0)] * 2

    def roll_out(tasks: Sequence[Task]) -> list[ScoredTrajectory]:
        return [earning(0.0, name=task.id) for task in tasks]

    assert redraw(drawn, scored, 2, iter(rows(*"bcd")), roll_out, RLOO, rounds=2) == 2
    assert [item.trajectory.task_id for item in scored] == ["c", "c"]
    assert redraw(drawn, scored, 2, iter(rows("d")), roll_out, RLOO, rounds=0) == 0


def test_groups_stay_where_not_one_further_session_can_run() -> None:
    drawn, scored = rows(*"aa"), [earning(1.0), earning(1.0)]
    before = list(drawn), list(scored)

    def roll_out(tasks: Sequence[Task]) -> list[ScoredTrajectory]:
        raise KernelError("not a single kernel")

    assert redraw(drawn, scored, 2, iter(rows("d", "e")), roll_out, RLOO, rounds=2) == 0
    assert (drawn, scored) == before


def test_further_tasks_are_others_first_and_the_seed_and_the_step_decide_which() -> None:
    dataset = Dataset.from_list(rows(*"abcdef"))

    def drawn(count: int, seed: int = 1, step: int = 3) -> str:
        stream = further_rows(dataset, {"a", "b"}, seed, step)
        return "".join(row["task_id"] for row in islice(stream, count))

    assert drawn(10) == drawn(10)
    assert sorted(drawn(4)) == list("cdef")
    assert sorted(drawn(10)[4:]) == list("abcdef"), "all of them when there is no other left"
    assert len({drawn(4, seed, step) for seed in range(3) for step in range(3)}) > 3


def varied(task: Task, index: int) -> Trajectory:
    """All right for tasks `idle...`; else the first of a group is right."""
    return recorded(task, index, is_right=task.id.startswith("idle") or index == 0)


def columns(prompts: list[str], scored: list[ScoredTrajectory], task_id: list[str], **_: Any) -> list[float]:
    """TRL's kind of reward, here for what it is shown."""
    assert prompts == [f"What is {name}?" for name in task_id]
    assert [item.trajectory.task_id for item in scored] == task_id
    return [0.0] * len(prompts)


def test_a_step_learns_from_the_groups_that_were_drawn_last(tmp_path: Path) -> None:
    tasks = make_tasks_named("idle1", "idle2", "vary1", "vary2", "vary3")
    trainer = recorded_trainer(
        tmp_path, varied, tasks, trainer={"reward_funcs": columns}, redraws=8, per_device_train_batch_size=6
    )
    output = trainer.batch((0, 0, 2, 2, 1, 1))  # idle1, vary1, idle2
    first, *further = trainer.service.calls
    assert first == ["idle1", "idle1", "vary1", "vary1", "idle2", "idle2"]
    assert sorted(further[0]) == ["vary2", "vary2", "vary3", "vary3"], "distinct from the batch's own where possible"
    assert len(further) == 1
    expected = [further[0][0]] * 2 + ["vary1"] * 2 + [further[0][2]] * 2
    kept = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert [trajectory.task_id for trajectory in kept] == expected
    assert trainer.table["prompt"][-6:] == [f"What is {name}?" for name in expected]
    of_step = {name: trainer.metrics[name] for name in ("solve_rate", "kept/solve_rate", "kept/share")}
    assert of_step == {"solve_rate": [0.7], "kept/solve_rate": [0.5], "kept/share": [0.6]}, "7 of 10, and 3 of 6"
    for row, trajectory in enumerate(kept):
        ids, mask = output["prompt_ids"][row], output["prompt_mask"][row].bool()
        assert tuple(ids[mask].tolist()) == trajectory.prompt_ids
        length = len(trajectory.completion_ids)
        assert tuple(output["completion_ids"][row][:length].tolist()) == trajectory.completion_ids
    assert (output["advantages"] != 0).any(dim=1).all()
    assert trainer.metrics["credit/redrawn_groups"] == [2.0]
    assert trainer.metrics["credit/groups_without_variance"] == [0.0]


def test_evaluation_and_a_step_without_redraws_take_what_comes(tmp_path: Path) -> None:
    tasks = make_tasks_named("idle1", "vary1")
    own = {"eval_dataset": tasks[:1]}
    for redraws in (3, 0):
        trainer = recorded_trainer(tmp_path, varied, tasks, trainer=own, redraws=redraws, per_device_train_batch_size=2)
        trainer.evaluate() if redraws else trainer.batch((0, 0))
        assert trainer.service.calls == [["idle1", "idle1"]]
        assert "credit/redrawn_groups" not in trainer.metrics
