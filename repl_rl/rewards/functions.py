"""Users' reward functions: found by import path, called under a time limit, their values checked.

A function gets the whole Trajectory and returns one finite number per line. It may be async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards.scored import LineValues
from repl_rl.rewards.timed import call_within, leave_loop, settled
from repl_rl.trajectory import Trajectory
from repl_rl.utils.import_path import imported

RewardFunction = Callable[[Trajectory], Sequence[float] | Awaitable[Sequence[float]]]

LARGEST = 1e9
"""Sums of a few such values are finite, too."""


def load_function(path: str) -> RewardFunction:
    """The function at `package.module:function`. Raises ConfigError."""
    function: RewardFunction = imported(path, "rewards.functions:")
    if not callable(function):
        raise ConfigError(f"rewards.functions: {path!r} is {type(function).__name__}, not a function")
    return function


def name_of(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def call_function(function: RewardFunction, trajectory: Trajectory, limit_s: float) -> LineValues:
    """One value per line. Raises RewardError with the function's name where it breaks its contract."""
    name = name_of(function)

    def call() -> list[float]:
        return [float(value) for value in settled(function(trajectory), limit_s)]

    try:
        values = call_within(call, limit_s)
    except TimeoutError as error:
        leave_loop()
        raise RewardError(
            f"reward function {name!r} took longer than {limit_s:g} s, or raised TimeoutError, on task "
            f"{trajectory.task_id!r}; raise rewards.function_s, or let it give up earlier"
        ) from error
    except Exception as error:  # users' code may raise anything
        raise RewardError(f"reward function {name!r} raised {type(error).__name__}: {error}") from error
    except SystemExit as error:
        raise RewardError(f"reward function {name!r} raised SystemExit: {error}") from error
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
