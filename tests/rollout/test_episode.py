"""What stands around a trajectory: environments that are slow, or say too much, and tools that no call can reach."""

from typing import Any

import pytest
from scripted import Execute, HookedKernels, ScriptedEngine, locked, rollout_of

from repl_rl.config import DialectConfig, KernelConfig, parse_config
from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError, EnvironmentFailure, KernelDiedError
from repl_rl.kernel import ExecResult, KernelPool
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.checks import check_rollouts
from repl_rl.rollout.setup import make_extensions
from repl_rl.tools import tool
from repl_rl.trajectory import StopReason, Task, Trajectory

pytestmark = pytest.mark.more

TYPED = [" 1\n", " submit_final_answer(1)\n"]


@tool(where="host")
def look_up(word: str) -> str:
    """Look a word up."""
    return word


class Talkative:
    """Says more in one task than there is room for."""

    def reset(self, task: Task) -> None:
        self.text = task.id * 2000

    def observe(self) -> str:
        text, self.text = self.text, ""
        return text if text.startswith("long") else ""


async def test_a_first_observation_without_room_costs_one_trajectory(vocabulary: Vocabulary, pool: KernelPool) -> None:
    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED), pool, environment=Talkative)
    long, short = await rollout.many([Task("long", "First?", ""), Task("b", "Second?", "")])
    assert (long.stop_reason, short.stop_reason) == (StopReason.ABORTED, StopReason.ANSWER)
    assert long.error is not None
    assert long.error.startswith("EnvironmentFailure: with tools and first observation of the environment, the prompt")


class Doubling:
    """Its number gets too long to be printed."""

    def reset(self, task: Task) -> dict[str, Any]:
        self.task, self.number = task, 1
        return {"double": self.double}

    def double(self, times: int) -> None:
        """Double it."""
        self.number <<= times

    def observe(self) -> str:
        if self.task.id == "down" and self.number > 1:
            raise EnvironmentFailure("the server is down")
        return "" if self.task.id == "paid" else str(self.number)

    def reward(self, trajectory: Trajectory) -> float:
        return float(self.number) if self.task.id == "paid" else 1.0


async def test_a_session_that_breaks_its_environment_was_killed_or_earns_nothing(
    vocabulary: Vocabulary, pool: KernelPool
) -> None:
    typed = [" double(90_000)\n", " submit_final_answer(1)\n"]
    rollout = rollout_of(ScriptedEngine(vocabulary, typed), pool, environment=Doubling)
    killed, paid, down = await rollout.many([Task(name, "Double?", "") for name in ("killed", "paid", "down")])
    assert (killed.stop_reason, len(killed.lines), killed.environment_reward) == (StopReason.KILLED, 1, 1.0)
    assert (paid.stop_reason, paid.environment_reward) == (StopReason.ANSWER, 0.0)
    assert (down.stop_reason, down.environment_reward) == (StopReason.ABORTED, None)
    assert killed.error is not None
    assert "observe' raised ValueError: Exceeds the limit" in killed.error
    assert paid.error is not None
    assert "reward' raised OverflowError" in paid.error


async def test_an_environment_may_say_half_a_character(vocabulary: Vocabulary, pool: KernelPool) -> None:
    class Halved:
        def reset(self, task: Task) -> None: ...

        def observe(self) -> str:
            return "a\ud83db"

    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED), pool, environment=Halved)
    [trajectory] = await rollout.many([Task("t", "What?", "")])
    assert trajectory.stop_reason is StopReason.ANSWER
    assert trajectory.lines[0].shown == "1\na\\ud83db\n"


@pytest.mark.parametrize(("first", "stop", "asked"), [("1", "answer", ["b"]), ("look('a')", "aborted", ["a"])])
async def test_a_broken_kernel_is_set_up_anew_unless_the_host_was_called(
    vocabulary: Vocabulary, pool: KernelPool, first: str, stop: str, asked: list[str]
) -> None:
    """The first session's connection breaks when its first cell has run."""
    calls = []

    @tool(where="host")
    def look(word: str) -> str:
        """Look a word up."""
        calls.append(word)
        return word

    async def break_once(session: int, cell: int, source: str, execute: Execute) -> ExecResult:
        result = await execute()
        if session == 0:
            raise KernelDiedError("the connection broke")
        return result

    typed = [f" {first}\n", " look('b')\n", " submit_final_answer(_)\n"]
    rollout = rollout_of(ScriptedEngine(vocabulary, typed), HookedKernels(break_once, pool), tools=[look])
    [trajectory] = [each async for _, each in rollout.as_completed(RolloutBatch([Task("t", "What?", "")]))]
    assert (trajectory.stop_reason, calls) == (stop, asked)


def test_host_tools_need_a_kernel_that_calls_and_those_of_the_sandbox_a_pickle() -> None:
    tools: dict[str, Any] = {"tools": {"functions": ["test_episode:look_up"]}}
    with pytest.raises(ConfigError, match=r"tool 'look_up' runs on the host.*kernel.backend 'python3'; take"):
        check_rollouts(parse_config({**tools, "kernel": {"backend": "python3"}}))
    assert check_rollouts(parse_config(tools)).extensions.toolbox.tools
    with pytest.raises(ConfigError, match="'guarded' holds, or refers to, something that can't be pickled"):
        make_extensions([locked()])
    make_extensions(["test_episode:sandboxed"]).require(DialectConfig(), KernelConfig(backend="python3"), None)


def sandboxed(word: str) -> str:
    """Look a word up."""
    return word
