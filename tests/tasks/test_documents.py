"""Problems about long contexts: sized as named, repeatable, with answers that hold."""

import re
from typing import Any

import pytest

from repl_rl.tasks import environment_of, grade, make_tasks
from repl_rl.tasks.documents import DOCUMENT_FAMILIES, SIZES
from repl_rl.trajectory import Task

KINDS = ("needle", "count", "join")
COMPLAINT = re.compile(
    r"The \w+ broke after a week\.|I want my money back for this \w+\.|The \w+ came with a crack in it\."
)


def context_of(task: Task) -> Any:
    make = DOCUMENT_FAMILIES[task.family].context
    assert make is not None
    return make(*task.metadata["operands"])


def solved(task: Task) -> str:
    """The answer, found in the context by other means than it was made by."""
    context = context_of(task)
    if task.family.startswith("needle"):
        name = task.question.removeprefix("What is the access code of ").removesuffix("?")
        [code] = re.findall(rf"The access code of {name} is (\d+)\.", context)
        return str(code)
    if task.family.startswith("count"):
        return str(sum(COMPLAINT.fullmatch(remark) is not None for remark in context))
    town = task.question.removeprefix("How much have the people of ").removesuffix(" spent together?")
    people = {row["id"] for row in context if row["row"] == "person" and row["town"] == town}
    return str(sum(row["price"] for row in context if row["row"] == "purchase" and row["person"] in people))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_contexts_have_the_size_of_their_name_and_answers_hold(kind: str, size: str) -> None:
    count = 3 if size in ("1k", "10k") else 1
    for task in make_tasks(f"{kind}-{size}", count, seed=7, split="train"):
        context = context_of(task)
        chars = len("".join(context) if kind == "count" else str(context))
        assert chars == pytest.approx(SIZES[size], rel=0.15)
        assert type(context) is (str if kind == "needle" else list)
        assert solved(task) == task.answer
        assert (grade(task, (task.answer,)), grade(task, (repr(task.answer),))) == (1.0, 1.0)
        assert grade(task, (str(int(task.answer) + 1),)) == 0.0
        assert grade(task, None) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_answers_vary_and_contexts_repeat(kind: str) -> None:
    train = make_tasks(f"{kind}-1k", 60, seed=5, split="train")
    assert len({task.answer for task in train}) > (15 if kind == "count" else 50)
    assert [context_of(task) for task in train[:5]] == [context_of(task) for task in train[:5]]


def test_neither_context_nor_answer_is_in_the_question_or_in_the_metadata() -> None:
    for task in make_tasks([f"{kind}-1k" for kind in KINDS], 12, seed=1, split="train"):
        assert task.answer not in task.question
        assert list(task.metadata) == ["operands"]


def test_they_name_their_environment() -> None:
    assert environment_of(["needle-1k", "join-1m"]) == "rlm"
    assert {family.environment for family in DOCUMENT_FAMILIES.values()} == {"rlm"}
