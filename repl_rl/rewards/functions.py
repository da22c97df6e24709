"""Users' reward functions: found by import path, called under a time limit, their values checked.

A function gets the whole Trajectory and returns one finite number per line. It is called in a daemon thread. It may be
async: all async functions are awaited on one event loop.

Not covered: a late call can't be ended, only abandoned. Code that never releases the GIL blocks the whole process.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from repl_rl.errors import ConfigError, ReplRLError, RewardError
from repl_rl.trajectory import Trajectory
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import shown
from repl_rl.utils.threads import BackgroundLoop, in_own_thread
from repl_rl.utils.user_code import Seam, boundary, failure, name_of_code

RewardFunction = Callable[[Trajectory], Sequence[float] | Awaitable[Sequence[float]]]

_TRL_ARGUMENTS = {"prompts", "completions", "completion_ids"}
"""Names of arguments by which TRL passes a batch to a reward function."""
LARGEST = 1e9
"""The largest absolute value of a reward, so that sums of a few stay finite."""

_loop: BackgroundLoop | None = None
_loop_lock = threading.Lock()


def load_function(function: str | RewardFunction) -> RewardFunction:
    """The function, or the one at an import path `package.module:function`. Raises ConfigError if there is none, and
    RewardError if it can't be called with one argument or has the arguments of TRL's.
    """
    reward: RewardFunction = imported(function, "rewards.functions:") if isinstance(function, str) else function
    if not callable(reward):
        raise ConfigError(f"rewards.functions: {function!r} is {type(reward).__name__}, not a function")
    try:
        signature = inspect.signature(reward)
    except ValueError:  # some functions that are written in C have none
        return reward
    try:
        signature.bind(None)
        takes_trajectory = _TRL_ARGUMENTS.isdisjoint(signature.parameters)
    except TypeError:
        takes_trajectory = False
    if not takes_trajectory:
        raise RewardError(
            f"reward function {name_of_code(reward)!r} takes {signature}; it has to be (trajectory) -> list[float], "
            "one number per line. Functions of TRL's kind, one number per completion, go to ReplGRPOTrainer as "
            "reward_funcs"
        )
    return reward


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def call_function(function: RewardFunction, trajectory: Trajectory, limit_s: float) -> tuple[float, ...]:
    """One value per line. Raises RewardError naming the function if it breaks its contract."""
    global _loop
    where = f"on task {trajectory.task_id!r}"

    def call() -> list[float]:
        global _loop
        # In this thread, SystemExit would end the thread alone. A TimeoutError may come from `wait_for`.
        with boundary(
            Seam.LINE_REWARD,
            function,
            where=where,
            catches=(Exception, SystemExit),
            through=(ReplRLError, TimeoutError),
        ):
            result: Any = function(trajectory)
            if inspect.isawaitable(result):
                with _loop_lock:
                    if _loop is None:
                        _loop = BackgroundLoop()
                    loop = _loop
                result = loop.submit(asyncio.wait_for(result, limit_s)).result()
            if isinstance(result, Iterator):  # a generator runs the user's code here
                result = list(result)
            try:
                if isinstance(result, str | bytes | Mapping):
                    raise TypeError
                return [float(value) for value in result]
            except (TypeError, ValueError):
                raise failure(Seam.LINE_REWARD, function, f"returned {shown(result)}", where=where) from None

    try:
        values: list[float] = in_own_thread(call).result(limit_s)
    except TimeoutError as error:
        with _loop_lock:  # the next awaitable starts a new loop: this one may hang in code that does not await
            _loop = None
        raise RewardError(
            f"reward function {name_of_code(function)!r} took longer than {limit_s:g} s, or raised TimeoutError, "
            f"{where}; raise rewards.function_s, or let it give up earlier"
        ) from error
    if len(values) != len(trajectory.lines):
        returned = f"returned {len(values)} values for {len(trajectory.lines)} lines"
        raise failure(Seam.LINE_REWARD, function, returned, where=where)
    if not all(abs(value) <= LARGEST for value in values):  # false for NaN, too
        raise failure(
            Seam.LINE_REWARD,
            function,
            f"returned {values}, of which every value has to be finite, and within {LARGEST:g} of 0",
            where=where,
        )
    return tuple(values)
