"""Each study runs by its command, at its smallest real size; and the mathematics that their results rest on."""

import json
import subprocess
import sys
from itertools import pairwise, product
from math import comb, factorial
from pathlib import Path

import numpy as np
import pytest
import yaml

from repl_rl.config import load_config
from repl_rl.rollout.scripted import type_session
from repl_rl.tasks import environment_of, grade, make_tasks
from repl_rl.trajectory import Task
from studies.branching.hidden_value import RIDGES, Array, HiddenValue, features
from studies.branching.policy import lock_habits
from studies.branching.study import ARMS, CONFIG, exact_advantages, overrides
from studies.branching.worlds import bughunt, table
from studies.branching.worlds.lock import LockWorld
from studies.branching.worlds.world import LENGTHS
from studies.capacity import page
from studies.capacity.simulation import Fleet, Rates, Work, simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMANDS = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_study_runs_by_its_command(name: str, tmp_path: Path) -> None:
    file, flags = tmp_path / "report.json", COMMANDS[name]["flags"].replace("RUNS", str(tmp_path / "runs"))
    run(f"studies.{name}", *flags.split(), "--json", str(file))
    report = json.loads(file.read_text())
    names = {"report": report, "rows": lambda key: [row[key] for row in report["rows"]], "ARMS": ARMS}
    assert eval(COMMANDS[name]["holds"], names), COMMANDS[name]["holds"]


def test_trl_rolls_out_with_an_llm_of_its_own() -> None:
    run("studies.trl_tools", "--trajectories", "4", "--own", "1")


@pytest.mark.parametrize("name", ["branching.build", "nano"])
def test_a_model_is_built_by_its_command(name: str, tmp_path: Path) -> None:
    run(f"studies.{name}", "--out", str(tmp_path), "--steps", "1", "--sessions", "40")
    assert (tmp_path / "model.safetensors").is_file()


def test_configs_of_studies_train(tmp_path: Path) -> None:
    flags = ("--set", "train.steps=1", "--set", "eval.problems=4", "--set", "train.prompts_per_step=1")
    for name in ("locks", "contrast"):
        run("repl_rl.cli", "train", f"studies/branching/{name}.yaml", *flags, "--runs", str(tmp_path))
    run("repl_rl.cli", "train", "studies/branching/gemma-locks.yaml", "--dry-run", *flags)


def test_arms_differ_in_trees_and_credit_alone() -> None:
    for length in LENGTHS:
        configs = {arm: load_config(CONFIG, overrides(length, arm, 0, 20)) for arm in ARMS}
        for arm, config in configs.items():
            assert (config.branch is None) == (arm in ("rloo", "gigpo", "critic"))
            assert config.train.group_size == (8 if config.branch is None else 12)
            same = {"name": "", "branch": None, "credit": config.credit.__class__(), "train": None}
            assert config.model_copy(update=same) == configs["rloo"].model_copy(update=same)


def solution(world: str, task: Task) -> list[str]:
    """The lines that solve a task, without the last one."""
    if world == "table":
        return [f" {line}\n" for _, line in table.steps(*task.metadata["operands"])]
    if world == "bughunt":
        return [
            f" exec(sources[{number}].replace({case.bug.wrong!r}, {case.bug.right!r})); f{number} = {case.bug.name}\n"
            for number, case in enumerate(bughunt.cases(*task.metadata["operands"]))
        ]
    call = {"lock": "turn({})", "maze": 'go("{}")'}[world]
    return [f" {call.format(move)}\n" for move in task.answer.split()]


@pytest.mark.parametrize(
    ("world", "submitted"),
    [
        ("lock", "1"),
        ("maze", "1"),
        ("table", "sum(r['total'] for r in rows)"),
        ("bughunt", "[y for i in range(len(hidden)) for y in map(lambda a: globals()[f'f{i}'](*a), hidden[i])]"),
    ],
    ids=["lock", "maze", "table", "bughunt"],
)
async def test_a_world_is_solved_in_as_many_lines_as_its_name_says(world: str, submitted: str) -> None:
    [task] = make_tasks(f"studies.branching.worlds.{world}:{world}-10", 1, seed=2, split="train")
    lines = [*solution(world, task), f" submit_final_answer({submitted})\n"]
    environment = environment_of([task.family])
    solved, given_up = [
        await type_session(task, "".join(typed), environment=environment) for typed in (lines, lines[-1:])
    ]
    assert len(solved.lines) == len(lines) <= 10
    assert not any(line.error_name for line in solved.lines)
    if world in ("lock", "maze"):
        assert (solved.environment_reward, given_up.environment_reward) == (1.0, 0.0)
    else:
        assert (grade(task, solved.answer), grade(task, given_up.answer)) == (1.0, 0.0)


