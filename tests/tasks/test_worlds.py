"""Locks and mazes: solvable in as many lines as they say, their state out of reach, their values exact."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

import pytest

from repl_rl.config import BranchConfig, BudgetConfig, DialectConfig, parse_config
from repl_rl.dialect import make_dialect
from repl_rl.engine import load_vocabulary
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, Limits
from repl_rl.models.nano import NANO_PATH
from repl_rl.models.nano.sessions import make_long
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scripted import ScriptedPolicy
from repl_rl.rollout.setup import Extensions, RolloutSetup, environment_of
from repl_rl.tasks import grade, make_tasks
from repl_rl.tasks.make import KNOWN
from repl_rl.tasks.worlds import bughunt, lock, maze, table
from repl_rl.tasks.worlds.lock import JAMMED, Lock, LockWorld
from repl_rl.tasks.worlds.maze import MazeWorld
from repl_rl.tasks.worlds.world import LENGTHS, World, value
from repl_rl.tools.environments import environment_factory
from repl_rl.trajectory import Task, Trajectory

HUNTED = "[y for i in range(len(hidden)) for y in map(lambda a: globals()[f'f{i}'](*a), hidden[i])]"


def moves(task: Task) -> list[str]:
    """The lines that solve a task, without the last one."""
    if task.family.startswith("lock"):
        return [f" turn({digit})\n" for digit in task.answer.split()]
    if task.family.startswith("table"):
        return [f" {line}\n" for _, line in table.steps(*task.metadata["operands"])]
    if task.family.startswith("bughunt"):
        return [
            line
            for number, case in enumerate(bughunt.cases(*task.metadata["operands"]))
            for line in (
                f" print(sources[{number}])\n",
                f" exec(sources[{number}].replace({case.bug.wrong!r}, {case.bug.right!r}))"
                f"; f{number} = {case.bug.name}\n",
                f" [f{number}(*a) == right for a, right in tests[{number}]]\n",
            )
        ]
    return [f' go("{side}")\n' for side in task.answer.split()]


def typed(task: Task, lines: list[str], config: BranchConfig | None = None) -> list[Trajectory]:
    """The session, or the trees, in which these lines are typed."""
    vocabulary = load_vocabulary(str(NANO_PATH))
    world = KNOWN[task.family].environment
    setup = RolloutSetup(
        vocabulary,
        DialectConfig(),
        context_tokens=20_000,
        budget=BudgetConfig(lines=60, tokens=10_000, line_tokens=500),
        extensions=Extensions(environment=environment_factory(world)),
    )

    async def go() -> list[Trajectory]:
        async with KernelPool(4, Limits(line_s=60.0)) as pool:
            rollout = Rollout(ScriptedPolicy(vocabulary, "".join(lines)), pool, setup)
            return await rollout.many([task] * (config.group_size if config else 1), branch=config)

    return asyncio.run(go())


@pytest.mark.parametrize("family", ["lock-10", "maze-3"])
def test_what_nano_long_is_shown_reads_as_a_rollout(family: str) -> None:
    [record, *_] = (record for record in make_long(40, seed=1) if record.task.family == family)
    lines = [segment.text for segment in record.segments if segment.sampled]
    [trajectory] = typed(record.task, lines)
    shown = trajectory.prompt + "".join(line.text + line.output for line in trajectory.lines[: len(lines)])
    assert shown.removesuffix(">>>") == "".join(segment.text for segment in record.segments).removesuffix(">>>")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family.name, marks=[] if family.name.endswith("-10") else pytest.mark.slow)
        for module in (lock, maze, table, bughunt)
        for family in module.FAMILIES
    ],
)
def test_the_way_that_the_answer_tells_takes_as_many_lines_as_the_name_says(family: str) -> None:
    [task] = make_tasks(family, 1, seed=2, split="train")
    length = int(family.partition("-")[2])
    last = {"table": "sum(r['total'] for r in rows)", "bughunt": HUNTED}.get(family.partition("-")[0], "1")
    lines = [*moves(task), f" submit_final_answer({last})\n"]
    assert len(lines) <= length + (family == "bughunt-3")
    [solved] = typed(task, lines)
    assert len(solved.lines) == len(lines)
    assert not any(line.error_name for line in solved.lines)
    [given_up] = typed(task, [*lines[:-2], lines[-1]] if family[:4] in ("lock", "maze") else [lines[-1]])
    if family.startswith(("lock", "maze")):
        assert len(lines) == length
        assert (solved.environment_reward, given_up.environment_reward) == (1.0, 0.0)
        assert solved.lines[-2].shown in ("open\n", "out\n")
    else:
        assert (solved.environment_reward, given_up.environment_reward) == (None, None)
        assert (grade(task, solved.answer), grade(task, given_up.answer)) == (1.0, 0.0)
        if family.startswith("bughunt"):
            assert {line.shown for line in solved.lines[2::3]} == {"[True, True, True, True]\n"}


def test_splits_are_disjoint_and_a_seed_repeats_them() -> None:
    train, heldout = (make_tasks("maze-10", 200, seed=5, split=split) for split in ("train", "heldout"))  # type: ignore[arg-type]
    assert not {task.id for task in train} & {task.id for task in heldout}
    assert train == make_tasks("maze-10", 200, seed=5, split="train")
    assert len({task.answer for task in train}) > 150


def test_a_lock_jams_or_springs_back() -> None:
    world = next(
        LockWorld(number, 10)
        for number in range(100)
        if LockWorld(number, 10).dials[1][2] is None and LockWorld(number, 10).dials[0][2] is not None
    )
    for text, digit, _ in world.dials:
        assert eval(text) == digit
    right = [digit for _, digit, _ in world.dials]
    assert world.after(0, (right[0] + 1) % 10) == 0
    assert world.after(1, (right[1] + 1) % 10) == JAMMED
    assert world.after(JAMMED, right[0]) == JAMMED
    state = world.start
    for digit in right:
        state = world.after(state, digit)
    assert world.is_solved(state)
    assert world.after(state, 0) == state


def test_the_state_can_not_be_reached_from_the_session() -> None:
    [task] = make_tasks("lock-10", 1, seed=1, split="train")
    [session] = typed(
        task,
        [
            " turn.__self__\n",
            " [v for v in vars(turn).values() if hasattr(v, 'state')]\n",
            " import gc; [o for o in gc.get_objects() if type(o).__name__ in ('Lock', 'LockWorld')]\n",
            " turn(10)\n",
            " submit_final_answer(1)\n",
        ],
    )
    assert session.lines[0].error_name == "AttributeError"
    assert session.lines[2].shown.startswith("[]\n")
    assert "ValueError: 10 is not a digit" in session.lines[3].shown
    assert session.environment_reward == 0.0


def sure(world: World, right: float) -> Any:
    """A policy that does what is right so often, and otherwise anything else."""

    def policy(state: Any) -> dict[Any, float]:
        if isinstance(world, LockWorld):
            digit = world.dials[state][1]
            return {other: right if other == digit else (1 - right) / 9 for other in range(10)}
        assert isinstance(world, MazeWorld)
        return dict.fromkeys("nesw", 1 / 4)

    return policy


@pytest.mark.parametrize("world", [LockWorld(3, 3), LockWorld(8, 10), MazeWorld(1, 3), MazeWorld(2, 10)])
def test_values_are_what_many_walks_come_to(world: Any) -> None:
    policy, rng, lines, walks = sure(world, 0.8), Random(7), 14 if isinstance(world, LockWorld) else 80, 5_000
    expected = value(world, world.start, lines, policy)
    solved = 0
    for _ in range(walks):
        state = world.start
        for _ in range(lines):
            if world.is_solved(state) or world.is_over(state):
                break
            options = policy(state)
            state = world.after(state, rng.choices(list(options), list(options.values()))[0])
        solved += world.is_solved(state)
    assert 0.01 < expected < 0.99
    assert solved / walks == pytest.approx(expected, abs=4 * (expected * (1 - expected) / walks) ** 0.5)


def test_values_by_hand() -> None:
    """Two dials of which the second is caught: right at once with p each, and the first one can be tried again."""
    number = next(
        n for n in range(100) if LockWorld(n, 3).dials[0][2] is not None and LockWorld(n, 3).dials[1][2] is None
    )
    world, p = LockWorld(number, 3), 0.8
    policy = sure(world, p)
    assert value(world, 0, 1, policy) == 0
    assert value(world, 0, 2, policy) == pytest.approx(p * p)
    assert value(world, 0, 3, policy) == pytest.approx(p * p + (1 - p) * p * p)
    assert value(world, 2, 0, policy) == 1
    assert value(world, JAMMED, 9, policy) == 0
    assert value(world, 0, 3, lambda state: {}) == 0


@pytest.mark.parametrize("length", LENGTHS)
def test_a_walk_that_knows_the_way_is_sure_of_it(length: int) -> None:
    lock = LockWorld(length, length)
    assert value(lock, 0, length - 1, sure(lock, 1.0)) == 1
    maze, state, way = MazeWorld(length, length), None, {}
    state = maze.start
    for side in maze.way():
        way[state] = {side: 1.0}
        state = maze.after(state, side)
    assert value(maze, maze.start, length - 1, way.__getitem__) == 1


def test_worked_sessions_of_locks_are_what_a_lock_shows() -> None:
    question = make_tasks("lock-10", 1, seed=0, split="train")[0].question
    text = make_dialect(DialectConfig(name="prompts/locks.yaml", examples=3)).opening()
    heading, *sessions = text.split(f">>> # {question}\n")
    assert heading == ""
    assert len(sessions) == 3
    for session in sessions:
        first, *shown = session.splitlines()
        sums = re.findall(r"dial \d of \d: (.*)", session)
        world = LockWorld(0, len(sums) + 1)
        world.__dict__["dials"] = tuple((each, eval(each), None) for each in sums)  # as if they had been drawn
        opened = Lock()
        opened.world, opened.state = world, world.start
        assert first == f">>> # {opened.observe()}"
        for typed_line, answer in zip(shown[:-1:2], shown[1:-1:2], strict=True):
            eval(typed_line.removeprefix(">>> "), {"turn": opened.turn})
            assert answer == opened.observe()
        assert world.is_solved(opened.state)
        assert shown[-1] == ">>> submit_final_answer(1)"


def test_worlds_are_forked_with_their_sessions() -> None:
    """A scripted policy types the same lines in every branch, and each walks through a world of its own."""
    [task] = make_tasks("lock-3", 1, seed=1, split="train")
    world = LockWorld(*task.metadata["operands"])
    first, second = map(int, task.answer.split())
    wrong = next(digit for digit in range(10) if digit not in (first, second))
    config = BranchConfig(roots=1, branches=3, within=2)
    made = typed(task, [f" turn({first})\n", f" turn({wrong})\n", " submit_final_answer(1)\n"], config)
    assert [each.branch.by for each in made if each.branch is not None] == ["fork", "fork"]
    assert made[0].lines[0].shown.startswith("dial 2 of 2")
    for branch in made[1:]:  # the script begins again in it: its first line turns the second dial
        state = world.after(1, first)
        assert branch.lines[0].shown.startswith("jammed" if state == JAMMED else f"dial {state + 1} of 2")
        assert branch.environment_reward == 0.0


def test_a_family_brings_its_environment_and_two_can_not_be_had_at_once() -> None:
    config = parse_config({"tasks": {"families": ["lock-3", "lock-10"]}})
    assert environment_of(config) == "repl_rl.tasks.worlds.lock:Lock"
    assert environment_of(parse_config({})) is None
    own = parse_config({"environment": "mine:World", "tasks": {"families": ["lock-3"]}})
    assert environment_of(own) == "mine:World"
    mixed = parse_config({"tasks": {"families": ["lock-3", "gcd"]}})
    with pytest.raises(ConfigError, match=r"lock-3 needs repl_rl.tasks.worlds.lock:Lock, gcd needs no environment"):
        environment_of(mixed)
