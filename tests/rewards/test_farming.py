"""Policies that pad, print, repeat, redefine, raise on purpose and chatter, in real kernels: none of it pays.

Every session is typed into an interpreter of its own, so that kinds, outputs and fingerprints are what training sees.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import yaml
from pages import PAGES, blocks
from scripted import ScriptedEngine

from repl_rl.config import BudgetConfig, CreditConfig, RewardsConfig
from repl_rl.config.rewards import shipped_presets
from repl_rl.credit import ESTIMATORS
from repl_rl.dialect import PythonDialect
from repl_rl.engine import load_vocabulary
from repl_rl.kernel import KernelPool, Limits
from repl_rl.models.nano import NANO_PATH
from repl_rl.rewards import RewardTable, ScoredTrajectory
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.score import credit, score
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import grade
from repl_rl.trajectory import LineKind, Task, Trajectory

TASK = Task("sum", "What is the sum of the squares of 1234 and 5678?", "33762440")
Cells = tuple[str, ...]
"""What is typed, cell by cell."""

LOOK, ANSWER, STOP = "a**2 + b**2\n", "submit_final_answer(a**2 + b**2)\n", ""
HONEST: dict[str, Cells] = {
    "direct": ("a, b = 1234, 5678\n", LOOK, ANSWER),
    "thoughtful": ("# squares first\n", "a = 1234\n", "b = 5678\n", "# then their sum\n", LOOK, ANSWER),
    "by a loop": ("a, b = 1234, 5678\n", "s = 0\n", "for n in (a, b):\n    s += n**2\n\n", "submit_final_answer(s)\n"),
    "mended": ("a = 1234\n", "a**2 + b**2\n", "b = 5678\n", LOOK, ANSWER),
}
FAILED: Cells = ("a, b = 1234, 5678\n", "a**2\n", "b**2\n", STOP)
GUESS: Cells = ("submit_final_answer(33000000)\n",)
FARMS: dict[str, Cells] = {
    "the same assignment": ("x = 1\n",) * 6,
    "assignments": tuple(f"x = {n}\n" for n in range(6)),
    "new names": tuple(f"x{n} = {n}\n" for n in range(6)),
    "constants": tuple(f"{n}\n" for n in range(6)),
    "printed constants": tuple(f"print({n}, 'so')\n" for n in range(6)),
    "the same output": ("print(6 * 7)\n",) * 6,
    "redefined functions": tuple(f"def f():\n    return {n}\n\n" for n in range(3)),
    "deleted again": ("x = 1\n", "del x\n") * 3,
    "raised": tuple(f"raise ValueError({n})\n" for n in range(6)),
    "raised and caught": tuple(f"try:\n    1 / 0\nexcept ZeroDivisionError:\n    x = {n}\n\n" for n in range(3)),
    "syntax errors": ("x = = 1\n", ")\n", "def\n"),
    "comments": tuple(f"# step {n}: so far so good\n" for n in range(6)),
    "blank lines": ("\n",) * 6,
    "passing": ("pass\n",) * 6,
    "imports": ("import math\n", "import  math  # again\n", "import random\n"),
}
PAYING: dict[str, Any] = {
    "kinds": {"comment": 0.05, "open": 0.05, "statement": 0.05, "expression": 0.1, "exception": 0.05, "blank": 0.05},
    "shaping": {"novelty": True, "decay": 0.5, "caps": {"gain": 0.25, "loss": 0.25}},
}
"""What a user may write: every line is paid for, and held in."""
README = {key: value for key, value in yaml.safe_load(blocks(PAGES[0].read_text(), "yaml")[0])["rewards"].items()
          if key != "functions"}  # fmt: skip
"""The example there, without the function of the reader's own."""
TABLES: dict[str, RewardTable] = {
    "readme": RewardTable(RewardsConfig(**README)),
    **{name: RewardTable(RewardsConfig(preset=name)) for name in shipped_presets()},
    "paying": RewardTable(RewardsConfig(**PAYING)),
    "potential": RewardTable(RewardsConfig(**{**PAYING, "shaping": {"mode": "potential"}})),
}


