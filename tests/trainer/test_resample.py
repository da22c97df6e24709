"""Of more rollouts than a group has, wrong ones are kept evenly, right ones by how clean they are; no share moves."""

from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import make_tasks_named, recorded, recorded_trainer

from repl_rl.rewards import ScoredTrajectory
from repl_rl.trainer.resample import error_share, kept_of
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory, read_jsonl

TASKS = make_tasks_named("a", "b")
RAISED, RAN, TOLD = LineKind.EXCEPTION, LineKind.EXPRESSION, LineKind.COMMENT


def session(grade: float, *kinds: LineKind, void: bool = False) -> ScoredTrajectory:
    made = recorded(TASKS[0], 0, lines=max(1, len(kinds)))
    lines = tuple(replace(line, kind=kind) for line, kind in zip(made.lines, kinds or [RAN], strict=True))
    reason = StopReason.ABORTED if void else StopReason.ANSWER
    return ScoredTrajectory(replace(made, lines=lines, outcome_reward=grade, stop_reason=reason), {}, grade)


@pytest.mark.parametrize(
    ("kinds", "share"),
    [((RAN, RAN), 0.0), ((RAISED, RAN, TOLD), 0.5), ((TOLD,), 0.5), ((LineKind.SYNTAX_ERROR, LineKind.TIMEOUT), 1.0)],
)
def test_error_share(kinds: tuple[LineKind, ...], share: float) -> None:
    assert error_share(session(1.0, *kinds).trajectory) == share


@given(st.lists(st.sampled_from(["right", "wrong", "void"]), min_size=4, max_size=16), st.integers(0, 99))
def test_a_group_keeps_its_size_and_its_share_of_right_answers(made: list[str], seed: int) -> None:
    group = [session(float(name == "right"), void=name == "void") for name in made]
    size = len(group) // 2
    kept = kept_of(group, size, Random(seed))
    assert kept == sorted(set(kept))
    assert len(kept) == size
    names = Counter(made[index] for index in kept)
    graded = made.count("right") + made.count("wrong")
    assert names["void"] == max(0, size - graded), "only where others lack"
    if graded >= size:
        assert abs(names["right"] - size * made.count("right") / graded) <= 0.5


def test_right_ones_are_drawn_as_weights_say_and_wrong_ones_evenly() -> None:
    """Two of three right ones: the chance of each pair is that of two draws without replacement, summed over orders."""
    right = [session(1.0, RAN), session(1.0, RAISED, RAN, RAN, RAN), session(1.0, RAISED)]
    group = [*right, *(session(0.0, RAN, *[RAISED] * count) for count in range(3))]
    weights = [1 / (share + 0.01) for share in (0.0, 0.25, 1.0)]
    expected = Counter[frozenset[int]]()
    for first, second, _ in permutations(range(3)):
        chance = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        expected[frozenset((first, second))] += chance  # type: ignore[assignment]
    draws, random = 4000, Random(5)
    kept = [kept_of(group, 4, random) for _ in range(draws)]
    found = Counter(frozenset(index for index in each if index < 3) for each in kept)
    for pair, chance in expected.items():
        assert found[pair] / draws == pytest.approx(chance, abs=0.02)
    wrong = Counter(index for each in kept for index in each if index >= 3)
    assert all(count / draws == pytest.approx(2 / 3, abs=0.03) for count in wrong.values())


def test_the_trainer_rolls_out_more_and_trains_on_the_kept(tmp_path: Path) -> None:
    def sessions(task: Task, index: int) -> Trajectory:
        return recorded(task, index, is_right=index % 2 == 0)

    trainer = recorded_trainer(tmp_path, sessions, TASKS, oversample=3)
    output = trainer.batch()
    assert trainer.service.calls == [["a"] * 6 + ["b"] * 6]
    assert len(output["completion_ids"]) == 4
    kept = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert [(one.task_id, one.outcome_reward) for one in kept] != []
    assert Counter((one.task_id, one.outcome_reward) for one in kept) == Counter(
        {("a", 1.0): 1, ("a", 0.0): 1, ("b", 1.0): 1, ("b", 0.0): 1}
    )
