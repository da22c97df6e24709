"""From finished trajectories to advantages per token: grading, groups, and what stays unassigned."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.errors import RewardError
from repl_rl.rewards import RewardTable
from repl_rl.rollout import credit, credit_numbers, score
from repl_rl.tasks import grade
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, Task, Trajectory, read_jsonl, write_jsonl

TABLE = RewardTable(RewardsConfig(kinds={LineKind.EXCEPTION: -0.5}))
TASK = Task("t", "What is 6 * 7?", "42")


def answering(*answer: str, stop_reason: StopReason = StopReason.ANSWER) -> Trajectory:
    """An exception, its traceback of one token, then an answer of two tokens."""
    return Trajectory(
        task_id="t",
        prompt=">>>",
        prompt_ids=(0,),
        completion_ids=(1, 2, 3, 4),
        sampled_mask=(True, False, True, True),
        logprobs=(-1.0, 0.0, -1.0, -1.0),
        stop_reason=stop_reason,
        lines=(Line(0, 1, "x\n", LineKind.EXCEPTION, "NameError"), Line(2, 4, "submit\n", LineKind.ANSWER)),
        answer=answer or None,
    )


def test_right_and_wrong_answers_by_hand() -> None:
    scored = score([TASK] * 3, [answering("42"), answering("41"), answering()], grade, TABLE)
    assert [item.line_rewards for item in scored] == [(-0.5, 1.0), (-0.5, 0.0), (-0.5, 0.0)]
    assert [item.trajectory.outcome_reward for item in scored] == [1.0, 0.0, 0.0]


def test_several_references_are_recorded_and_each_may_have_been_shown(tmp_path: Path) -> None:
    task = Task("t", "What is 84 / 4?", "21", metadata={"references": ("21", "21.0")})
    lines = (Line(0, 1, "84 / 4\n", LineKind.EXPRESSION, output="21.0\n>>>"), Line(2, 4, "submit\n", LineKind.ANSWER))
    cells = (replace(lines[0], cells=(RecordedCell("84 / 4", "21.0\n"),)), lines[1])
    [scored] = score([task], [replace(answering("21"), lines=cells)], grade, TABLE)
    assert scored.shown == (True, False)
    assert scored.trajectory.reference == "21 or 21.0"
    write_jsonl(tmp_path / "x.jsonl", [scored.trajectory])
    [read] = read_jsonl(tmp_path / "x.jsonl")
    assert read.reference == "21 or 21.0"
    assert "reference: 21 or 21.0" in str(read)


def test_schedules_stand_at_the_training_step() -> None:
    weight = {"start": 1.0, "end": 0.0, "steps": 4}
    table = RewardTable(RewardsConfig(kinds={LineKind.EXCEPTION: -0.5}, shaping={"weight": weight}))
    scored = [score([TASK], [answering("42")], grade, table, step)[0] for step in (0, 2, 4)]
    assert [item.line_rewards for item in scored] == [(-0.5, 1.0), (-0.25, 1.0), (0.0, 1.0)]
    assert score([TASK], [answering("42")], grade, table) == scored[:1]


def test_a_void_trajectory_is_never_graded_gets_zeros_and_moves_nobody() -> None:
    def refuse(task: Task, answer: Sequence[str] | None) -> float:
        assert answer != ("0",), "an aborted trajectory reached the grader"
        return grade(task, answer)

    made = [answering("42"), answering("0", stop_reason=StopReason.ABORTED), answering("41")]
    credited = credit(score([TASK] * 3, made, refuse, TABLE), 3, CreditConfig(estimator="outcome"))
    assert [item.trajectory.outcome_reward for item in credited] == [1.0, 0.0, 0.0]
    assert [item.token_advantages[0] for item in credited] == [0.5, 0.0, -0.5]


def reads_too_much(task: Task, answer: Sequence[str] | None) -> float:
    return float(answer[1] == task.answer) if answer else 0.0


def says_nothing(task: Task, answer: Sequence[str] | None) -> Any:
    return None


def place_of(function: Any, line: int) -> str:
    return f"{Path(__file__).relative_to(Path.cwd())}:{function.__code__.co_firstlineno + line}"


EXPECTED = (
    "it has to be (task, answer) -> float, or -> (float, reason), where answer is a tuple of texts, or None without a "
    "submission"
)


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        (
            reads_too_much,
            f"grader '{__name__}:reads_too_much' raised IndexError: tuple index out of range "
            f"({place_of(reads_too_much, 1)}, on task 't'); {EXPECTED}",
        ),
        (
            says_nothing,
            f"grader '{__name__}:says_nothing' returned None ({place_of(says_nothing, 0)}, on task 't'); {EXPECTED}",
        ),
    ],
)
def test_a_grader_that_breaks_is_named(grader: Any, message: str) -> None:
    with pytest.raises(RewardError) as caught:
        score([TASK], [answering("42")], grader, TABLE)
    assert str(caught.value) == message


def doubles(task: Task, answer: Sequence[str] | None, forms: Sequence[str | None] | None = None) -> float:
    return 0.5 if forms == ("lambda x: 2 * x",) else 0.0


def test_each_verdict_has_its_reason() -> None:
    """A pair is a grade with its reason, of a user's grader as of ours."""
    paid, void = replace(answering("7"), environment_reward=0.5), answering("7", stop_reason=StopReason.ABORTED)
    scored = score([TASK] * 3, [answering("42.0"), paid, void], grade, TABLE)
    scored += score([TASK], [answering("41")], lambda task, answer: (0.75, f"{answer[0]} is close"), TABLE)
    assert [(each.trajectory.outcome_reward, each.trajectory.grade_reason) for each in scored] == [
        (1.0, "answer read as 42.0, reference read as 42: equal"),
        (0.5, "what the environment paid"),
        (0.0, "the session is void"),
        (0.75, "41 is close"),
    ]
    with pytest.raises(RewardError, match=r"returned \(1.0, None\) \(.*on task"):
        score([TASK], [answering("42")], lambda task, answer: (1.0, None), TABLE)


