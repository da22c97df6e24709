"""Task sets: seeded, balanced over families, and split so that no held-out problem is ever trained on.

A problem is its content (`identity`); the phrasing doesn't count. A stable hash of the content decides which split the
problem belongs to, so train and held-out sets are disjoint for any two seeds.

A family of your own is named by its import path: `package.module:NAME` is a `Family` of that module, and
`package.module:NAME-10` is the `Family` that the module's function NAME returns for 10. Its tasks bear that path as
their family; the `name` of the `Family` is in their ids and decides their split.
"""

import re
from collections.abc import Sequence
from random import Random
from string import Formatter
from typing import Any, get_args

from repl_rl.errors import ConfigError
from repl_rl.tasks.documents import DOCUMENT_FAMILIES
from repl_rl.tasks.families import EASY_FAMILIES, FAMILIES, Family
from repl_rl.tasks.gym import GYM_FAMILIES
from repl_rl.tasks.identity import Split, drawn_operands, identity_of, question_of, split_by
from repl_rl.tasks.proofs import PROOF_FAMILIES
from repl_rl.tasks.symbolic import SYMBOLIC_FAMILIES
from repl_rl.trajectory import Task
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import nearest, shown
from repl_rl.utils.user_code import Seam, boundary, called, failure

KNOWN: dict[str, Family] = (
    FAMILIES | EASY_FAMILIES | SYMBOLIC_FAMILIES | DOCUMENT_FAMILIES | PROOF_FAMILIES | GYM_FAMILIES
)
"""The families that ship, and those that were named by import path in this process."""
_PUZZLE = re.compile(r"(?:quantum_lock|jugs|tower_of_hanoi|sokoban|rush_hour)-\d+")
"""Families that an earlier version shipped."""
_MAX_DRAWS = 1_000
"""A family has run out of problems if so many draws in a row bring no new one."""


def make_tasks(families: Sequence[str] | str | None, count: int, seed: int, split: Split) -> list[Task]:
    """`count` different problems, with the families taking turns; None means the number families.

    With the same seed, a longer list begins with the shorter one. Families that have run out of problems to train on
    leave their turns to the others, and the list is shorter once all have. Raises ConfigError for an unknown family or
    split, an empty task set, and a family that has fewer held-out problems than are asked for.
    """
    if count < 1:
        raise ConfigError(f"empty task set: the number of tasks is {count}, it has to be at least 1")
    if split not in get_args(Split):
        raise ConfigError(f"unknown split {split!r}; the splits are {', '.join(get_args(Split))}")
    if families is None:
        families = list(FAMILIES)
    elif isinstance(families, str):
        families = [families]
    names = list(dict.fromkeys(families))
    if not names:
        raise ConfigError("empty task set: the list of families is empty")
    remaining = {name: family_of(name) for name in names}
    rng = Random(f"{seed}/{split}")
    seen: set[bytes] = set()
    tasks: list[Task] = []
    while remaining and len(tasks) < count:
        turn = list(remaining.items())[: count - len(tasks)]
        for name, family in turn:
            task = _new_task(name, family, rng, split, seen)
            if task is not None:
                tasks.append(task)
                continue
            is_only_family = not tasks and len(remaining) == 1
            if split == "heldout" or is_only_family:
                task_count = sum(task.family == name for task in tasks)
                setting = "eval.problems" if split == "heldout" else "tasks.train"
                families_in_turn = f"{len(names)} {'family' if len(names) == 1 else 'families'}"
                raise ConfigError(
                    f"family {name!r} has no {split} problem left after {task_count}; ask for fewer tasks or more "
                    f"families: {count} were asked for ({setting}), of {families_in_turn} in turn, and {_MAX_DRAWS:,} "
                    "further draws brought no new one"
                )
            del remaining[name]
    return tasks


