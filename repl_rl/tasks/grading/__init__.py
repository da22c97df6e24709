"""The grader. It runs outside the sandbox, on text that came out of it, so it trusts nothing.

Numbers, and texts that equal the reference, are judged at once. Everything else (LaTeX, fractions, sets, tuples,
intervals, matrices, equations, what sympy prints) is read (`text`, `python_text`) and compared (`compare`) with
sympy and math-verify. This happens in confined processes, and only there are the two loaded; nothing is evaluated.
docs/tasks.md says what counts as equal. The answers of the number families are always numbers, so they never need
those processes. Families whose problems have many right answers, or a scorer of their own, decide by `Family.accepts`,
confined as well.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from operator import attrgetter
from pathlib import Path

from repl_rl.tasks.families import FAMILIES
from repl_rl.tasks.grading.reasons import Verdict, reading
from repl_rl.tasks.gym import PREFIX, home
from repl_rl.tasks.make import KNOWN
from repl_rl.trajectory import Task
from repl_rl.utils.confined import Call, ask
from repl_rl.utils.text import string_of

_MAX_CHARS = 2_000
"""How much longer a submission may be than four times its reference."""
_MAX_VALUES = 100
_REMEMBERED = 10_000
"""Entries that a cache may have before it is emptied."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?")
_NO_REPR = re.compile(r"[+-]?0[0-9]")
"""A leading zero, which the `repr` of no number has."""
_EXTRA_CHARS = 40
"""How much longer than the expected answer a number may be: sign, quotes, ".0", an exponent, a float's digits."""
_FLOAT_NOISE = Decimal("1e-9")
EQUAL = "repl_rl.tasks.grading.compare:equal"

Question = tuple[str, tuple[str, ...], str, tuple[int, ...]]
"""What a confined process is asked: the reference, the submitted texts, and, if the problem's family decides, the
family and the problem's operands."""
Forms = Sequence[str | None] | None

_verdicts: dict[Question, Verdict] = {}
"""A cache, because a group of trajectories often gives the same answer many times."""
_readable: set[str] = set()
"""Reference answers that have been read: a run's problems are checked when they are loaded, and by the trainer."""


def grade(task: Task, answer: Sequence[str] | None, forms: Forms = None) -> float:
    """1.0 if what was submitted equals the task's answer, or its family accepts it; else 0.0.

    `answer` holds the `repr`s of the values, `forms` their forms (`Trajectory.answer_forms`), where they have any.
    Nothing that is submitted makes it raise. Raises RewardError if the confined processes don't start, and
    DependencyError if the task's family needs a package that is missing.
    """
    return grade_many([task], [answer], [forms])[0]


def grade_many(
    tasks: Sequence[Task], answers: Sequence[Sequence[str] | None], forms: Sequence[Forms] | None = None
) -> list[float]:
    """`grade` for each pair, several at once."""
    return [verdict.grade for verdict in judge_many(tasks, answers, forms)]


def judge_many(
    tasks: Sequence[Task], answers: Sequence[Sequence[str] | None], forms: Sequence[Forms] | None = None
) -> list[Verdict]:
    """As `grade_many`, with a sentence on how each side was read and what came of it.

    An answer is right if it equals one of the task's references. The verdict is that on the first reference that it
    equals, or on the first reference if it equals none.
    """
    if forms is None:
        forms = [None] * len(answers)
    pairs: list[tuple[Task, Sequence[str] | None, Forms]] = []
    counts = []
    for task, answer, answer_forms in zip(tasks, answers, forms, strict=True):
        counts.append(len(task.references))
        for reference in task.references:
            pairs.append((replace(task, answer=reference), answer, answer_forms))
    remaining = iter(_judge_pairs(pairs))
    verdicts = []
    for count in counts:
        candidates = list(islice(remaining, count))
        verdicts.append(max(candidates, key=attrgetter("grade")))  # the first one of the best
    return verdicts


def _judge_pairs(pairs: Sequence[tuple[Task, Sequence[str] | None, Forms]]) -> list[Verdict]:
    results = [_at_once(*pair) for pair in pairs]
    questions = [result for result in results if not isinstance(result, Verdict)]
    known = {}
    open_questions = []
    for question in dict.fromkeys(questions):  # each once
        if question in _verdicts:
            known[question] = _verdicts[question]
        else:
            open_questions.append(question)
    fresh = {}
    if open_questions:
        calls = [_call(*question) for question in open_questions]
        replies = ask(calls, _search_paths(open_questions))
        for question, (verdict, reason) in zip(open_questions, replies, strict=True):
            fresh[question] = _verdict_of(question, verdict, reason)
    known |= fresh
    if len(_verdicts) > _REMEMBERED:
        _verdicts.clear()
    _verdicts.update(fresh)
    return [result if isinstance(result, Verdict) else known[result] for result in results]


def _search_paths(questions: Sequence[Question]) -> list[str]:
    """Folders that a confined process has to import from for the families in these questions."""
    families = {family for _, _, family, _ in questions if family}
    paths = []
    if any(KNOWN[family].needs_gym for family in families):
        paths.append(home())
    if any(":" in family for family in families):  # by import path: it is found where this process finds it
        paths += [str(Path(folder).resolve()) for folder in sys.path]
    return paths


