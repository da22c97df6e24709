"""What stands around a trajectory: environments that are slow, or say too much, and tools that no call can reach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import vocabularies
from scripted import ScriptedEngine

from repl_rl.config import DialectConfig, KernelConfig, parse_config
from repl_rl.errors import ConfigError, KernelDiedError
from repl_rl.kernel import ExecResult, HostCalls, KernelPool, KernelSession, Limits
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.setup import Extensions, RolloutSetup, load_extensions, make_extensions
from repl_rl.tools import tool
from repl_rl.trajectory import StopReason, Task, Trajectory

pytestmark = pytest.mark.more

TYPED = [" 1\n", " submit_final_answer(1)\n"]


@tool(where="host")
def look_up(word: str) -> str:
    """Look a word up."""
    return word


def roll(
    extensions: Extensions,
    use: Callable[[Rollout], Awaitable[Any]],
    typed: Sequence[str] = TYPED,
    kernels: Callable[[KernelPool], Any] = lambda pool: pool,
) -> Any:
    """What `use` makes of a rollout of a policy that types this."""

    async def go() -> Any:
        async with KernelPool(2, Limits(line_s=60)) as pool:
            vocabulary = vocabularies.nano()
            engine = ScriptedEngine(vocabulary, lambda prompt: typed)
            setup = RolloutSetup(vocabulary, context_tokens=1024, extensions=extensions)
            return await use(Rollout(engine, kernels(pool), setup))

    return asyncio.run(go())


class Talkative:
    """Says more in one task than there is room for."""

    def reset(self, task: Task) -> None:
        self.text = task.id * 2000

    def observe(self) -> str:
        text, self.text = self.text, ""
        return text if text.startswith("long") else ""


def test_a_first_observation_without_room_costs_one_trajectory() -> None:
    tasks = [Task("long", "First?", ""), Task("b", "Second?", "")]
    long, short = roll(make_extensions(environment=Talkative), lambda rollout: rollout.many(tasks))
    assert (long.stop_reason, short.stop_reason) == (StopReason.ABORTED, StopReason.ANSWER)
    assert long.error is not None
    assert long.error.startswith("EnvironmentFailure: with tools and first observation of the environment, the prompt")


def test_a_cut_that_comes_while_an_environment_opens_holds() -> None:
    may_open = asyncio.Event()

    class Slow:
        async def reset(self, task: Task) -> None:
            if task.id == "late":
                await may_open.wait()

    async def cut(rollout: Rollout) -> dict[str, Any]:
        tasks = [Task(name, f"{name}?", "") for name in ("a", "b", "late")]
        stops = {}
        async for index, trajectory in rollout.as_completed(RolloutBatch(tasks, cut=Cut(share=0.6, group_size=3))):
            stops[tasks[index].id] = (trajectory.stop_reason, len(trajectory.lines))
            if len(stops) == 2:
                may_open.set()
        return stops

    stops = roll(make_extensions(environment=Slow), cut)
    assert stops == {"a": (StopReason.ANSWER, 2), "b": (StopReason.ANSWER, 2), "late": (StopReason.UNFINISHED, 0)}


class BreaksOnce:
    """The first session's connection breaks when its first cell has run."""

    def __init__(self, pool: KernelPool) -> None:
        self._pool = pool
        self._opened = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        self._opened += 1
        async with self._pool.session() as kernel:
            yield _Breaking(kernel) if self._opened == 1 else kernel


class _Breaking:
    def __init__(self, kernel: KernelSession) -> None:
        self._kernel = kernel
        self.prepare = kernel.prepare

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        await self._kernel.execute(source, host)
        raise KernelDiedError("the connection broke")


@pytest.mark.parametrize(("first", "stop", "asked"), [("1", "answer", ["b"]), ("look('a')", "aborted", ["a"])])
def test_a_broken_kernel_is_set_up_anew_unless_the_host_was_called(first: str, stop: str, asked: list[str]) -> None:
    calls = []

    @tool(where="host")
    def look(word: str) -> str:
        """Look a word up."""
        calls.append(word)
        return word

    async def one(rollout: Rollout) -> list[Trajectory]:
        return [each async for _, each in rollout.as_completed(RolloutBatch([Task("t", "What?", "")]))]

    typed = [f" {first}\n", " look('b')\n", " submit_final_answer(_)\n"]
    [trajectory] = roll(make_extensions([look]), one, typed, BreaksOnce)
    assert (trajectory.stop_reason, calls) == (stop, asked)


def test_host_tools_need_a_kernel_that_calls() -> None:
    with pytest.raises(ConfigError, match=r"tool 'look_up' runs on the host.*kernel.backend 'python3'; take"):
        load_extensions(
            parse_config({"tools": {"functions": ["test_episode:look_up"]}, "kernel": {"backend": "python3"}})
        )
    assert load_extensions(parse_config({"tools": {"functions": ["test_episode:look_up"]}})).toolbox.tools
    make_extensions(["test_episode:sandboxed"]).require(DialectConfig(), KernelConfig(backend="python3"), None)


LOCK = threading.Lock()


def locked(word: str) -> str:
    """Look a word up."""
    with LOCK:
        return word


def test_a_tool_that_no_sandbox_can_have_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'locked' holds, or refers to, something that can't be pickled; let it make"):
        make_extensions([locked])


def sandboxed(word: str) -> str:
    """Look a word up."""
    return word


def test_groups_are_not_rolled_out_anew_with_environments() -> None:
    with pytest.raises(ConfigError, match=r"environment 'shops:Shop' and train.redraws 2 exclude one another"):
        parse_config({"environment": "shops:Shop", "train": {"redraws": 2}})