def padded() -> Iterable[tuple[tuple[str, str, int], Cells]]:
    """Every honest session, and one that gives up, with every farm before it, in it and at its end."""
    for name, base in {**HONEST, "gave up": FAILED, "guess": GUESS}.items():
        for farm, lines in FARMS.items():
            for place in sorted({0, len(base) // 2, len(base) - 1}):
                yield (name, farm, place), (*base[:place], *lines, *base[place:])


SESSIONS: dict[Any, Cells] = {
    **HONEST,
    "gave up": FAILED,
    "guess": GUESS,
    **{("nothing", farm): (*lines, STOP) for farm, lines in FARMS.items()},
    **dict(padded()),
}


@pytest.fixture(scope="module")
def typed() -> Mapping[Any, Trajectory]:
    """Every session as a real kernel ran it."""
    return asyncio.run(_type_all())


async def _type_all() -> dict[Any, Trajectory]:
    vocabulary = load_vocabulary(str(NANO_PATH))
    places = asyncio.Semaphore(4)

    async def type_one(pool: KernelPool, cells: Cells) -> Trajectory:
        lines = [f" {line}" for cell in cells for line in cell.splitlines(keepends=True) or [STOP]]
        rollout = Rollout(
            ScriptedEngine(vocabulary, lambda prompt: lines),
            pool,
            RolloutSetup(
                vocabulary,
                PythonDialect(),
                context_tokens=8000,
                budget=BudgetConfig(lines=64, tokens=6000, line_tokens=200),
            ),
        )
        async with places:
            return (await rollout.many([TASK]))[0]

    async with KernelPool(4, Limits(line_s=60)) as pool:
        done = await asyncio.gather(*(type_one(pool, cells) for cells in SESSIONS.values()))
    return dict(zip(SESSIONS, done, strict=True))


def scored(typed: Mapping[Any, Trajectory], session: Any, rewards: str) -> ScoredTrajectory:
    return score([TASK], [typed[session]], grade, TABLES[rewards])[0]


def total(typed: Mapping[Any, Trajectory], session: Any, rewards: str) -> float:
    return math.fsum(scored(typed, session, rewards).line_rewards)


def test_the_sessions_are_what_they_are_meant_to_be(typed: Mapping[Any, Trajectory]) -> None:
    assert all(typed[name].answer == ("33762440",) for name in HONEST)
    assert [each.kind for each in typed["mended"].lines][1] is LineKind.EXCEPTION
    assert typed["gave up"].answer is None
    assert all(not each.is_void for each in typed.values())
    kinds = {kind for each in typed.values() for kind in (line.kind for line in each.lines)}
    assert kinds >= {LineKind.OPEN, LineKind.SYNTAX_ERROR, LineKind.EXCEPTION, LineKind.COMMENT, LineKind.BLANK}
    ran = [each for each in typed["direct"].lines if each.kind is LineKind.STATEMENT]
    assert all(each.fingerprint for each in ran)


@pytest.mark.parametrize("rewards", TABLES)
@pytest.mark.parametrize("farm", FARMS)
def test_farming_alone_earns_less_than_solving(typed: Mapping[Any, Trajectory], farm: str, rewards: str) -> None:
    assert total(typed, ("nothing", farm), rewards) < min(total(typed, name, rewards) for name in HONEST) - 0.2


@pytest.mark.parametrize("rewards", [*shipped_presets(), "readme"])
@pytest.mark.parametrize("farm", FARMS)
@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - {"reinforce++"}))
def test_a_farmer_among_the_wrong_gets_less_than_a_quarter_of_a_lone_right_answers_advantage(
    typed: Mapping[Any, Trajectory], farm: str, rewards: str, estimator: str
) -> None:
    def most(session: Any) -> float:
        group = [scored(typed, name, rewards) for name in (session, *["gave up"] * 7)]
        first, *_ = credit(group, 8, CreditConfig(estimator=estimator))
        return max(line.advantage or 0.0 for line in first.trajectory.lines)

    assert most(("nothing", farm)) < 0.25 * most("direct")


@pytest.mark.parametrize("rewards", shipped_presets())
@pytest.mark.parametrize("farm", FARMS)
def test_farming_alone_earns_no_more_than_trying_and_failing(
    typed: Mapping[Any, Trajectory], farm: str, rewards: str
) -> None:
    assert total(typed, ("nothing", farm), rewards) <= total(typed, "gave up", rewards)


@pytest.mark.parametrize("rewards", [*shipped_presets(), "potential"])
@pytest.mark.parametrize("farm", FARMS)
def test_padding_never_raises_the_total(typed: Mapping[Any, Trajectory], farm: str, rewards: str) -> None:
    cases = [case for case, _ in padded() if case[1] == farm]
    assert len(cases) > 12
    gains = {case: total(typed, case, rewards) - total(typed, case[0], rewards) for case in cases}
    assert {case: gain for case, gain in gains.items() if gain > 1e-9} == {}


@pytest.mark.parametrize("farm", ["raised", "syntax errors"])
@pytest.mark.parametrize("rewards", ["gentle", "strict"])
def test_failing_on_purpose_costs(typed: Mapping[Any, Trajectory], farm: str, rewards: str) -> None:
    assert total(typed, ("nothing", farm), rewards) < -0.05
    assert total(typed, ("direct", farm, 0), rewards) < total(typed, "direct", rewards) - 0.05


@pytest.mark.parametrize(
    "farm", ["the same assignment", "constants", "printed constants", "the same output", "passing"]
)
def test_idle_lines_cost_under_strict(typed: Mapping[Any, Trajectory], farm: str) -> None:
    idle = scored(typed, ("nothing", farm), "strict").components["idle"]
    assert sum(value < 0 for value in idle) >= 5


@pytest.mark.parametrize("name", HONEST)
def test_honest_lines_are_not_idle(typed: Mapping[Any, Trajectory], name: str) -> None:
    assert set(scored(typed, name, "strict").components["idle"]) == {0.0}


@pytest.mark.parametrize(
    ("farm", "most"),
    [
        ("the same assignment", 0.05),
        ("constants", 0.0),
        ("printed constants", 0.0),
        ("the same output", 0.1),
        ("comments", 0.0),
        ("blank lines", 0.0),
        ("passing", 0.0),
    ],
)
def test_where_lines_are_paid_novelty_and_decay_see_most_farms(
    typed: Mapping[Any, Trajectory], farm: str, most: float
) -> None:
    assert total(typed, ("nothing", farm), "paying") == pytest.approx(most)


def test_where_lines_are_paid_the_cap_holds_the_rest(typed: Mapping[Any, Trajectory]) -> None:
    paid = [math.fsum(scored(typed, session, "paying").components["table"]) for session in SESSIONS]
    assert max(paid) == pytest.approx(0.25)


def test_farms_do_pay_where_nothing_holds_them_in(typed: Mapping[Any, Trajectory]) -> None:
    """What the tests above would miss if they looked at nothing: the same prices without limits."""
    bare = RewardTable(RewardsConfig(kinds=PAYING["kinds"]))
    solved = math.fsum(bare.score(typed["direct"], 1.0).line_rewards)
    for farm in ("new names", "comments", "printed constants", "raised and caught"):
        farmed = math.fsum(bare.score(typed[("direct", farm, 0)], 1.0).line_rewards)
        assert farmed > solved + 0.2
