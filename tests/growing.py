"""Trees in real sandboxed interpreters, typed by a policy that does what a test says."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from scripted import FakeEngine, rollout_of

from repl_rl.config import BranchConfig, BudgetConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary
from repl_rl.kernel import KernelPool
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.trajectory import Task, Trajectory

TASK = Task("t", "What?", "1")
SEEDED = SamplingConfig().seeded("7")


class Policy(FakeEngine):
    """Types `line(text so far, number of the answer)`; token log-probabilities are `logprob` of the same."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        line: Callable[[str, int], str],
        logprob: Callable[[str], float] = lambda line: -0.25,
    ) -> None:
        self.sampled = 0
        self._vocabulary, self._line, self._logprob = vocabulary, line, logprob
        self._answers = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        typed = self._line(self._vocabulary.decode(ids), self._answers)
        self._answers += 1
        sampled = self._vocabulary.encode_output(typed)
        self.sampled += len(sampled)
        return SampledLine(tuple(sampled), (self._logprob(typed),) * len(sampled), Finish.NEWLINE)


def lines_so_far(text: str) -> int:
    return text.count(">>>") + text.count("...") - 1


def typing(*lines: str) -> Callable[[str, int], str]:
    """The same lines in every session, the last one again and again."""
    return lambda text, number: lines[min(lines_so_far(text), len(lines)) - 1]


async def grow(
    policy: Policy,
    vocabulary: Vocabulary,
    config: BranchConfig,
    kernels: Any = None,
    groups: int = 1,
    environment: Any = None,
    sampling: SamplingConfig = SEEDED,
    leave_after: int | None = None,
    budget: BudgetConfig | None = None,
    size: int = 16,
    guests: Sequence[Any] = (),
) -> list[Trajectory]:
    """One batch of trees, left after so many sessions if told so; with real kernels unless others are given."""
    given: dict[str, Any] = {"vocabulary": vocabulary, "context_tokens": 4096, "environment": environment}
    given |= {"budget": budget or BudgetConfig(lines=6, tokens=2000), "guests": guests}
    tasks = [TASK] * config.group_size * groups

    if kernels is not None:
        return await rollout_of(policy, kernels, at_once=size, **given).many(tasks, sampling, config)
    async with KernelPool(size, sandbox="bwrap") as pool:
        rollout, made = rollout_of(policy, pool, at_once=size, **given), dict[int, Trajectory]()
        async with aclosing(rollout.as_completed(RolloutBatch(tasks, sampling, config))) as ended:
            async for index, trajectory in ended:
                made[index] = trajectory
                if len(made) == leave_after:
                    break
        async with AsyncExitStack() as stack, asyncio.timeout(60):  # no session and no fork is left in the pool
            for _ in range(size):
                await stack.enter_async_context(pool.session())
    return [made[index] for index in sorted(made)]


def texts(trajectory: Trajectory) -> list[str]:
    return [line.text for line in trajectory.lines]
