"""The code of docs/tools.md runs, and does what the page says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedEngine

from repl_rl.config import parse_config
from repl_rl.dialect import PythonDialect
from repl_rl.engine import load_vocabulary
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, Limits
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import Extensions, RolloutSetup, load_extensions, make_extensions
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LINES = [" x = 6\n", " y\n", " x * 7\n", " submit_final_answer(_)\n"]


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page's blocks as modules of a user."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, block in zip(("my_tools", "my_shop", "my_loops"), BLOCKS, strict=True):
        (tmp_path / f"{name}.py").write_text(block)
        monkeypatch.delitem(sys.modules, name, raising=False)


def roll(extensions: Extensions, lines: list[str], tasks: list[Task]) -> list[Trajectory]:
    vocabulary = load_vocabulary(str(NANO_PATH))

    async def go() -> list[Trajectory]:
        async with KernelPool(2, Limits(line_s=60)) as pool:
            rollout = Rollout(
                ScriptedEngine(vocabulary, lambda prompt: lines),
                pool,
                RolloutSetup(vocabulary, PythonDialect(), context_tokens=1024, extensions=extensions),
            )
            return await rollout.many(tasks)

    return asyncio.run(go())


def test_the_config_of_the_page_loads_its_tools() -> None:
    import yaml

    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    extensions = load_extensions(parse_config(yaml.safe_load(text)))
    assert [(tool.name, tool.where) for tool in extensions.toolbox.tools] == [
        ("multiply", "sandbox"),
        ("search", "host"),
    ]
    lines = [" multiply(6, 7)\n", " search('tea')\n", " search(3)\n", " submit_final_answer(1)\n"]
    [trajectory] = roll(extensions, lines, [Task("t", "Look.", "")])
    assert [line.output for line in trajectory.lines][:2] == ["42\n>>>", "['tea is a word.']\n>>>"]
    assert trajectory.lines[2].error_name == "TypeError"


@pytest.mark.slow
def test_the_shop_of_the_page() -> None:
    lines = [" buy('tea')\n", " buy('milk')\n", " submit_final_answer(1)\n"]
    [trajectory] = roll(make_extensions(environment="my_shop:Shop"), lines, [Task("t", "Buy.", "")])
    assert trajectory.lines[1].output == "'2 in the cart'\n(cart: tea, milk)\n>>>"
    assert trajectory.environment_reward == 1.0


def test_the_plain_loop_is_short_and_makes_what_ours_makes() -> None:
    loop = BLOCKS[2].partition("async def plain_loop")[2]
    assert len(loop.splitlines()) < 40
    tasks = [Task("a", "First?", "42"), Task("b", "Second?", "42")]
    plain = roll(make_extensions(sampler="my_loops:plain_loop"), LINES, tasks)
    ours = roll(Extensions(), LINES, tasks)
    for one, other in zip(plain, ours, strict=True):
        assert one.completion_ids == other.completion_ids
        assert one.sampled_mask == other.sampled_mask
        assert [line.output for line in one.lines][:3] == [line.output for line in other.lines][:3]
        assert (one.answer, one.stop_reason) == (other.answer, other.stop_reason) == (("42",), StopReason.ANSWER)
        assert one.lines[1].kind is other.lines[1].kind is LineKind.EXCEPTION


async def too_few(tasks: Any, engine: Any, kernels: Any) -> list[Trajectory]:
    return []


def test_a_loop_that_returns_something_else_is_named() -> None:
    with pytest.raises(ConfigError, match="rollout too_few returned 0 trajectories for 1 tasks"):
        roll(make_extensions(sampler=too_few), LINES, [Task("a", "First?", "42")])
    with pytest.raises(ConfigError, match="is not an async function"):
        make_extensions(sampler=len)
    with pytest.raises(ConfigError, match="can't be imported"):
        make_extensions(sampler="no_such_module:loop")
    with pytest.raises(ConfigError, match="a loop of your own, which tools and environment would never reach"):
        make_extensions(tools=["math:gcd"] * 0, environment=_Quiet, sampler=too_few)


class _Quiet:
    def reset(self, task: Task) -> dict[str, Any]:
        return {}
