"""The tool that TRL's side of the benchmark calls: real kernels, one per rollout, blocking calls."""

from __future__ import annotations

import time

from repl_rl.bench.trl_tools import open_tools
from repl_rl.config import KernelConfig


def test_each_rollout_has_an_interpreter_of_its_own_and_sees_what_a_terminal_shows() -> None:
    with open_tools(2, KernelConfig(size=2), latency_s=0.0) as (first, second):
        assert first(" x = 3\n") == ">>>"
        assert first(" x + 1\n") == "4\n>>>"
        assert second(" x\n").endswith("NameError: name 'x' is not defined\n>>>")
        assert (first.calls, second.calls) == (2, 1)


def test_a_block_runs_when_it_is_complete() -> None:
    with open_tools(1, KernelConfig(size=1), latency_s=0.0) as (tool,):
        assert [tool(" for i in range(2):\n"), tool("     i\n"), tool("\n")] == ["...", "...", "0\n1\n>>>"]


def test_a_slow_tool_takes_as_much_longer() -> None:
    with open_tools(1, KernelConfig(size=1), latency_s=0.05) as (tool,):
        started = time.perf_counter()
        tool(" 1\n")
        assert 0.05 <= tool.seconds <= time.perf_counter() - started
