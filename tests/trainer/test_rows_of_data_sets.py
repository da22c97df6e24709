"""A `Dataset` given to the trainer: its rows are read, or refused with their numbers, as those of files are."""

from typing import Any

import pytest
from datasets import Dataset

from repl_rl import Task
from repl_rl.errors import ConfigError
from repl_rl.tasks import grade
from repl_rl.trainer.rows import as_dataset, task_of
from repl_rl.trajectory import Message

QUESTION = "What is 212 * 2?"
CHAT = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": QUESTION}]


def row(answer: Any, prompt: Any = QUESTION) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer}


@pytest.mark.parametrize(
    ("answer", "references"),
    [
        (424, ("424",)),
        ("424", ("424",)),
        (" 1,250 ", ("1250",)),
        (["424", "424.0"], ("424", "424.0")),
        (["424"], ("424",)),
        ({"value": 424, "unit": "cm"}, ("424 cm",)),
        ({"value": "424", "unit": None}, ("424",)),
        (True, ("True",)),
        ("212*2=<<212*2=424>>424\n#### 424", ("424",)),
        ("one #### 1\ntwo #### 1,424", ("1424",)),
        ([{"role": "assistant", "content": "It is\n#### 424"}], ("424",)),
    ],
)
def test_answers_are_read_as_those_of_files_are(answer: Any, references: tuple[str, ...]) -> None:
    [made] = as_dataset(Dataset.from_list([row(answer)]))
    task = task_of(made)
    assert task.references == references
    assert [grade(task, (reference,)) for reference in references] == [1.0] * len(references)
    assert made["answer"] == answer, "reward functions get what the data set holds"


def test_all_rows_that_cannot_be_read_are_listed_with_their_numbers() -> None:
    answers = ["1", None, "", "nan", "all $x$ with $\\mho(x)=1++$", "#### ", "2"]
    with pytest.raises(ConfigError) as caught:
        as_dataset(Dataset.from_list([row(answer) for answer in answers]))
    first, *listed = str(caught.value).split("\n  ")
    assert first == (
        "5 problems can't be graded; mend or drop them (dataset.map, dataset.filter), or give a grader or reward "
        "functions, which need no answer:"
    )
    assert listed == [
        "row 1: column answer: None is neither text nor a number",
        "row 2: column answer: it is empty",
        "row 3: the reference answer 'nan' can't be read as mathematics or words",
        "row 4: the reference answer 'all $x$ with $\\\\mho(x)=1++$' can't be read as mathematics or words",
        "row 5: column answer: nothing follows its last ####",
    ]
    for answer, says in (
        (float("nan"), "nan is neither text nor a number"),
        ({"style": "rule", "ground_truth": "1"}, "{'style': 'rule', 'ground_truth': '1'} is neither text nor a number"),
        (["424", None], "None is neither text nor a number"),
    ):
        with pytest.raises(ConfigError, match=f"row 0: column answer: {says}"):
            as_dataset(Dataset.from_list([row(answer)]))


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (None, "None is neither text nor a list of messages"),
        (["What is 1?"], r"\['What is 1\?'\] is neither text nor a list of messages"),
        ([{"role": "assistant", "content": "Hello"}], "no message of it is the user's"),
        ([*CHAT, {"role": "assistant", "content": "<think>"}], "its last message is the assistant's; a prompt ends"),
        ([*CHAT, {"role": "tool", "content": "7"}], "message 3 has the role 'tool'; system, user, assistant are read"),
        ([{"from": "human", "value": QUESTION}], "message 1 holds from, value; a message has role and content"),
    ],
)
@pytest.mark.parametrize("graded", [True, False])
def test_a_prompt_that_cannot_be_read_is_refused(prompt: Any, says: str, graded: bool) -> None:
    with pytest.raises(ConfigError, match=f"row 0: column prompt: {says}"):
        as_dataset(Dataset.from_list([row("1", prompt)]), graded)


def test_chats_ids_and_other_columns() -> None:
    rows = [{**row("424", CHAT), "id": id, "level": 2} for id in (7, 7, None)]
    tasks = [task_of(made) for made in as_dataset(Dataset.from_list(rows))]
    assert [task.id for task in tasks] == ["7", "7-2", "row 2"]
    assert {task.question for task in tasks} == {QUESTION}
    assert [(message.role, message.content) for message in tasks[0].history] == [("system", "You calculate.")]
    assert tasks[0].metadata == {"id": 7, "level": 2}
    [named] = as_dataset(Dataset.from_list([{**row("1"), "id": 7, "task_id": "mine"}]))
    assert task_of(named).id == "mine"


def test_tasks_with_and_without_earlier_turns_are_rows_of_one_set() -> None:
    tasks = [
        Task("a", QUESTION, "424", history=(Message("system", "You calculate."), Message("user", "Hello"))),
        Task("b", QUESTION, "424"),
    ]
    rows = as_dataset(task for task in tasks)
    assert [task_of(made) for made in rows] == tasks


def test_a_task_with_half_of_a_character_is_refused_by_its_id() -> None:
    for task in (
        Task("cut", "Which emoji is \ud83d?", "424"),
        Task("cut", QUESTION, "424", history=(Message("system", "\ud83d"),)),
    ):
        with pytest.raises(ConfigError, match=r"task 'cut' holds half of a character .* in '.*\\ud83d"):
            as_dataset([Task("a", QUESTION, "424"), task])


def test_without_the_grader_answers_may_be_anything() -> None:
    answers = [None, "", "free text ++ $", "x" * 9]
    made = as_dataset(Dataset.from_list([row(answer) for answer in answers]), graded=False)
    assert [task_of(one).answer for one in made] == ["", "", "free text ++ $", "x" * 9]


def test_tasks_of_one_id_are_told_apart() -> None:
    several = [Task("t", "1 + 1", "2"), Task("t", "1 + 2", "3"), Task("u", "?", "4"), Task("t", "1 + 1", "2")]
    assert as_dataset(several)["task_id"][:] == ["t", "t-2", "u", "t-3"]


def test_tasks_are_checked_too_and_may_have_no_answer() -> None:
    assert as_dataset([Task("t", "?", "")]).num_rows == 1
    with pytest.raises(ConfigError, match="task 'odd': the reference answer 'nan' can't be read"):
        as_dataset([Task("t", "?", "1"), Task("odd", "?", "nan")])
    assert as_dataset([Task("odd", "?", "nan")], graded=False).num_rows == 1
