"""Users' functions: by import path or as they are, sync and async, too slow, and failing in every way they can."""

import asyncio
import copy
import math
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_trajectories import line, made

from repl_rl.config import RewardsConfig, parse_config
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import RewardTable
from repl_rl.rewards.functions import load_function
from repl_rl.trajectory import StopReason, Trajectory

SESSION = made([line(), line()])


def table(*functions: Any, **config: Any) -> RewardTable:
    return RewardTable(RewardsConfig(**config), functions)


async def lengths(trajectory: Trajectory) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(each.text)) for each in trajectory.lines]


def test_async_functions_share_one_loop_over_all_calls() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    async def where(trajectory: Trajectory) -> list[float]:
        loops.add(asyncio.get_running_loop())
        return [0.0] * len(trajectory.lines)

    rewards = table(lengths, where)
    scores = [rewards.score(SESSION, 0.0) for _ in range(3)]
    assert all(scored.components["lengths"] == (3.0, 3.0) for scored in scores)
    assert len(loops) == 1
    assert not next(iter(loops)).is_closed()


async def test_it_works_from_within_a_running_loop() -> None:
    assert table(lengths).score(SESSION, 0.0).components["lengths"] == (3.0, 3.0)


def test_callable_objects_go_by_their_class() -> None:
    class PerLine:
        def __call__(self, trajectory: Trajectory) -> list[int]:
            return [1] * len(trajectory.lines)

    class Judge(PerLine):
        async def __call__(self, trajectory: Trajectory) -> list[int]:  # type: ignore[override]
            return [1] * len(trajectory.lines)

    components = table(PerLine(), Judge()).score(SESSION, 0.0).components
    assert components["PerLine"] == components["Judge"] == (1.0, 1.0)


def hang(trajectory: Trajectory) -> list[float]:
    time.sleep(60)
    return [0.0] * len(trajectory.lines)


CANCELLED = threading.Event()


async def wait(trajectory: Trajectory) -> list[float]:
    try:
        await asyncio.sleep(60)
    finally:
        CANCELLED.set()
    return []


async def block_the_loop(trajectory: Trajectory) -> list[float]:
    time.sleep(60)
    return [0.0] * len(trajectory.lines)


def drip(trajectory: Trajectory) -> Iterator[float]:
    while True:
        time.sleep(0.01)
        yield 0.0


@pytest.mark.parametrize("function", [hang, wait, block_the_loop, drip])
def test_a_function_that_is_late_is_left_alone(function: Any) -> None:
    with pytest.raises(RewardError, match=rf":{function.__name__}' took longer than 0.2 s.*raise rewards.function_s"):
        table(function, function_s=0.2)
    late = [thread for thread in threading.enumerate() if thread.name.startswith("repl-rl-call")]
    assert all(thread.daemon for thread in late)
    assert function is not wait or CANCELLED.wait(300)
    assert table(lengths).score(SESSION, 0.0).components["lengths"] == (3.0, 3.0)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (
            lambda lines: [0.0] * (len(lines) - 1),
            r"returned 2 values for 3 lines .*; it has to be .* one number per line",
        ),
        (lambda lines: [math.nan] * len(lines), r"returned \[nan, nan, nan\], of which every value has to be finite"),
        (lambda lines: [0.0, 0.0, math.inf], r"returned \[0.0, 0.0, inf\]"),
        (lambda lines: [1e300] * 3, r"returned \[1e\+300, .*every value has to be finite, and within 1e\+09 of 0"),
        (lambda lines: {}["colour"], "raised KeyError: 'colour'"),
        (
            lambda lines: 0.5,
            r"returned 0\.5 .*on task 'made up to try rewards'\); it has to be \(traj",
        ),
        (lambda lines: None, r"returned None \(.*on task"),
        (lambda lines: "abc", r"returned 'abc' \(.*on task"),
        (lambda lines: {1: 0.5}, r"returned \{1: 0.5\} \(.*on task"),
        (lambda lines: ["good", 1.0, None], r"returned \['good', 1.0, None\] \(.*on task"),
        (lambda lines: np.float64(2.0), r"returned np.float64\(2.0\) \(.*on task"),
        (lambda lines: np.array(0.5), r"returned array\(0.5\) \(.*on task"),
    ],
)
def test_a_faulty_function_is_named_before_anything_is_loaded(give: Callable[[Any], Any], message: str) -> None:
    """By the probe, in the constructor."""

    def sync(trajectory: Trajectory) -> Any:
        return give(trajectory.lines)

    async def later(trajectory: Trajectory) -> Any:
        return give(trajectory.lines)

    for function in (sync, later):
        with pytest.raises(RewardError, match=f"reward function '{__name__}:.*{function.__name__}' {message}"):
            table(function)


def test_a_function_that_leaves_is_named() -> None:
    def leaves(trajectory: Trajectory) -> Any:
        sys.exit(3)

    with pytest.raises(RewardError, match="leaves' raised SystemExit: 3"):
        table(leaves)


