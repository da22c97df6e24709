"""No held-out problem is trained on: what a session can find out about the problems of both sides, compared as text."""

import re
from random import Random
from typing import Any

import puzzles
import pytest

from repl_rl.config import parse_config
from repl_rl.errors import ConfigError
from repl_rl.run.training import check_inputs
from repl_rl.tasks import Family, make_tasks, split_of
from repl_rl.tasks.documents import DOCUMENT_FAMILIES
from repl_rl.tasks.families import EASY_FAMILIES, FAMILIES
from repl_rl.tasks.make import KNOWN, family_of
from repl_rl.trajectory import Task
from repl_rl.utils.import_path import imported
from studies.branching.worlds.bughunt import cases
from studies.branching.worlds.lock import LockWorld
from studies.branching.worlds.maze import MazeWorld
from studies.branching.worlds.table import made_rows

NUMBERS = FAMILIES | EASY_FAMILIES
WORLDS = [
    f"studies.branching.worlds.{name}:{name}-{n}" for name in ("lock", "maze", "table", "bughunt") for n in (3, 10)
]
DRAWS = 5_000
PUZZLES = [f"puzzles:{kind.name}-{length}" for kind in puzzles.KINDS for length in kind.arguments]
FEWER = {"puzzles:quantum_lock-10": 300, "puzzles:quantum_lock-20": 300}
FEWER |= {"puzzles:jugs-40": 1_500, "puzzles:sokoban-40": 1_500}
FEWER |= {name: 100 if name.endswith("1m") else 1_000 for name in DOCUMENT_FAMILIES}
"""Draws of families that take up to 0.8 s to make a problem."""
HIDDEN = {
    "lock": lambda number, length: LockWorld(number, length).dials,
    "maze": lambda number, length: MazeWorld(number, length).content,
    "table": made_rows,
    "bughunt": cases,
}
"""What worlds hold that isn't shown when a session begins."""


def _content(name: str, family: Family, operands: tuple[int, ...]) -> str:
    """A problem's question, its context, and the world that it is in."""
    if name in NUMBERS:  # two phrasings are one problem, and so are two orders
        return " ".join(sorted(map(str, operands)))
    said: list[Any] = [family.phrasings[0].format(*family.present(*operands))]
    if family.context is not None:
        said.append(family.context(*operands))
    elif name in WORLDS:
        said.append(HIDDEN[re.split(r"[:-]", name)[1]](*operands))
    elif family.environment is not None:
        environment = imported(family.environment, "", "")()
        environment.reset(Task("t", "", "", name, {"operands": list(operands)}))
        said.append(environment.observe())
    return str(said)


def _sides(name: str, draws: int) -> tuple[set[int], set[int]]:
    """Hashes of the contents that were drawn, of those to train on and of those held out."""
    family, rng = family_of(name), Random(f"draws of {name}")
    train, heldout = set[int](), set[int]()
    for _ in range(draws):
        operands = family.draw(rng)
        side = heldout if split_of(name, operands) == "heldout" else train
        side.add(hash(_content(name, family, operands)))
    return train, heldout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "draws"),
    [
        *(pytest.param(name, DRAWS, marks=pytest.mark.more) for name in NUMBERS),
        pytest.param(WORLDS[2], 300, marks=pytest.mark.more),
        *(
            pytest.param(name, FEWER.get(name, DRAWS), marks=pytest.mark.slow)
            for name in [*KNOWN, *WORLDS, *PUZZLES]
            if name not in NUMBERS
        ),
    ],
)
def test_no_problem_is_on_both_sides(name: str, draws: int, request: pytest.FixtureRequest) -> None:
    if name not in NUMBERS and name not in WORLDS:
        request.getfixturevalue("reasoning_gym")
    train, heldout = _sides(name, draws)
    assert not train & heldout
    assert train
    assert heldout  # the smallest families have six problems


@pytest.mark.parametrize("name", ["coins", "later", "said", "piles", "rests"])
def test_a_family_that_says_nothing_is_told_apart_by_content_too(name: str, own_families: None) -> None:
    """It draws a number of 10**9, of which it makes one of 40 problems."""
    name = f"own_families:{name}"
    train = make_tasks(name, 2048, 3, "train")
    made = {task.metadata["operands"][0] % 40 for task in train}
    assert len(made) == len(train) < 40
    held = 40 - len(made)
    heldout = make_tasks(name, held, 4, "heldout")
    assert {task.metadata["operands"][0] % 40 for task in heldout} == set(range(40)) - made
    with pytest.raises(
        ConfigError,
        match=rf"{name}' has no heldout problem left after {held}; ask for fewer .*: {held + 1} were asked for",
    ):
        make_tasks(name, held + 1, 5, "heldout")


def test_the_others_go_on_when_a_family_has_run_out(own_families: None) -> None:
    tasks = make_tasks(["own_families:rests", "gcd"], 200, 0, "train")
    rests = sum(task.family == "own_families:rests" for task in tasks)
    assert (len(tasks), len({task.id for task in tasks})) == (200, 200)
    assert 30 < rests < 40
    assert make_tasks(["own_families:rests", "gcd"], 90, 0, "train") == tasks[:90]


@pytest.mark.parametrize(
    ("name", "message"),
    [("chance", "begins differently each time"), ("needs", r"raised OSError: no session .*identity")],
)
def test_an_environment_that_does_not_say_what_its_problems_are_is_refused(
    name: str, message: str, own_families: None
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_tasks(f"own_families:{name}", 1, 0, "train")


def test_fewer_problems_than_a_step_takes_are_refused(own_families: None) -> None:
    """TRL would end without a step. The same for a data set, and for a small `tasks.train`."""
    few = {"tasks": {"families": "own_families:rests"}, "eval": {"problems": 1}, "train": {"prompts_per_step": 64}}
    with pytest.raises(ConfigError, match=r"to train on, and a step takes train\.prompts_per_step 64"):
        check_inputs(parse_config(few))
