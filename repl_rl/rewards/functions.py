"""Users' reward functions: found by import path, called under a time limit, their values checked.

A function gets the whole Trajectory and returns one finite number per line. It is called in a daemon thread. It may be
async: all async functions are awaited on one event loop.

Not covered: a late call can't be ended, only abandoned. Code that never releases the GIL blocks the whole process.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from repl_rl.errors import ConfigError, RewardError
from repl_rl.trajectory import Trajectory
from repl_rl.utils.import_path import imported
from repl_rl.utils.threads import BackgroundLoop, in_own_thread

RewardFunction = Callable[[Trajectory], Sequence[float] | Awaitable[Sequence[float]]]

LARGEST = 1e9
"""The largest absolute value of a reward, so that sums of a few stay finite."""

_loop: BackgroundLoop | None = None
_loop_lock = threading.Lock()


def load_function(path: str) -> RewardFunction:
    """The function at `package.module:function`. Raises ConfigError."""
    function: RewardFunction = imported(path, "rewards.functions:")
    if not callable(function):
        raise ConfigError(f"rewards.functions: {path!r} is {type(function).__name__}, not a function")
    return function


def name_of(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def call_function(function: RewardFunction, trajectory: Trajectory, limit_s: float) -> tuple[float, ...]:
    """One value per line. Raises RewardError naming the function if it breaks its contract."""
    name = name_of(function)

    def call() -> list[float]:
        returned: Any = function(trajectory)
        return [float(value) for value in (_awaited(returned, limit_s) if inspect.isawaitable(returned) else returned)]

    try:
        values: list[float] = in_own_thread(call).result(limit_s)
    except TimeoutError as error:
        _leave_loop()
        raise RewardError(
            f"reward function {name!r} took longer than {limit_s:g} s, or raised TimeoutError, on task "
            f"{trajectory.task_id!r}; raise rewards.function_s, or let it give up earlier"
        ) from error
    except (Exception, SystemExit) as error:  # users' code may raise anything
        raise RewardError(f"reward function {name!r} raised {type(error).__name__}: {error}") from error
    if len(values) != len(trajectory.lines):
        raise RewardError(
            f"reward function {name!r} returned {len(values)} values for {len(trajectory.lines)} lines; "
            "return one number per line, 0.0 where it has nothing to say"
        )
    if not all(abs(value) <= LARGEST for value in values):  # false for NaN, too
        raise RewardError(
            f"reward function {name!r} returned {values}; every value has to be finite, and within {LARGEST:g} of 0"
        )
    return tuple(values)


def _awaited(value: Awaitable[Any], limit_s: float) -> Any:
    """The result of `value`, which is cancelled at the limit."""
    global _loop

    async def within() -> Any:
        return await asyncio.wait_for(value, limit_s)

    with _loop_lock:
        _loop = _loop or BackgroundLoop()
        loop = _loop
    return loop.submit(within()).result()


def _leave_loop() -> None:
    """Make the next awaitable start a new loop: the current one may hang in code that does not await."""
    global _loop
    with _loop_lock:
        _loop = None