def test_a_function_that_fails_later_is_named_then() -> None:
    def picky(trajectory: Trajectory) -> list[float]:
        return [1.0 / (len(trajectory.lines) - 1)] * 3

    rewards = table(picky)
    with pytest.raises(RewardError, match="picky' returned 3 values for 2 lines"):
        rewards.score(SESSION, 1.0)
    with pytest.raises(RewardError, match="picky' raised ZeroDivisionError"):
        rewards.score(made([line()]), 1.0)


@pytest.mark.parametrize("void", [made([]), replace(SESSION, stop_reason=StopReason.ABORTED)])
def test_no_function_is_asked_about_a_void_session(void: Trajectory) -> None:
    def looks_at_the_last_line(trajectory: Trajectory) -> list[float]:
        assert trajectory.lines[-1].text
        return [1.0] * len(trajectory.lines)

    components = table(looks_at_the_last_line).score(void, 0.0).components
    assert components["looks_at_the_last_line"] == (0.0,) * len(void.lines)


def test_functions_are_shaping_too() -> None:
    rewards = table(lengths, outcome=4.0, shaping={"caps": {"gain": 4.0}})
    components = rewards.score(SESSION, 1.0).components
    assert components == {"outcome": (0.0, 4.0), "table": (0.0, 0.0), "lengths": (3.0, 1.0)}


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copy(Path(__file__).with_name("rewards_of_a_user.py.txt"), tmp_path / "rewards_of_a_user.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rewards_of_a_user", raising=False)
    monkeypatch.chdir(tmp_path)
    return "rewards_of_a_user"


def test_functions_come_by_import_path(user_module: str) -> None:
    rewards = table(functions=(f"{user_module}:brief",))
    assert rewards.component_names == ["outcome", "table", "brief"]
    assert rewards.score(SESSION, 0.0).components["brief"] == (-0.25, -0.25)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["{0}:breif"], "can't be imported .*breif"),
        (["{0}:number"], "is int, not a function"),
        (["{0}:outcome"], "two components of one name"),
        (["{0}:brief", "{0}:brief"], "two components of one name"),
    ],
)
def test_functions_that_are_not_there(user_module: str, paths: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rewards.functions: .*{message}"):
        table(functions=[path.format(user_module) for path in paths])


def test_the_line_that_raised_is_named(user_module: str) -> None:
    for name in ("judged", "later"):
        with pytest.raises(RewardError) as caught:
            table(functions=(f"{user_module}:{name}",))
        assert str(caught.value) == (
            f"reward function '{user_module}:{name}' raised JSONDecodeError: Extra data: line 1 column 4 (char 3) "
            "(rewards_of_a_user.py:6, on task 'made up to try rewards'); it has to be (trajectory) -> list[float], one "
            "number per line, 0.0 where it has nothing to say"
        )


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda prompts, completions, **kwargs: [0.0], "(prompts, completions, **kwargs)"),
        (lambda completions, **kwargs: [0.0], "(completions, **kwargs)"),
        (lambda: [0.0], "()"),
    ],
)
def test_functions_with_other_arguments(function: Any, signature: str) -> None:
    for given in (table, lambda function: table(functions=[function])):
        with pytest.raises(RewardError) as caught:
            given(function)
        assert str(caught.value) == (
            f"reward function '{__name__}:<lambda>' takes {signature}; it has to be (trajectory) -> list[float], "
            "one number per line. Functions of TRL's kind, one number per completion, go to ReplGRPOTrainer as "
            "reward_funcs"
        )


def test_functions_may_stand_where_import_paths_do() -> None:
    rewards = parse_config({"rewards": {"preset": "gentle", "functions": [lengths, "made_rewards:none"]}}).rewards
    assert rewards.functions == (lengths, "made_rewards:none")
    assert rewards.model_dump(mode="json")["functions"] == [f"{__name__}:lengths", "made_rewards:none"]
    assert table(functions=[lengths]).score(SESSION, 0.0).components["lengths"] == (3.0, 3.0)
    with pytest.raises(ConfigError) as caught:
        parse_config({"rewards": {"functions": [lengths, 3]}})
    assert str(caught.value) == (
        "rewards.functions.1: 3 is not an import path, package.module:function, and from Python not a function"
    )


def test_a_pickle_of_the_section_holds_import_paths() -> None:
    config = RewardsConfig(functions=[lengths, lambda trajectory: [0.0] * len(trajectory.lines)])  # type: ignore[arg-type]
    name = test_a_pickle_of_the_section_holds_import_paths.__name__
    paths = (f"{__name__}:lengths", f"{__name__}:{name}.<locals>.<lambda>")
    assert pickle.loads(pickle.dumps(config)) == RewardsConfig(functions=paths)
    assert copy.deepcopy(config) == config
    assert load_function(paths[0]) is lengths
