"""Of more rollouts than a group has, wrong ones are kept evenly, right ones by how clean they are; none that is alone
is lost."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import says
from recorded import make_tasks_named, recorded, recorded_trainer

from repl_rl.rewards import ScoredTrajectory
from repl_rl.trainer.resample import error_share, kept_of, right_kept
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


NAMES = st.lists(st.sampled_from(["right", "wrong", "void"]), min_size=4, max_size=64)


@given(NAMES, st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 99))
def test_a_group_keeps_its_size_and_nearly_its_share_of_right_answers(made: list[str], factor: int, seed: int) -> None:
    group = [session(float(name == "right"), void=name == "void") for name in made]
    size = max(2, len(group) // factor)
    kept = kept_of(group, size, Random(seed))
    assert kept == sorted(set(kept))
    assert len(kept) == size
    names = Counter(made[index] for index in kept)
    right, wrong = made.count("right"), made.count("wrong")
    room = min(size, right + wrong)
    assert names["void"] == size - room, "only where others lack"
    least = min(2, room // 2)
    assert names["right"] >= min(right, least)
    assert names["wrong"] >= min(wrong, least)
    if min(names["right"], names["wrong"]) > least:
        assert abs(names["right"] - room * right / (right + wrong)) <= 0.5


@pytest.mark.parametrize("factor", range(2, 17))
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16])
def test_one_that_is_alone_is_kept_whatever_the_group(size: int, factor: int) -> None:
    of_all = size * factor
    for voids in range(of_all - 1):
        others = of_all - voids - 1
        assert right_kept(1, others, size) == 1, "the only right one"
        assert right_kept(others, 1, size) == min(size - 1, others), "all but the only wrong one"


def test_two_of_a_kind_are_kept_where_there_is_room() -> None:
    of_16 = [right_kept(right, 16 - right, 8) for right in range(17)]
    assert of_16 == [0, 1, 2, 2, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6, 6, 7, 8]
    assert [right_kept(right, 6 - right, 3) for right in range(7)] == [0, 1, 1, 2, 2, 2, 3]
    assert [right_kept(right, 4 - right, 2) for right in range(5)] == [0, 1, 1, 1, 2]


@cache
def raised_among_kept(clean: int, raised: int, kept: int) -> float:
    """How many of `kept` right sessions raised, in expectation: drawn one after the other, by their weights."""
    if kept == 0 or clean + raised == 0:
        return 0.0
    clean_weight, raised_weight = clean / 0.01, raised / 1.01
    chance = raised_weight / (clean_weight + raised_weight)
    after_clean = raised_among_kept(clean - 1, raised, kept - 1) if clean else 0.0
    after_raised = raised_among_kept(clean, raised - 1, kept - 1) if raised else 0.0
    return (1 - chance) * after_clean + chance * (1 + after_raised)


def gradients(size: int, factor: int) -> tuple[float, float]:
    """Expected gradients of `rloo` on the logits of being right, of sessions that did not raise and of those that did.

    Half of the sessions raise, and half are right whether they raised or not. All groups are enumerated, by their
    counts.
    """
    of_all, clean_gradient, raised_gradient = size * factor, 0.0, 0.0
    for clean_right, raised_right, clean_wrong in product(range(of_all + 1), repeat=3):
        raised_wrong = of_all - clean_right - raised_right - clean_wrong
        if raised_wrong < 0:
            continue
        counts = (clean_right, raised_right, clean_wrong, raised_wrong)
        chance = math.factorial(of_all) / math.prod(map(math.factorial, counts)) / 4**of_all
        right, wrong = clean_right + raised_right, clean_wrong + raised_wrong
        kept = right_kept(right, wrong, size)
        raised_kept = raised_among_kept(clean_right, raised_right, kept)
        wrong_share = (size - kept) / wrong if wrong else 0.0
        of_right, of_wrong = 1 - (kept - 1) / (size - 1), -kept / (size - 1)  # advantages
        # the score of a right session is 1 - 1/2, that of a wrong one -1/2
        clean_gradient += chance * ((kept - raised_kept) * of_right - clean_wrong * wrong_share * of_wrong) / 2 / size
        raised_gradient += chance * (raised_kept * of_right - raised_wrong * wrong_share * of_wrong) / 2 / size
    return clean_gradient, raised_gradient


def test_being_right_after_an_error_is_learnt_more_slowly() -> None:
    """The figures of repl_rl/trainer/resample.py and docs/algorithms.md."""
    assert gradients(8, 1) == pytest.approx((0.125, 0.125))
    clean, raised = gradients(8, 2)
    assert says(
        "algorithms.md",
        f"the gradient of being right after an error is {raised:.3f} in place of 0.125, and that of being right "
        f"without one {clean:.3f}",
    )


def right_counts(of_all: int, rate: float) -> Iterator[tuple[int, float]]:
    """How many of so many sessions are right, and the chance of it."""
    for right in range(of_all + 1):
        yield right, math.comb(of_all, right) * rate**right * (1 - rate) ** (of_all - right)


def test_a_rare_right_answer_is_seen_as_often_as_in_the_larger_group_and_counts_more() -> None:
    """The other figures there. In a group of 8, of which `kept` are right, `rloo` has kept (8 - kept) / 8 / 7 as the
    gradient of being right, which is the rate times one less the rate in expectation."""

    def kept_counts(rate: float, factor: int) -> Iterator[tuple[int, float]]:
        for right, chance in right_counts(8 * factor, rate):
            yield right_kept(right, 8 * factor - right, 8), chance

    def mixed(rate: float, factor: int) -> float:
        return sum(chance for kept, chance in kept_counts(rate, factor) if 0 < kept < 8)

    def counts_times(rate: float, factor: int) -> float:
        gradient = sum(chance * kept * (8 - kept) / 8 / 7 for kept, chance in kept_counts(rate, factor))
        return gradient / (rate * (1 - rate))

    assert mixed(0.05, 2) == pytest.approx(1 - 0.95**16 - 0.05**16)
    assert counts_times(0.05, 1) == pytest.approx(1.0)
    assert says(
        "algorithms.md",
        f"{mixed(0.05, 2):.0%} of groups have both outcomes, as many as of groups of 16, where plain groups of 8 have "
        f"{mixed(0.05, 1):.0%}",
    )
    assert says(
        "algorithms.md",
        f"that problem counts {counts_times(0.05, 2):.2f} times as much as without them, one that is solved half of "
        f"the time {counts_times(0.5, 2):.2f} times",
    )


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


def test_what_is_logged_is_of_all_that_were_sampled_and_what_was_kept_has_names_of_its_own(tmp_path: Path) -> None:
    """Of six sessions of a problem the first is right, with two lines; the others have four, and two ran out."""

    def sessions(task: Task, index: int) -> Trajectory:
        reason = StopReason.MAX_TOKENS if index > 3 else StopReason.ANSWER
        return recorded(task, index, is_right=index == 0, lines=4 if index else 2, stop_reason=reason)

    trainer = recorded_trainer(tmp_path, sessions, TASKS, oversample=3)
    trainer.batch()
    logged = trainer.metrics
    of_all = {"solve_rate": 1 / 6, "lines_per_trajectory": 22 / 6, "tokens_per_trajectory": 66 / 6}
    kept = {"share": 1 / 3, "solve_rate": 1 / 2, "lines_per_trajectory": 3.0, "tokens_per_trajectory": 9.0}
    assert {name: logged[name] for name in of_all} == {name: [pytest.approx(value)] for name, value in of_all.items()}
    assert {name: logged[f"kept/{name}"] for name in kept} == {
        name: [pytest.approx(each)] for name, each in kept.items()
    }
    assert logged["stops/max_tokens"] == [pytest.approx(1 / 3)]
    assert logged["rewards/outcome/mean"] == [0.5], "TRL's are of what is trained on"