def test_a_grader_that_asks_gets_the_forms_and_ours_reads_them() -> None:
    table = RewardTable(RewardsConfig())
    function = replace(answering("<function>"), answer_forms=("lambda x: 2 * x",))
    [scored] = score([Task("t", "?", "")], [function], doubles, table)
    assert scored.trajectory.outcome_reward == 0.5
    array = replace(answering("np.int64(401)"), answer_forms=("401",))
    [scored] = score([Task("t", "?", "401")], [array], grade, table)
    assert scored.trajectory.outcome_reward == 1.0


def test_each_trajectory_is_graded_against_its_own_task() -> None:
    other = Task("u", "What is 5 * 5?", "25")
    scored = score([TASK, other], [answering("25"), answering("25")], grade, TABLE)
    assert [item.trajectory.outcome_reward for item in scored] == [0.0, 1.0]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        score([TASK, other], [answering("42")], grade, TABLE)


def test_advantages_stay_within_a_group() -> None:
    """Two groups of two: in the first one answers, in the second both do, so that it teaches nothing."""
    answers = ["42", "41", "42", "42"]
    scored = score([TASK] * 4, [answering(answer) for answer in answers], grade, TABLE)
    credited = credit(scored, 2, CreditConfig(estimator="outcome"))
    # tokens                                           exception  traceback  answer
    assert [item.token_advantages for item in credited] == [
        (0.5, 0.0, 0.5, 0.5),
        (-0.5, 0.0, -0.5, -0.5),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),
    ]


def test_lines_carry_their_advantage_and_components_travel() -> None:
    scored = score([TASK] * 2, [answering("42"), answering("41")], grade, TABLE)
    first, second = credit(scored, 2, CreditConfig(gamma=0.5))
    # returns to go 0, 1 and -0.5, 0
    assert [line.advantage for line in first.trajectory.lines] == [0.5, 1.0]
    assert [line.advantage for line in second.trajectory.lines] == [-0.5, -1.0]
    assert first.token_advantages == (0.5, 0.0, 1.0, 1.0)
    assert first.components == {"outcome": (0.0, 1.0), "table": (-0.5, 0.0)}
    assert [line.reward for line in first.trajectory.lines] == [-0.5, 1.0]


def test_reinforce_pp_is_scaled_over_all_groups() -> None:
    """Returns of 0.5 and -0.5 about their means, twice, over 3 tokens each; the last group has no variance."""
    answers = ["42", "41", "41", "42", "42", "42"]
    scored = score([TASK] * 6, [answering(answer) for answer in answers], grade, TABLE)
    credited = credit(scored, 2, CreditConfig(estimator="reinforce++"))
    value = 0.5 / ((12 * 0.25 / 11) ** 0.5 + 1e-4)
    lines = [line.advantage for item in credited for line in item.trajectory.lines]
    assert lines == pytest.approx([value] * 2 + [-value] * 4 + [value] * 2 + [0.0] * 4)


def test_what_teaches_nothing_is_counted() -> None:
    """Groups: one that varies, one all right with a void one, one all void."""
    void = answering("42", stop_reason=StopReason.ABORTED)
    trajectories = [answering("42"), answering("41"), void, answering("42"), answering("42"), answering("42")]
    trajectories += [void, void, void]
    scored = score([TASK] * 9, trajectories, grade, TABLE)
    numbers = credit_numbers(credit(scored, 3, CreditConfig(estimator="rloo")), 3)
    assert numbers == {
        "credit/groups": 3.0,
        "credit/groups_without_variance": 1.0,
        "credit/void_trajectories": 4.0,
    }


def test_groups_have_to_come_out_even() -> None:
    scored = score([TASK] * 3, [answering("42")] * 3, grade, TABLE)
    with pytest.raises(ValueError, match="3 trajectories don't divide into groups of 2"):
        credit(scored, 2, CreditConfig())
    assert credit([], 2, CreditConfig()) == []


def test_the_former_place_of_scoring_has_all_of_it_and_hides_no_function() -> None:
    program = (
        "import repl_rl.rollout.score as former, repl_rl.rollout as room\n"
        "print(former.score is former.credit.__globals__['score'], room.credit is former.credit)\n"
        "from repl_rl.rollout import score\n"
        "print(score([], [], None, None))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "True True\n[]\n"