def family_of(name: str) -> Family:
    """The family that `tasks.families` names: a shipped one, or one of your own by import path.

    Raises ConfigError if there is none, with the nearest names, or with what the path leads to.
    """
    if name not in KNOWN and ":" in name:
        KNOWN[name] = _imported_family(name)
    if name in KNOWN:
        return KNOWN[name]
    if _PUZZLE.fullmatch(name):
        raise ConfigError(
            f"task family {name!r} is now part of an example of environments: copy notebooks/puzzles.py of repl_rl's "
            f"repository into the folder of this config, and write puzzles:{name}"
        )
    hint = nearest(name, KNOWN)
    if "," in name:
        hint = f"several are written as a list, [{', '.join(part.strip() for part in name.split(','))}]"
    raise ConfigError(f"unknown task family {name!r}; {hint} (one of your own is named as package.module:NAME)")


def _imported_family(path: str) -> Family:
    base, dash, number = path.rpartition("-")
    is_function = bool(dash) and number.isdecimal()
    import_path = base if is_function else path
    family: Any = imported(import_path, "tasks.families:", "package.module:NAME or package.module:NAME-10")
    if is_function:
        maker = family
        where = f"of {path!r}"
        with boundary(Seam.FAMILY_MAKER, maker, where=where):
            family = maker(int(number))
        if not isinstance(family, Family):
            raise failure(Seam.FAMILY_MAKER, maker, f"returned {shown(family)}", where=where)
    if not isinstance(family, Family):
        raise ConfigError(f"tasks.families: {path!r} is {type(family).__name__}, not a repl_rl.tasks.Family")
    phrasings: Any = family.phrasings
    is_tuple = isinstance(phrasings, tuple | list) and len(phrasings) > 0
    if not is_tuple or not all(isinstance(phrasing, str) for phrasing in phrasings):
        raise ConfigError(
            f"tasks.families: the phrasings of {path!r} are {shown(phrasings)}; give a tuple of texts, of one too: "
            '("What is {0} times {1}?",)'
        )
    for phrasing in phrasings:
        try:
            list(Formatter().parse(phrasing))
        except ValueError as error:
            raise ConfigError(
                f"tasks.families: phrasing {phrasing!r} of {path!r} can't be read ({error}); {{0}}, {{1}}, ... stand "
                "for values, and braces themselves are written twice"
            ) from error
    return family


def environment_of(families: Sequence[str] | None) -> str | None:
    """The name or import path of the environment that these families are solved in; None without one.

    Raises ConfigError if they need different ones, and for an import path that leads to no family.
    """
    environments: dict[str, str | None] = {}
    for name in families or ():
        if name in KNOWN or ":" in name:
            environments[name] = family_of(name).environment
    if len(set(environments.values())) > 1:
        needs = [f"{name} needs {environment or 'no environment'}" for name, environment in environments.items()]
        raise ConfigError(f"tasks.families {list(environments)} can't be had together: {', '.join(needs)}")
    return next(iter(environments.values()), None)


def split_of(family: str, operands: Sequence[int]) -> Split:
    """The split that a problem belongs to, for every seed."""
    return split_by(identity_of(family, KNOWN.get(family), operands))


def accepts(family: str, submitted: Sequence[str], operands: Sequence[int]) -> bool:
    """Whether the family accepts the `repr`s that were submitted for the problem with these operands."""
    decide = family_of(family).accepts
    return decide is not None and decide(submitted, *operands)


def _new_task(name: str, family: Family, rng: Random, split: Split, seen: set[bytes]) -> Task | None:
    """A new problem, whose identity is added to `seen`. None if the family has none left."""
    for _ in range(_MAX_DRAWS):
        operands = drawn_operands(family, rng)
        identity = identity_of(name, family, operands)
        if identity in seen or split_by(identity) != split:
            continue
        seen.add(identity)
        phrasing = rng.choice(family.phrasings)
        return Task(
            id="-".join([family.name, split, *map(str, operands)]),
            question=question_of(family, phrasing, operands),
            answer=str(called(Seam.FAMILY, family.solve, *operands)),
            family=name,
            metadata={"operands": list(operands)},
        )
    return None
