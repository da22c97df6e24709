"""What stands around one trajectory: its dialect and prompt, the tools in its session, the environment that it acts on.

Without an environment every trajectory has the same tools, and nothing here is done anew for each. Users bring tools,
environments and samplers as `Extensions`, which pickle with functions of `__main__` and closures in them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from repl_rl.config import Config
from repl_rl.dialect import Dialect, Turn
from repl_rl.errors import ConfigError, EnvironmentFailure
from repl_rl.rollout.custom import Sampler, load_sampler
from repl_rl.rollout.state import Prompt
from repl_rl.tools import Tool, Toolbox, as_tools
from repl_rl.tools.environments import EnvironmentFactory, EnvironmentSession, environment_factory
from repl_rl.tools.tool import Where
from repl_rl.trajectory import Task, Trajectory

_REMEMBERED_DIALECTS = 256


@dataclass(frozen=True)
class Extensions:
    """What users bring. `environment` makes one per trajectory; `sampler` stands in place of our line loop."""

    toolbox: Toolbox = field(default_factory=Toolbox)
    environment: EnvironmentFactory | None = None
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        if self.sampler is not None and (self.toolbox or self.environment is not None):
            raise ConfigError(
                "rollout is a loop of your own, which tools and environment would never reach; give them to that loop"
            )

    def require_backend(self, backend: str) -> None:
        """Raises ConfigError if tools of the host can't be called from kernels of that backend."""
        names = [tool.name for tool in self.toolbox.tools if tool.where == "host"]
        if names and backend != "fork":
            raise ConfigError(
                f"tool {names[0]!r} runs on the host, where no call comes from kernel.backend {backend!r}; take "
                "kernel.backend fork, or where='sandbox'"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        try:
            return _extensions, (cloudpickle.dumps((self.toolbox, self.environment, self.sampler)),)
        except ConfigError:
            raise
        except Exception as error:  # an object's own __reduce__ may raise anything
            raise ConfigError(f"the environment or sampler can't be sent to another process: {error}") from error


def load_extensions(config: Config) -> Extensions:
    """What the file names by import path. Raises ConfigError if something can't be imported or used."""
    extensions = make_extensions(config.tools.functions, config.tools.where, config.environment, config.rollout)
    extensions.require_backend(config.kernel.backend)
    return extensions


def make_extensions(
    tools: Iterable[Any] = (), where: Where = "sandbox", environment: Any = None, sampler: Any = None
) -> Extensions:
    """From functions, classes and import paths. Raises ConfigError, with what is wrong with which of them."""
    toolbox = Toolbox(as_tools(tools, where))
    toolbox.setup_source()  # raises where something can't be packed
    return Extensions(
        toolbox,
        None if environment is None else environment_factory(environment),
        None if sampler is None else load_sampler(sampler),
    )


def _extensions(data: bytes) -> Extensions:
    return Extensions(*pickle.loads(data))


@dataclass(frozen=True, slots=True)
class Episode:
    """Of one trajectory. `environment` is open."""

    prompt: Prompt
    dialect: Dialect
    toolbox: Toolbox
    environment: EnvironmentSession | None = None

    @property
    def setup(self) -> tuple[str, ...]:
        """Code for the session before its first cell."""
        return (self.dialect.setup, self.toolbox.setup_source())

    async def observed(self, turn: Turn) -> str:
        """What the environment shows behind a turn in which something ran. Raises EnvironmentFailure."""
        return "" if self.environment is None or not turn.cells else await self.environment.after_line()

    async def graded(self, trajectory: Trajectory) -> Trajectory:
        """With what the environment pays for it. Raises EnvironmentFailure."""
        if self.environment is None or trajectory.is_void:
            return trajectory
        return replace(trajectory, environment_reward=await self.environment.reward(trajectory))


class EpisodeMaker:
    """Makes the episode of each trajectory.

    `dialect_with` gives the dialect that offers some tools, `prompt_of` the prompt of a task in a dialect.
    """

    def __init__(
        self,
        extensions: Extensions,
        dialect_with: Callable[[Sequence[Tool]], Dialect],
        prompt_of: Callable[[Dialect, Task], Prompt],
    ) -> None:
        self._extensions = extensions
        self._dialect_with = dialect_with
        self._prompt_of = prompt_of
        self._dialects: dict[tuple[tuple[str, str, str], ...], Dialect] = {}
        self.dialect = self._dialect(extensions.toolbox)
        """With the tools that every trajectory has."""

    async def make(self, task: Task, stack: AsyncExitStack) -> Episode:
        """Open the environment, which ends with `stack`. Raises EnvironmentFailure."""
        toolbox = self._extensions.toolbox
        if self._extensions.environment is None:
            return Episode(self._prompt_of(self.dialect, task), self.dialect, toolbox)
        environment = EnvironmentSession(self._extensions.environment)
        stack.push_async_callback(environment.close)
        own, observation = await environment.open(task)
        seen = replace(task, question=f"{task.question}{observation}")
        try:  # what it brings may be too much in one trajectory of many, or collide with the tools of all
            toolbox = toolbox.joined(own)
            dialect = self._dialect(toolbox)
            return Episode(self._prompt_of(dialect, seen), dialect, toolbox, environment)
        except ConfigError as error:
            raise EnvironmentFailure(f"with tools and first observation of the environment, {error}") from error

    def _dialect(self, toolbox: Toolbox) -> Dialect:
        """One per set of tools: most environments have the same ones every time."""
        key = tuple((tool.name, tool.signature, tool.doc) for tool in toolbox.tools)
        if key not in self._dialects:
            if len(self._dialects) >= _REMEMBERED_DIALECTS:
                self._dialects.clear()
            self._dialects[key] = self._dialect_with(toolbox.tools)
        return self._dialects[key]