def _verdict_of(question: Question, verdict: bool | None, reason: str) -> Verdict:
    """The verdict from a confined process's reply."""
    _, _, family, _ = question
    if verdict is None:
        reason = "judging the answer took too much time or memory"
    elif family and not reason:
        decision = "accepts" if verdict else "does not accept"
        reason = f"the family {family} {decision} it"
    return Verdict(float(verdict or 0), reason)


def unreadable(tasks: Iterable[Task]) -> list[Task]:
    """The tasks whose reference answers have to be read as mathematics or words, and can't be.

    Takes some ten milliseconds of a core for each answer that is not a number. Equal answers count once, so one call
    for all tasks costs least.
    """
    doubtful: dict[str, list[Task]] = {}
    for task in tasks:
        is_compared = task.metadata.get("graded_as") != "text" and not _decides(task)
        if not is_compared or task.answer in _readable:
            continue
        if not _NUMBER.fullmatch(task.answer.strip()):
            doubtful.setdefault(task.answer, []).append(task)
    calls: list[Call] = [(EQUAL, [answer, None]) for answer in doubtful]
    replies = ask(calls) if calls else []
    if len(_readable) > _REMEMBERED:
        _readable.clear()
    unreadable_tasks = []
    for (answer, tasks_with_answer), (is_readable, _) in zip(doubtful.items(), replies, strict=True):
        if is_readable:
            _readable.add(answer)
        else:
            unreadable_tasks += tasks_with_answer
    return unreadable_tasks


def _at_once(task: Task, answer: Sequence[str] | None, forms: Forms) -> Verdict | Question:
    """A verdict, or the question for a confined process."""
    if not answer or isinstance(answer, str):
        return Verdict(0.0, "no answer was submitted")
    if len(answer) > _MAX_VALUES or not all(isinstance(text, str) for text in answer):
        return Verdict(0.0, f"an answer is 1 to {_MAX_VALUES} texts")
    expected = task.answer.strip()
    most_chars = _MAX_CHARS + 4 * len(expected)
    too_long = Verdict(0.0, f"the answer is longer than {most_chars:,} characters")
    is_too_long = sum(map(len, answer)) > most_chars
    if task.metadata.get("graded_as") == "text":
        return too_long if is_too_long else _judge_text(answer, expected)
    if _decides(task):
        if is_too_long:
            return too_long
        return "", tuple(answer), str(task.family), tuple(task.metadata["operands"])
    if forms is not None and len(forms) == len(answer):
        # Each value is read from its form if it has one, else from its `repr`, and never from both: a session that
        # sends one answer as the form and another one as the `repr` has submitted one of them.
        answer = [text if form is None else form for text, form in zip(answer, forms, strict=True)]
    if len(answer) == 1:
        [text] = answer
        is_same = _same_number_or_text(text, expected)
        if is_same is not None:
            return Verdict(float(is_same), reading(text, expected, is_same))
    if not expected:
        return Verdict(0.0, "the task has no reference answer")
    is_text = len(answer) == 1 and answer[0][:1] in ("'", '"')
    if task.family in FAMILIES and not is_text:
        return Verdict(0.0, reading(", ".join(answer), expected, False))
    is_too_long = sum(map(len, answer)) > most_chars  # now of the forms, which may be longer than the `repr`s
    return too_long if is_too_long else (expected, tuple(answer), "", ())


def _judge_text(answer: Sequence[str], expected: str) -> Verdict:
    """The verdict on an answer to a task that is graded as text. Spaces and line breaks count as one space."""
    text = string_of(answer[0]) if len(answer) == 1 else None
    if text is None:
        return Verdict(0.0, "the answer is not a text, and the reference is one")
    is_same = text.split() == expected.split()
    return Verdict(float(is_same), reading(text, expected, is_same))


def _decides(task: Task) -> bool:
    """Whether the task's family decides what solves it. A user's own task may bear a family's name, and has no
    operands."""
    family = KNOWN.get(task.family or "")
    return family is not None and family.accepts is not None and "operands" in task.metadata


def _call(answer: str, submitted: tuple[str, ...], family: str, operands: tuple[int, ...]) -> Call:
    if not family:
        return EQUAL, [answer, submitted]
    if KNOWN[family].needs_gym:
        return "repl_rl.tasks.gym:accepts", [family.removeprefix(PREFIX), submitted, *operands]
    return "repl_rl.tasks.make:accepts", [family, submitted, operands]


def _same_number_or_text(submitted: str, expected: str) -> bool | None:
    """Whether a text is the expected answer; None if comparing numerals or equal texts is not enough to tell.

    An int, float or string is right if its numeral has exactly the expected value: "401", "401.0", "'401'". If the
    expected number is not an integer, a float may be off by float noise (0.1 + 0.2 is right for 0.3). The time is
    bounded by the expected answer's length, whatever was submitted.
    """
    is_short = len(submitted) <= len(expected) + _EXTRA_CHARS
    text = submitted.strip() if is_short else ""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    elif _NO_REPR.match(text):
        return False
    if not _NUMBER.fullmatch(expected):
        is_same_text = bool(expected) and text == expected
        return True if is_same_text else None
    if not is_short or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)  # exact at any length; int() refuses long numbers
    expected_number = Decimal(expected)
    if number == expected_number:
        return True
    if expected_number == expected_number.to_integral_value():
        return False
    return abs(number - expected_number) <= _FLOAT_NOISE * abs(expected_number)
