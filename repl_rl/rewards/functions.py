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

from repl_rl.errors import ConfigError, RewardError
from repl_rl.trajectory import Trajectory
from repl_rl.utils.import_path import imported, place_of
from repl_rl.utils.threads import BackgroundLoop, in_own_thread

RewardFunction = Callable[[Trajectory], Sequence[float] | Awaitable[Sequence[float]]]

_OF_TRL = {"prompts", "completions", "completion_ids"}
"""Names of arguments by which TRL passes a batch to a reward function."""
LARGEST = 1e9
"""The largest absolute value of a reward, so that sums of a few stay finite."""

_loop: BackgroundLoop | None = None
_loop_lock = threading.Lock()


def load_function(function: str | RewardFunction) -> RewardFunction:
    """The function, or the one at an import path `package.module:function`. Raises ConfigError if there is none, and
    RewardError if it can't be called with one argument or has the arguments of TRL's.
    """
    found: RewardFunction = imported(function, "rewards.functions:") if isinstance(function, str) else function
    if not callable(found):
        raise ConfigError(f"rewards.functions: {function!r} is {type(found).__name__}, not a function")
    try:
        signature = inspect.signature(found)
    except ValueError:  # some functions that are written in C have none
        return found
    try:
        signature.bind(None)
        is_taken = _OF_TRL.isdisjoint(signature.parameters)
    except TypeError:
        is_taken = False
    if not is_taken:
        raise RewardError(
            f"reward function {name_of(found)!r} takes {signature}; it has to be (trajectory) -> list[float], one "
            "number per line. Functions of TRL's kind, one number per completion, go to ReplGRPOTrainer as reward_funcs"
        )
    return found


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def call_function(function: RewardFunction, trajectory: Trajectory, limit_s: float) -> tuple[float, ...]:
    """One value per line. Raises RewardError naming the function if it breaks its contract."""
    global _loop
    name = name_of(function)

    def call() -> list[float]:
        global _loop
        returned: Any = function(trajectory)
        if inspect.isawaitable(returned):
            with _loop_lock:
                loop = _loop = _loop or BackgroundLoop()
            returned = loop.submit(asyncio.wait_for(returned, limit_s)).result()
        if isinstance(returned, Iterator):  # it may raise, too
            returned = list(returned)
        try:
            if isinstance(returned, str | bytes | Mapping):
                raise TypeError
            return [float(value) for value in returned]
        except (TypeError, ValueError):
            raise RewardError(
                f"reward function {name!r} returned {returned!r:.200} on task {trajectory.task_id!r}; it has to be "
                "(trajectory) -> list[float], one number per line, 0.0 where it has nothing to say"
            ) from None

    try:
        values: list[float] = in_own_thread(call).result(limit_s)
    except TimeoutError as error:
        with _loop_lock:  # the next awaitable starts a new loop: this one may hang in code that does not await
            _loop = None
        raise RewardError(
            f"reward function {name!r} took longer than {limit_s:g} s, or raised TimeoutError, on task "
            f"{trajectory.task_id!r}; raise rewards.function_s, or let it give up earlier"
        ) from error
    except RewardError:
        raise
    except (Exception, SystemExit) as error:  # users' code may raise anything
        line = place_of(error)
        raise RewardError(
            f"reward function {name!r} raised {type(error).__name__}: {error} ({line and f'{line}, '}on task "
            f"{trajectory.task_id!r})"
        ) from error
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