def opens(world: LockWorld, state: int, left: int) -> float:
    """What a state of a lock is worth, by trying out all sequences of moves of a policy of 30% wrong and 20% idle."""
    habits, total = lock_habits(world, 0.3, 0.2), 0.0
    for moves in product([*range(10), None], repeat=left):
        chance, now = 1.0, state
        for move in moves:
            if world.is_over(now):
                chance *= 1 / 11  # whatever is typed then, it changes nothing: all sequences together count once
            elif move is None:
                chance *= 0.2
            else:
                chance *= habits(now)[move]
                now = world.after(now, move)
        total += chance * world.is_solved(now)
    return total


@pytest.mark.parametrize("number", range(3))
def test_the_exact_advantage_is_what_a_line_changes_in_the_chance_to_win(number: int) -> None:
    world = LockWorld(number, 3)
    first, second = (digit for _, digit, _ in world.dials)
    found = exact_advantages([number, 3], [None, first, second, "end"], 0.3, 0.2)
    values = [opens(world, 0, 4), opens(world, 0, 3), opens(world, 1, 2), 1.0]  # the budget is 4 lines
    assert found[:3] == pytest.approx([after - before for before, after in pairwise(values)])
    assert found[3] is None
    assert exact_advantages([number, 3], ["end"], 0.3, 0.2) == pytest.approx([-values[0]])


def test_the_value_of_a_group_is_a_ridge_regression_on_what_others_and_earlier_batches_returned() -> None:
    random, value, past = np.random.default_rng(2), HiddenValue(), list[tuple[float, Array, Array]]()
    value.errors = errors = np.arange(len(RIDGES), 0, -1.0)  # the smallest ridge first, by which V reaches its bounds
    chosen, bounded = set[int](), 0
    for noise in (0.0, 0.0, 0.0, 5.0, 0.5, 0.0, 0.0, 0.0):
        states = [random.normal(size=(random.integers(2, 7), 5)) + 1 for _ in range(random.integers(1, 4))]
        batch = [(each, each[:, 0] - each[:, 1] + noise * random.normal(size=len(each))) for each in states]
        found = value.learn(batch, 0.5)
        chosen.add(ridge := int(np.argmin(errors)))
        errors = 0.5 * errors
        for place, (own, earned) in enumerate(batch):
            others = [*past, *((1.0, *each) for number, each in enumerate(batch) if number != place)]
            returns = np.concatenate([[0.0], *(each for _, _, each in others)])
            rows = np.vstack([weight**0.5 * features(each) for weight, each, _ in others] or [np.zeros((1, 6))])
            aims = np.concatenate([weight**0.5 * each for weight, _, each in others] or [np.zeros(1)])
            fits = [np.linalg.solve(rows.T @ rows + each * np.eye(6), rows.T @ aims) for each in RIDGES]
            values = np.array([features(own) @ fit for fit in fits])  # (ridges, L)
            inside = values.clip(returns.min(), returns.max())
            assert found[place] == pytest.approx(inside[ridge], rel=1e-6, abs=1e-6)
            bounded += (inside != values)[ridge].sum()
            errors = errors + np.square(inside - earned).sum(axis=1)
        past = [(0.5 * weight, *each) for weight, *each in [*past, *((1.0, *each) for each in batch)]]
    assert len(chosen) > 1 < bounded


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("sessions", [2, 6, 12])
def test_cores_and_tools_are_the_machine_repair_model(cores: int, sessions: int) -> None:
    """Sessions wait for tools, exponentially, then compute on cores that they share. How many compute is known (Palm's
    machine repair model, whose answer holds for cores that are shared, whatever the distributions)."""
    cell_s, wait_s = 0.02, 0.08
    load = [comb(sessions, busy) * (cell_s / wait_s) ** busy * factorial(busy) for busy in range(sessions + 1)]
    for busy in range(sessions + 1):
        for count in range(1, busy + 1):
            load[busy] /= min(count, cores)
    computing = sum(busy * weight for busy, weight in enumerate(load)) / sum(load)
    expected = (sessions - computing) / wait_s  # those that wait, each for `wait_s` on average
    rates = Rates(1e-7, sequence=0, read=0, loop=0, loop_session=0, cell=cell_s, kernel=0, ending=0, taking=0)
    work = Work(lambda rng: 250, lambda rng: 1, wait=lambda rng: rng.expovariate(1 / wait_s))
    found = simulate(rates, Fleet(cores=cores, kernels=sessions), work, 8 * sessions, steady=True)
    assert found.lines_per_s == pytest.approx(expected, rel=0.04)
    assert found.core_busy == pytest.approx(expected * cell_s / cores, rel=0.04)


def test_the_page_on_capacity_shows_its_report() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.filled(text, page.load()), "python -m studies.capacity.page"
    for name, svg in page.pictures(page.load()).items():
        assert page.PAGE.with_name(name).read_text(encoding="utf-8") == svg, "python -m studies.capacity.page"
