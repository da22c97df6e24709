"""The example's puzzles of reasoning-gym: solved by its own solutions in real kernels, scored by its own scorers."""

import contextlib
import copy
import importlib
import re
from collections import deque
from pathlib import Path
from typing import Any

import puzzles
import pytest
import yaml
from scripted import rollout_of
from vocabularies import nano

from repl_rl.config import BranchConfig, parse_config
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.scripted import ScriptedPolicy
from repl_rl.run.training import check_inputs
from repl_rl.tasks import grade, load_tasks, make_tasks
from repl_rl.tasks.make import family_of
from repl_rl.trajectory import Task, Trajectory

FAMILIES = [f"puzzles:{kind.name}-{length}" for kind in puzzles.KINDS for length in kind.arguments]
TENS = [name for name in FAMILIES if name.endswith("-10")]
NO_MOVES = yaml.safe_load(Path(__file__).with_name("gym_forms.yaml").read_text(encoding="utf-8"))["no moves"]


async def typed(task: Task, lines: list[str], config: BranchConfig | None = None) -> list[Trajectory]:
    """The session, or the trees, in which these lines are typed."""
    given: dict[str, Any] = {"context_tokens": 20_000, "budget": {"lines": 60, "tokens": 10_000, "line_tokens": 500}}
    given["environment"] = family_of(task.family).environment
    async with KernelPool(4, Limits(line_s=60.0)) as pool:
        rollout = rollout_of(ScriptedPolicy(nano(), "".join(lines)), pool, **given)
        return await rollout.many([task] * (config.group_size if config else 1), branch=config)


def puzzle_of(family: str) -> puzzles.Puzzle:
    puzzle: puzzles.Puzzle = getattr(puzzles, str(family_of(family).environment).partition(":")[2])()
    return puzzle


def solution(task: Task) -> list[str]:
    """The lines that make reasoning-gym's own moves."""
    kind = task.family.removeprefix("puzzles:").rpartition("-")[0]
    if kind == "quantum_lock":
        return [f' press("{button}")\n' for button in task.answer.split(" → ")]
    if kind == "jugs":
        made = (re.fullmatch(r"(\w+) (\w)(?:->(\w))?", move) for move in eval(task.answer))
        return [
            f' {move[1]}("{move[2]}"' + (f', "{move[3]}")\n' if move[3] else ")\n") for move in made if move is not None
        ]
    if kind == "tower_of_hanoi":
        return [" move({1}, {2})\n".format(*re.findall(r"\d+", move)) for move in task.answer.splitlines()]
    if kind == "sokoban":
        return [f' go("{step}")\n' for step in task.answer]
    return [f' slide("{car}", {cells})\n' for car, cells in way_out(task)]


def way_out(task: Task) -> list[tuple[str, int]]:
    """The shortest way out of a traffic jam, for which reasoning-gym has no solution. Breadth first."""
    entry = puzzles.made("rush_hour", *task.metadata["operands"])
    start = importlib.import_module("reasoning_gym.games.rush_hour").Board(entry["metadata"]["board_config"])
    waiting = deque([(start, list[tuple[str, int]]())])
    seen = {str(start)}
    while waiting:
        board, moves = waiting.popleft()
        if board.solved:
            return moves
        for car in sorted({*str(board)} - {".", "x"}):
            for cells in (*range(-4, 0), *range(1, 5)):
                after = copy.deepcopy(board)
                after.move(car, cells)
                if str(after) not in seen:
                    seen.add(str(after))
                    waiting.append((after, [*moves, (car, cells)]))
    raise AssertionError("there is no way out")


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("family", [name for name in FAMILIES if not re.search("rush_hour-[24]0", name)])
async def test_its_own_solution_opens_a_puzzle_within_the_length(family: str) -> None:
    [task] = make_tasks(family, 1, seed=2, split="train")
    lines = [*solution(task), " submit_final_answer(1)\n"]
    assert len(lines) <= int(family.rpartition("-")[2])
    [trajectory] = await typed(task, lines)
    assert len(trajectory.lines) == len(lines)
    assert trajectory.environment_reward == 1.0
    assert not [line for line in trajectory.lines if line.error_name]
    [shorter] = await typed(task, [*lines[: len(lines) // 2 - 1], lines[-1]])
    assert shorter.environment_reward == 0.0
    assert grade(task, ("1",)) == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("family", TENS)
async def test_a_puzzle_forks_with_its_session(family: str) -> None:
    [task] = make_tasks(family, 1, seed=3, split="train")
    first, *others = solution(task)
    root, *branches = await typed(
        task, [first, *others, " submit_final_answer(1)\n"], BranchConfig(roots=1, branches=3, within=2)
    )
    assert root.environment_reward == 1.0
    puzzle = puzzle_of(family)
    tools = puzzle.reset(task)
    for line in (first, first, *others):  # the script begins again in a branch
        with contextlib.suppress(ValueError):
            eval(line.strip(), dict(tools))
    for branch in branches:
        assert branch.branch is not None
        assert (branch.branch.by, branch.branch.line) == ("fork", 1)
        assert branch.lines[-2].shown.endswith(f"{puzzle.observe()}\n")
        assert branch.environment_reward == puzzle.reward(branch)


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize(("family", "calls"), NO_MOVES.items())
def test_what_is_no_move_says_so_and_changes_nothing(family: str, calls: list[list[Any]]) -> None:
    [task] = make_tasks(f"puzzles:{family}", 1, seed=4, split="heldout")
    puzzle = puzzle_of(task.family)
    tools = puzzle.reset(task)
    before = puzzle.observe()
    for name, *arguments in calls:
        with pytest.raises(ValueError):
            tools[name](*arguments)
    assert puzzle.observe() == before
    assert puzzle.moves == []


def test_a_number_that_is_doubled_for_ever_stays_short() -> None:
    lock, doubling = puzzles.QuantumLock(), {"name": "A", "type": "multiply", "value": 2, "active_state": "any"}
    lock.moves = []
    press = lock.begin({"buttons": [doubling], "initial_value": -3, "initial_state": "red"})["press"]
    for _ in range(15_200):
        with contextlib.suppress(ValueError):
            press("A")
    assert len(lock.observe()) < 150
    assert len(lock.moves) < 400


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("family", TENS)
def test_a_config_needs_the_name_of_the_puzzles_alone(family: str) -> None:
    """Their answers need not be readable: the answer of `jugs` is a list of moves, and `rush_hour` has none."""
    few = {"eval": {"problems": 1}, "train": {"prompts_per_step": 4}}  # there are six of `tower_of_hanoi`
    inputs = check_inputs(parse_config({"tasks": {"families": family, "train": 4}, **few}))
    assert (len(inputs.train_tasks), len(inputs.heldout_tasks)) == (4, 1)
    assert inputs.checked.extensions.environment is type(puzzle_of(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_name_that_they_had_in_the_package_says_where_they_are(family: str) -> None:
    name = family.removeprefix("puzzles:")
    message = rf"'{name}' is now part of an example .*copy notebooks/puzzles\.py .*, and write {family}$"
    with pytest.raises(ConfigError, match=message):
        check_inputs(parse_config({"tasks": {"families": ["gcd", name]}}))


@pytest.mark.parametrize(("family", "message"), [("puzzles:jugs-5", "jugs comes in lengths 3, 10, 20, 40")])
def test_a_length_that_there_is_not_is_refused(family: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tasks(parse_config({"tasks": {"families": family}}).tasks, "train", 0, 1)
