"""One environment for one trajectory, as the rollout drives it.

    session = EnvironmentSession(environment_factory(MyEnvironment))
    try:
        toolbox, observation = await session.open(task)     # prepare the kernel; append the observation to the question
        shown += await session.after_line()                 # after every line that ran something
        verdict = await session.reward(trajectory)          # the reward, and why
    finally:
        await session.close()

A failure in the environment's own methods is an `EnvironmentFailure`, which aborts the trajectory. Once the session has
typed, it is a `BrokenStateError`, unless the environment itself raises an `EnvironmentFailure`: a session must not get
out of the loss by breaking its environment. A failure in one of its tools is an answer for the model.

Not covered: plain code that hangs can't be ended. Its thread stays, and so does the environment that it refers to.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from repl_rl.errors import BrokenStateError, ConfigError, EnvironmentFailure, ForkRefusedError, ReplRLError
from repl_rl.tasks import Verdict
from repl_rl.tools import Tool, Toolbox
from repl_rl.tools.calls import call_within
from repl_rl.tools.environments.factory import Environment, TrlEnvironment
from repl_rl.tools.tool import make_tool
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.text import shown, whole
from repl_rl.utils.threads import OneThread
from repl_rl.utils.user_code import Seam, failure

_CLOSE_S = 10.0

_log = logging.getLogger(__name__)


class EnvironmentSession:
    """Makes an environment with `make` and drives it through one trajectory. Each call may take `limit_s` seconds."""

    def __init__(self, make: Callable[[], Environment], *, model: Any = None, limit_s: float = 60.0) -> None:
        """`model` is for environments with a method `use_model`."""
        self._make = make
        self._model = model
        self._limit_s = limit_s
        self._environment: Environment | None = None
        self._thread: OneThread | None = None
        self._task: Task | None = None
        self._names: Any = {}
        self._calls: dict[Future[Any], str] = {}
        """The calls of its tools that have not ended, in their order: each by the tool's name."""
        self._has_begun = False
        """Whether the session may have acted on the environment."""

    @property
    def instance(self) -> Any:
        """The user's own object, as TRL hands it to reward functions in `environments`; None before `open`."""
        environment = self._environment
        return environment.instance if isinstance(environment, TrlEnvironment) else environment

    @property
    def setup(self) -> str:
        """Code of the environment's own for the session."""
        code = getattr(self._environment, "session_setup", "")
        return code if isinstance(code, str) else ""

    @property
    def asks_model(self) -> bool:
        """Whether it was given a model."""
        return self._model is not None and callable(getattr(self._environment, "use_model", None))

    async def open(self, task: Task) -> tuple[Toolbox, str]:
        """What goes into the session's namespace, and the text right after the question. Raises EnvironmentFailure."""
        self._thread = OneThread("repl-rl-environment")
        self._environment = await self._call("__init__", self._make)
        if self.asks_model:
            await self._call("use_model", getattr(self._environment, "use_model"), self._model)  # noqa: B009 - optional
        self._task = task
        names = await self._call("reset", self._environment.reset, task)
        self._names = {} if names is None else names
        toolbox = self._toolbox()
        text = await self._observe()
        is_trl = isinstance(self._environment, TrlEnvironment)  # TRL appends the text directly to the prompt
        if text and not text.startswith("\n") and not is_trl:
            text = f"\n{text}"
        return toolbox, text

    async def fork(self) -> tuple[EnvironmentSession, Toolbox]:
        """A copy with the state that the environment has now, to be closed by the caller, and the copy's tools.

        The environment's own method `fork()` makes it, or with `forks = True` a deep copy. Raises ForkRefusedError for
        one that has neither or fails at it, and for tools that are not its methods: they would act on the old one.
        """
        instance = self.instance
        fork = getattr(instance, "fork", None)
        if not callable(fork):
            if getattr(instance, "forks", False) is not True:
                raise ForkRefusedError(f"environment {self._name} has neither a method fork() nor forks = True")
            fork = partial(copy.deepcopy, instance)
        try:
            fork_instance = await self._call("fork", fork)
        except EnvironmentFailure as error:
            raise ForkRefusedError(str(error)) from error
        names: dict[str, Any] = {}
        for name, value in self._names.items():
            if getattr(value, "__self__", None) is instance and hasattr(fork_instance, value.__name__):
                names[name] = getattr(fork_instance, value.__name__)
            elif isinstance(value, Tool) or inspect.isfunction(value) or inspect.ismethod(value):
                raise ForkRefusedError(f"tool {name!r} is not a method of environment {self._name}")
        child = EnvironmentSession(self._make, limit_s=self._limit_s)
        child._thread = OneThread("repl-rl-environment")
        child._task = self._task
        child._names = names
        child._environment = fork_instance
        if isinstance(self._environment, TrlEnvironment):
            child._environment = self._environment.around(fork_instance)
        try:
            return child, child._toolbox()
        except EnvironmentFailure as error:
            await child.close()
            raise ForkRefusedError(str(error)) from error

    async def after_line(self) -> str:
        """What the model sees after a line, "" for nothing; it ends with a newline. Raises EnvironmentFailure."""
        self._has_begun = True
        text = await self._observe()
        if text and not text.endswith("\n"):
            text += "\n"
        return text

    async def reward(self, trajectory: Trajectory) -> Verdict | None:
        """The environment's reward, with its reason if it gives one; None without a reward. Raises EnvironmentFailure,
        also for a reward that is not finite."""
        self._has_begun = True
        reward = getattr(self._environment, "reward", None)
        value = None if reward is None else await self._call("reward", reward, trajectory)
        if value is None:
            return None
        try:
            verdict = Verdict.of(value)
        except (TypeError, ValueError, OverflowError):
            verdict = None
        if verdict is None or not math.isfinite(verdict.grade):
            trouble = f"returned {shown(value)}, not a finite number or a pair of one and a text"
            raise self._failure("reward", trouble, where=f"on task {trajectory.task_id!r}")
        return Verdict(verdict.grade, whole(verdict.reason))

    async def close(self) -> None:
        """Close the environment. A second call does nothing. Failures are only logged, as the trajectory is over."""
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        close = None
        if not isinstance(self._environment, TrlEnvironment):
            close = getattr(self._environment, "close", None)
        try:
            if close is not None:
                outcome = await call_within(close, min(self._limit_s, _CLOSE_S), thread.submit)
                trouble: BaseException | str | None = "took too long"
                if outcome is not None:
                    trouble = outcome.error
                if trouble is not None:
                    _log.warning("%s; what it holds may stay", self._failure("close", trouble))
        finally:
            thread.close()

    async def _observe(self) -> str:
        observe = getattr(self._environment, "observe", None)
        text = None if observe is None else await self._call("observe", observe)
        if text is None:
            return ""
        if not isinstance(text, str):
            raise self._failure("observe", f"returned {type(text).__name__}, not a string or None")
        return whole(text)  # it may say what a session has said

    def _toolbox(self) -> Toolbox:
        names = self._names
        if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
            raise self._failure("reset", f"returned {shown(names)}, not a dict of names and values, or None")
        try:
            tools: list[Tool] = []
            values: dict[str, Any] = {}
            for name, value in names.items():
                if isinstance(value, Tool):
                    if value.name != name:
                        raise ConfigError(f"tool {value.name!r} stands under the name {name!r}; give it under its own")
                    tools.append(value)
                elif inspect.isfunction(value) or inspect.ismethod(value):
                    tools.append(make_tool(value, "host", name=name, submit=partial(self._submit, name)))
                else:
                    values[name] = value
            toolbox = Toolbox(tools, values, withheld=(self._environment, self.instance, self._task))
            toolbox.setup_source()
        except ConfigError as error:
            raise self._failure("reset", f"returned what no session can have: {error}") from error
        return toolbox

    async def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        if self._thread is None:
            raise EnvironmentFailure(f"environment {self._name}: {name} was asked for while it was not open")
        outcome = await call_within(function, self._limit_s, self._thread.submit, args)
        if outcome is None:
            unfinished = list(self._calls.values())  # a copy, because calls end in other threads
            if unfinished:
                tool = unfinished[0]  # it has the environment's one thread
                raise self._failure(
                    name,
                    f"could not be called within {self._limit_s:g} s, because the tool {tool} did not return, which "
                    "has to give up by itself",
                )
            raise self._failure(name, f"took longer than {self._limit_s:g} s")
        if isinstance(outcome.error, EnvironmentFailure):
            raise outcome.error
        if outcome.error is not None:
            raise self._failure(name, outcome.error) from outcome.error
        return outcome.value

    def _submit(self, tool: str, call: Callable[[], Any]) -> Future[Any]:
        assert self._thread is not None
        future = self._thread.submit(call)
        self._calls[future] = tool
        future.add_done_callback(lambda future: self._calls.pop(future, None))
        return future

    def _failure(self, method: str, what: BaseException | str, where: str = "") -> ReplRLError:
        kind = BrokenStateError if self._has_begun else EnvironmentFailure
        code = self.instance
        if code is None:
            code = self._make
            if isinstance(code, partial) and code.func in (copy.deepcopy, TrlEnvironment):
                code = code.args[0]  # the user's object, or factory
        return failure(Seam.ENVIRONMENT, code, what, method, where=where, error=kind)

    @property
    def _name(self) -> str:
        """What messages about forks call it."""
        return type(self.instance).__name__
