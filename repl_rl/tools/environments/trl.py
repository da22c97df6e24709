"""Environments as they are written for TRL's `environment_factory`, in ours.

As in TRL 1.16 (`trl/trainer/grpo_trainer.py`): the class's functions are the tools, without `reset`, `get_reward` and
names that begin with `_`; `reset` gets the columns of the row by name and returns None or what is put right behind the
prompt; `get_reward()` takes nothing. With a dict of factories, the row's column `environment` picks one and is not
passed on. Two things differ: every trajectory has an object of its own, where TRL resets old ones, and pictures in an
observation are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Task, Trajectory

_NO_TOOLS = ("reset", "get_reward")

TrlFactory = Callable[[], Any]


def from_trl(factory: TrlFactory | Mapping[str, TrlFactory]) -> Callable[[], TrlEnvironment]:
    """A factory of ours from what `GRPOTrainer(environment_factory=...)` takes. Raises ConfigError."""
    made = factory.values() if isinstance(factory, Mapping) else [factory]
    if not all(callable(one) for one in made) or not made:
        raise ConfigError(f"{factory!r} is no environment_factory; give a class, a function that makes one, or a dict")
    return partial(TrlEnvironment, factory)


class TrlEnvironment:
    """An `Environment` around one that is written for TRL; `instance` is that one, once there was a `reset`."""

    def __init__(self, factory: TrlFactory | Mapping[str, TrlFactory]) -> None:
        self._factory = factory
        self._observation: str | None = None
        self.instance: Any = None

    def reset(self, task: Task) -> Any:
        """The tools by name. Raises what the environment raises, and TypeError and ValueError as TRL does."""
        row = row_of(task)
        self.instance = self._made(row)
        returned = self.instance.reset(**row)
        return self._started_later(returned) if inspect.isawaitable(returned) else self._started(returned)

    def observe(self) -> str | None:
        """What `reset` returned, once."""
        observation, self._observation = self._observation, None
        return observation

    def reward(self, trajectory: Trajectory) -> Any:
        """What `get_reward` returns, or its awaitable; None where there is none."""
        get_reward = getattr(self.instance, "get_reward", None)
        return None if get_reward is None else get_reward()

    def _made(self, row: dict[str, Any]) -> Any:
        if not isinstance(self._factory, Mapping):
            return self._factory()
        name = row.pop("environment", None)
        if name not in self._factory:
            raise ValueError(f"the task has environment={name!r}; expected one of {list(self._factory)}")
        return self._factory[name]()

    async def _started_later(self, returned: Any) -> dict[str, Any]:
        return self._started(await returned)

    def _started(self, returned: Any) -> dict[str, Any]:
        self._observation = None if returned is None else _text(returned)
        return tools_of(self.instance)


def row_of(task: Task) -> dict[str, Any]:
    """The columns that TRL would have: the prompt as a conversation, the answer, and the task's metadata."""
    return {"prompt": [{"role": "user", "content": task.question}], "answer": task.answer, **task.metadata}


def tools_of(instance: Any) -> dict[str, Any]:
    """The methods that TRL makes tools of, by name."""
    members = inspect.getmembers(type(instance), predicate=inspect.isfunction)  # the instance's would run properties
    names = [name for name, _ in members if name not in _NO_TOOLS and not name.startswith("_")]
    methods = [getattr(instance, name) for name in names]
    return {method.__name__: method for method in methods}


def _text(observation: Any) -> str:
    """An observation as text. TRL takes a string, or a list of parts as in a message."""
    if isinstance(observation, str):
        return observation
    parts = observation if isinstance(observation, list) else [observation]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        raise TypeError(f"reset returned {observation!r}; it has to return None, a string, or a list of text parts")
    return "".join(part["text"] for part in parts)
