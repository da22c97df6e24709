"""Environments and calls of their tools, as a rollout and a session make them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from repl_rl.kernel.results import HostCall, HostReply
from repl_rl.tools import Toolbox
from repl_rl.tools.environments import EnvironmentSession, environment_factory
from repl_rl.trajectory import StopReason, Task, Trajectory

ENDED = Trajectory("t", "", (0,), (), (), (), StopReason.ANSWER)


@asynccontextmanager
async def opened(
    environment: Any, task: Task, limit_s: float = 60.0
) -> AsyncIterator[tuple[EnvironmentSession, Toolbox, str]]:
    """A session of the environment with its tools and what it says first; closed afterwards, however that goes."""
    session = EnvironmentSession(environment_factory(environment), limit_s=limit_s)
    try:
        yield session, *await session.open(task)
    finally:
        await session.close()


async def ask(box: Toolbox, name: str, *args: Any) -> HostReply:
    answer = box.host_calls()
    assert answer is not None
    return await answer(HostCall(name, args, {}))
