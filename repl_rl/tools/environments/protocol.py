"""What an environment is: state of the user's own outside the sandbox, one object per trajectory."""

from __future__ import annotations

from typing import Any, Protocol

from repl_rl.trajectory import Task


class Environment(Protocol):
    """A world that a trajectory acts in. `reset` is all that it needs; any method may be async.

    Plain methods of one environment, those that became tools included, run in one thread, one after another.

    It may have three more:

    - `observe() -> str | None`: text for the model. Asked after `reset`, it goes right behind the question as it is;
      after a line, it goes below what the interpreter showed.
    - `reward(trajectory) -> float | None`: what the trajectory earned, None for nothing to say.
    - `close()`: called once, however the trajectory ended.
    """

    def reset(self, task: Task) -> Any:  # dict[str, Any] | None, or an awaitable of it
        """Names for the session's namespace.

        Functions and bound methods become tools that run out here, with their state (docstring and annotations as for
        any tool); any other value is copied into the sandbox by cloudpickle.
        """
