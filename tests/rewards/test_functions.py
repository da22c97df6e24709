"""Users' functions: sync and async, too slow, and failing in every way that a function can."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_trajectories import line, made

from repl_rl.config import RewardsConfig, parse_config
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import RewardTable
from repl_rl.rewards.functions import load_function
from repl_rl.trajectory import Trajectory

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


def test_it_works_from_within_a_running_loop() -> None:
    async def notebook() -> tuple[float, ...]:
        return table(lengths).score(SESSION, 0.0).components["lengths"]

    assert asyncio.run(notebook()) == (3.0, 3.0)


def test_an_async_callable_object_is_awaited() -> None:
    class Judge:
        async def __call__(self, trajectory: Trajectory) -> list[int]:
            return [1] * len(trajectory.lines)

    assert table(Judge()).score(SESSION, 0.0).components["Judge"] == (1.0, 1.0)


def hang(trajectory: Trajectory) -> list[float]:
    time.sleep(60)
    return [0.0] * len(trajectory.lines)


async def wait(trajectory: Trajectory) -> list[float]:
    await asyncio.sleep(60)
    return [0.0] * len(trajectory.lines)


async def block_the_loop(trajectory: Trajectory) -> list[float]:
    time.sleep(60)
    return [0.0] * len(trajectory.lines)


def drip(trajectory: Trajectory) -> Iterator[float]:
    while True:
        time.sleep(0.01)
        yield 0.0


@pytest.mark.parametrize("function", [hang, wait, block_the_loop, drip])
def test_a_function_that_is_late_is_left_behind(function: Any) -> None:
    began = time.monotonic()
    with pytest.raises(RewardError, match=rf"'{function.__name__}' took longer than 0.2 s.*raise rewards.function_s"):
        table(function, function_s=0.2)
    assert time.monotonic() - began < 30
    late = [thread for thread in threading.enumerate() if thread.name.startswith("repl-rl-call")]
    assert all(thread.daemon for thread in late)
    assert table(lengths).score(SESSION, 0.0).components["lengths"] == (3.0, 3.0)


def test_a_late_coroutine_is_cancelled() -> None:
    cancelled = threading.Event()

    async def patient(trajectory: Trajectory) -> list[float]:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return []

    with pytest.raises(RewardError, match=r"'patient' took longer than 0\.1 s"):
        table(patient, function_s=0.1)
    assert cancelled.wait(300)


def leaves(trajectory: Trajectory) -> list[float]:
    raise SystemExit(3)


async def fails(trajectory: Trajectory) -> list[float]:
    raise KeyError("colour")


async def too_few(trajectory: Trajectory) -> list[float]:
    return [0.0]


def enormous(trajectory: Trajectory) -> list[float]:
    return [1e300] * len(trajectory.lines)


async def not_a_number(trajectory: Trajectory) -> list[float]:
    return [float("nan")] * len(trajectory.lines)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (leaves, "'leaves' raised SystemExit: 3"),
        (fails, "'fails' raised KeyError: 'colour'"),
        (too_few, "'too_few' returned 1 values for 3 lines"),
        (enormous, r"'enormous' returned \[1e\+300, .*every value has to be finite, and within 1e\+09 of 0"),
        (not_a_number, r"'not_a_number' returned \[nan, nan, nan\]"),
    ],
)
def test_failures_are_named_before_anything_is_loaded(function: Any, message: str) -> None:
    with pytest.raises(RewardError, match=f"reward function {message}"):
        table(function)


def test_functions_are_shaping_too() -> None:
    rewards = table(lengths, outcome=4.0, shaping={"caps": {"gain": 4.0}})
    assert rewards.score(SESSION, 1.0).components == {
        "outcome": (0.0, 4.0),
        "table": (0.0, 0.0),
        "lengths": (3.0, 1.0),
    }


def test_a_module_that_fails_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        table(functions=("broken_rewards:f",))
    assert str(caught.value) == (
        "rewards.functions: 'broken_rewards:f' can't be imported (ZeroDivisionError: division by zero, at "
        f"{tmp_path}/broken_rewards.py:1)"
    )


def test_the_line_that_raised_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_rewards.py").write_text(
        "import json\n"
        "def judged(trajectory):\n"
        "    return [verdict(line) for line in trajectory.lines]\n"
        "def verdict(line):\n"
        "    return json.loads(line.text)\n"
        "async def later(trajectory):\n"
        "    return judged(trajectory)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("judged", "later"):
        with pytest.raises(RewardError) as caught:
            table(functions=(f"raising_rewards:{name}",))
        assert str(caught.value) == (
            f"reward function {name!r} raised JSONDecodeError: Extra data: line 1 column 4 (char 3) "
            "(raising_rewards.py:5, on task 'made up to try rewards')"
        )


@pytest.mark.parametrize("returned", [0.5, None, "abc", {1: 0.5}, [None, None, 1.0], np.float64(2.0), np.array(0.5)])
def test_what_is_not_a_list_of_numbers(returned: Any) -> None:
    def brief(trajectory: Trajectory) -> Any:
        return returned

    with pytest.raises(RewardError) as caught:
        table(brief)
    assert str(caught.value) == (
        f"reward function 'brief' returned {returned!r} on task 'made up to try rewards'; it has to be (trajectory) -> "
        "list[float], one number per line, 0.0 where it has nothing to say"
    )


def of_trl(prompts, completions, **kwargs):  # type: ignore[no-untyped-def]
    return [0.0] * len(completions)


def also_of_trl(completions, **kwargs):  # type: ignore[no-untyped-def]
    return [0.0] * len(completions)


def of_nothing():  # type: ignore[no-untyped-def]
    return []


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (of_trl, "(prompts, completions, **kwargs)"),
        (also_of_trl, "(completions, **kwargs)"),
        (of_nothing, "()"),
    ],
)
def test_functions_with_other_arguments(function: Any, signature: str) -> None:
    for given in (table, lambda function: table(functions=[function])):
        with pytest.raises(RewardError) as caught:
            given(function)
        assert str(caught.value) == (
            f"reward function {function.__name__!r} takes {signature}; it has to be (trajectory) -> list[float], one "
            "number per line. Functions of TRL's kind, one number per completion, go to ReplGRPOTrainer as reward_funcs"
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


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "soon"])
def test_time_limits_have_a_range(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"^rewards\.function_s: "):
        parse_config({"rewards": {"function_s": seconds}})
