"""The grader. It runs outside the sandbox, on text that came out of it, so it trusts nothing.

Numbers, and texts that equal the reference, are judged at once by `grader/exact.py`. All else (LaTeX, fractions, sets,
tuples, intervals, matrices, equations, what sympy prints) is read and compared in processes of its own, which are
killed where they take too long; nothing is evaluated. docs/tasks.md says what counts as equal. The number families
know no other answer than a number, so for them nothing is asked of those processes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from repl_rl.errors import ConfigError
from repl_rl.tasks.families import FAMILIES
from repl_rl.tasks.grader.exact import is_number, verdict_at_once
from repl_rl.tasks.grader.process import ask
from repl_rl.trajectory import Task

_MAX_CHARS = 2_000
"""Of a submission, beside four times its reference's length."""
_MAX_VALUES = 100
_REMEMBERED = 10_000

Asked = tuple[str, tuple[str, ...]]

_verdicts: OrderedDict[Asked, float] = OrderedDict()
"""A group of trajectories gives the same answer again and again."""


def grade(task: Task, answer: Sequence[str] | None) -> float:
    """1.0 if the `repr`s in `answer` say the task's answer, else 0.0. Never raises on what was submitted.

    Raises RewardError if the grader's processes don't come up.
    """
    verdict = _at_once(task, answer)
    return verdict if isinstance(verdict, float) else grade_many([task], [answer])[0]


def grade_many(tasks: Sequence[Task], answers: Sequence[Sequence[str] | None]) -> list[float]:
    """`grade` of each pair, several at once."""
    first = [_at_once(task, answer) for task, answer in zip(tasks, answers, strict=True)]
    open_ = list(dict.fromkeys(item for item in first if not isinstance(item, float) and item not in _verdicts))
    replies = ask([{"answer": answer, "submitted": list(submitted)} for answer, submitted in open_]) if open_ else []
    fresh = {item: float(bool(reply and reply["right"])) for item, reply in zip(open_, replies, strict=True)}
    grades = [item if isinstance(item, float) else fresh.get(item, _verdicts.get(item, 0.0)) for item in first]
    _remember(fresh)
    return grades


def require_gradable(tasks: Iterable[Task]) -> None:
    """Raises ConfigError naming the first task whose reference answer can't be read."""
    doubtful = [task for task in tasks if not is_number(task.answer.strip())]
    replies = ask([{"answer": task.answer} for task in doubtful]) if doubtful else []
    for task, reply in zip(doubtful, replies, strict=True):
        if not (reply and reply["gradable"]):
            raise ConfigError(
                f"task {task.id!r}: the reference answer {task.answer[:200]!r} can't be read as mathematics or words; "
                "mend or drop it, or take out the answer with tasks.answer_pattern"
            )


def _at_once(task: Task, answer: Sequence[str] | None) -> float | Asked:
    """A verdict, or what has to be asked."""
    if answer is None or isinstance(answer, str) or not 1 <= len(answer) <= _MAX_VALUES:
        return 0.0
    if not all(isinstance(text, str) for text in answer):
        return 0.0
    expected = task.answer.strip()
    verdict = verdict_at_once(answer[0], expected) if len(answer) == 1 else None
    if verdict is not None:
        return float(verdict)
    if task.family in FAMILIES or not expected or sum(map(len, answer)) > _MAX_CHARS + 4 * len(expected):
        return 0.0
    return expected, tuple(answer)


def _remember(fresh: dict[Asked, float]) -> None:
    _verdicts.update(fresh)
    while len(_verdicts) > _REMEMBERED:
        _verdicts.popitem(last=False)
