"""Policies that pad, print, repeat, redefine, raise on purpose and chatter, in real kernels: none of it pays.

Every session is typed into an interpreter of its own, so that kinds, outputs and fingerprints are what training sees.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import PAGES, blocks

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.config.rewards import shipped_presets
from repl_rl.credit import ESTIMATORS
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rewards import RewardTable, ScoredTrajectory
from repl_rl.rollout import credit, score
from repl_rl.rollout.scripted import type_session
from repl_rl.tasks import grade
from repl_rl.trajectory import LineKind, Task, Trajectory
from repl_rl.utils.threads import BackgroundLoop

pytestmark = pytest.mark.more
TASK = Task("sum", "What is the sum of the squares of 1234 and 5678?", "33762440")
Cells = tuple[str, ...]
"""What is typed, cell by cell."""

TYPED = yaml.safe_load((Path(__file__).parent / "farming.yaml").read_text(encoding="utf-8"))
HONEST: dict[str, Cells] = {name: tuple(cells) for name, cells in TYPED["honest"].items()}
FARMS: dict[str, Cells] = {name: tuple(cells) for name, cells in TYPED["farms"].items()}
FAILED, GUESS = tuple(TYPED["failed"]), tuple(TYPED["guess"])
PAYING: dict[str, Any] = {
    "kinds": {"comment": 0.05, "open": 0.05, "statement": 0.05, "expression": 0.1, "exception": 0.05, "blank": 0.05},
    "shaping": {"novelty": True, "decay": 0.5, "caps": {"gain": 0.25, "loss": 0.25}},
}
"""What a user may write: every line is paid for, and held in."""
README = yaml.safe_load(blocks(PAGES[0].read_text(), "yaml")[0])["rewards"] | {"functions": ()}
"""The example there, without the function of the reader's own."""
TABLES: dict[str, RewardTable] = {
    "readme": RewardTable(RewardsConfig(**README)),
    **{name: RewardTable(RewardsConfig(preset=name)) for name in shipped_presets()},
    "paying": RewardTable(RewardsConfig(**PAYING)),
    "potential": RewardTable(RewardsConfig(**{**PAYING, "shaping": {"mode": "potential"}})),
}


def padded() -> Iterable[tuple[tuple[str, str], Cells]]:
    """Every honest session, and two others, with every farm before it, in it or before its last line, in turn."""
    share = cycle((0.0, 0.5, 1.0, 0.5))
    for name, base in {**HONEST, "gave up": FAILED, "guess": GUESS}.items():
        for farm, lines in FARMS.items():
            at = int(next(share) * (len(base) - 1))
            yield (name, farm), (*base[:at], *lines, *base[at:])


SESSIONS: dict[Any, Cells] = {
    **HONEST,
    "gave up": FAILED,
    "guess": GUESS,
    **{("nothing", farm): lines for farm, lines in FARMS.items()},
    **dict(padded()),
}


@pytest.fixture(scope="module")
def typed(loop: BackgroundLoop) -> Mapping[Any, Trajectory]:
    """Every session as a real kernel ran it."""

    texts = ["".join(f" {line}" for line in "".join(cells).splitlines(keepends=True)) for cells in SESSIONS.values()]

    async def type_all() -> list[Trajectory]:
        async with KernelPool(4, Limits(line_s=60)) as pool:
            return await asyncio.gather(*(type_session(TASK, text, kernels=pool) for text in texts))

    return dict(zip(SESSIONS, loop.run(type_all()), strict=True))


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
def test_farming_alone_earns_less_than_solving(typed: Mapping[Any, Trajectory], rewards: str) -> None:
    farmed = {farm: total(typed, ("nothing", farm), rewards) for farm in FARMS}
    assert max(farmed.values()) < min(total(typed, name, rewards) for name in HONEST) - 0.2
    if rewards in shipped_presets():  # where trying and failing pays no less
        assert max(farmed.values()) <= total(typed, "gave up", rewards)


@pytest.mark.parametrize("rewards", [*shipped_presets(), "readme"])
@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - {"reinforce++", "maxrl"}))  # which takes no charges
def test_a_farmer_among_the_wrong_gets_less_than_a_quarter_of_a_lone_right_answers_advantage(
    typed: Mapping[Any, Trajectory], rewards: str, estimator: str
) -> None:
    def most(session: Any) -> float:
        group = [scored(typed, name, rewards) for name in (session, *["gave up"] * 7)]
        first, *_ = credit(group, 8, CreditConfig(estimator=estimator))
        return max(line.advantage or 0.0 for line in first.trajectory.lines)

    assert max(most(("nothing", farm)) for farm in FARMS) < 0.25 * most("direct")


@pytest.mark.parametrize("rewards", [*shipped_presets(), "potential"])
def test_padding_never_raises_the_total(typed: Mapping[Any, Trajectory], rewards: str) -> None:
    gains = {case: total(typed, case, rewards) - total(typed, case[0], rewards) for case, _ in padded()}
    assert {case: gain for case, gain in gains.items() if gain > 1e-9} == {}


@pytest.mark.parametrize("farm", ["raised", "syntax errors"])
@pytest.mark.parametrize("rewards", ["gentle", "strict"])
def test_failing_on_purpose_costs(typed: Mapping[Any, Trajectory], farm: str, rewards: str) -> None:
    assert total(typed, ("nothing", farm), rewards) < -0.05
    assert total(typed, ("direct", farm), rewards) < total(typed, "direct", rewards) - 0.05


def test_idle_lines_cost_under_strict_and_honest_ones_do_not(typed: Mapping[Any, Trajectory]) -> None:
    for farm in ("the same assignment", "constants", "printed constants", "the same output", "passing"):
        idle = scored(typed, ("nothing", farm), "strict").components["idle"]
        assert sum(value < 0 for value in idle) >= 5
    for name in HONEST:
        assert set(scored(typed, name, "strict").components["idle"]) == {0.0}


def test_where_lines_are_paid_novelty_decay_and_caps_hold_farms_in(typed: Mapping[Any, Trajectory]) -> None:
    seen = dict.fromkeys(("constants", "printed constants", "comments", "blank lines", "passing"), 0.0)
    seen |= {"the same assignment": 0.05, "the same output": 0.1}
    assert {farm: total(typed, ("nothing", farm), "paying") for farm in seen} == pytest.approx(seen)
    paid = [math.fsum(scored(typed, session, "paying").components["table"]) for session in SESSIONS]
    assert max(paid) == pytest.approx(0.25)


def test_farms_do_pay_where_nothing_holds_them_in(typed: Mapping[Any, Trajectory]) -> None:
    """What the tests above would miss if they looked at nothing: the same prices without limits."""
    bare = RewardTable(RewardsConfig(kinds=PAYING["kinds"]))
    solved = math.fsum(bare.score(typed["direct"], 1.0).line_rewards)
    for farm in ("new names", "comments", "printed constants", "raised and caught"):
        farmed = math.fsum(bare.score(typed[("direct", farm)], 1.0).line_rewards)
        assert farmed > solved + 0.2
