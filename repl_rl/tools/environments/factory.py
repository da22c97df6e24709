"""What an environment is, and how the argument `environment=` makes one for each trajectory.

A class, or any other callable without `reset`, is called for each trajectory; an object with `reset` is deep-copied.
`reset` tells whether it is written for us or for TRL, and so does `get_reward`, which only TRL's environments have:

- ours: `reset` can be called with the task as its one positional argument, and takes no `**kwargs`;
- TRL's: it takes `**kwargs`, or the columns of a row by their names.

If that guess is wrong, wrap a TRL environment in `from_trl`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any, Protocol

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.import_path import imported
from repl_rl.utils.user_code import Seam, boundary, called

_NO_TOOLS = ("reset", "get_reward")

TrlFactory = Callable[[], Any]


class Environment(Protocol):
    """The user's own state outside the sandbox, one object for each trajectory.

    Only `reset` is required. Any method may be async. Plain methods of one environment, including those that became
    tools, run in one thread, one after another.

    More methods are optional:

    - `observe() -> str | None`: text for the model. After `reset`, it is appended to the question; after a line, it
      follows what the interpreter showed.
    - `reward(trajectory) -> float | None`: what the trajectory earned; None to leave that to the grader.
    - `close()`: called once, however the trajectory ended.
    - `use_model(model)`: called before `reset`; `await model.ask(prompts)` asks the language model of the config's
      section `subcalls`, and returns a list of texts.
    - `session_setup`: not a method but code, which runs in the session before its first line, as a text. There it may
      import `repl_tools` (kernels/python/repl_tools.py).
    - `check(task)`: of the class, so without self; called for all tasks before anything starts. Raises ConfigError for
      a task that it can't take.
    - `fork()`: a copy that goes on from the same state, for trees. With the attribute `forks = True` and without this
      method, the copy is a deep copy. An environment that has neither begins anew in a branch, whose lines run again.
    """

    def reset(self, task: Task) -> Any:  # dict[str, Any] | None, or an awaitable of it
        """Names for the session's namespace.

        Functions and bound methods become tools that run outside the sandbox, with their state; like any tool they need
        a docstring and annotations. Any other value is copied into the sandbox by cloudpickle.
        """


EnvironmentFactory = Callable[[], Environment]

SHIPPED = {"rlm": "repl_rl.tools.environments.rlm:RLM"}
"""The environments that have a name."""


def environment_factory(environment: Any) -> EnvironmentFactory:
    """What makes one environment per trajectory, from a class, a factory, an object, or the import path of one.

    A dict of TRL factories is accepted too. A factory that is not a class is called once here, to see what it makes.
    Raises ConfigError for something without `reset`, and for an object that can't be copied.
    """
    if isinstance(environment, str):
        path = SHIPPED.get(environment, environment)
        environment = imported(path, "environment", f"package.module:Class, or {', '.join(SHIPPED)}")
    if isinstance(environment, Mapping):
        return from_trl(environment)
    if isinstance(environment, partial) and environment.func is TrlEnvironment:
        return environment
    make = sample = environment
    is_class = inspect.isclass(environment)
    if not is_class and callable(getattr(environment, "reset", None)):
        make = partial(copy.deepcopy, environment)
        # An object's own __deepcopy__ may raise anything.
        with boundary(Seam.ENVIRONMENT_FACTORY, environment, where="as it was copied"):
            sample = make()
    elif not is_class and callable(environment):
        sample = _sample(environment)
    return from_trl(make) if is_trl(sample) else make


def pays_outcome(make: EnvironmentFactory) -> bool:
    """Whether these environments have a method that says what a session is worth. Raises ConfigError."""
    if isinstance(make, partial) and make.func is TrlEnvironment:
        [factory] = make.args
        factories = factory.values() if isinstance(factory, Mapping) else [factory]
        return all(callable(getattr(_sample(factory), "get_reward", None)) for factory in factories)
    return callable(getattr(_sample(make), "reward", None))


def _sample(factory: Callable[[], Any]) -> Any:
    """A class itself, or what another factory makes. Raises ConfigError."""
    if inspect.isclass(factory):
        return factory
    return called(Seam.ENVIRONMENT_FACTORY, factory)


def is_trl(environment: Any) -> bool:
    """Whether a class or an object is written for TRL. Raises ConfigError if it is neither TRL's nor ours."""
    name = _name_of(environment)
    reset = getattr(environment, "reset", None)
    if not callable(reset):
        raise ConfigError(f"environment {name} has no method reset(task), which begins a trajectory")
    if callable(getattr(environment, "get_reward", None)):
        return True
    signature = inspect.signature(reset)
    parameters = list(signature.parameters.values())
    if inspect.isclass(environment) and not isinstance(
        inspect.getattr_static(environment, "reset"), staticmethod | classmethod
    ):
        parameters = parameters[1:]  # without self
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return True
    try:
        signature.replace(parameters=parameters).bind(None)
    except TypeError:
        if any(parameter.default is Parameter.empty for parameter in parameters):
            return True  # it needs other columns of a row than the task
        raise ConfigError(
            f"environment {name}: its reset takes no task; write reset(self, task), or reset(self, **row)"
        ) from None
    return False


def _name_of(environment: Any) -> str:
    return getattr(environment, "__name__", None) or type(environment).__name__


def from_trl(factory: TrlFactory | Mapping[str, TrlFactory]) -> Callable[[], TrlEnvironment]:
    """An environment factory from what `GRPOTrainer(environment_factory=...)` takes. Raises ConfigError."""
    factories = list(factory.values()) if isinstance(factory, Mapping) else [factory]
    if not factories or not all(map(callable, factories)):
        raise ConfigError(
            f"{factory!r} is not an environment_factory; give a class, a function that makes one, or a dict"
        )
    return partial(TrlEnvironment, factory)


class TrlEnvironment:
    """An `Environment` around one that is written for TRL's `environment_factory`.

    `instance` is the TRL environment; it is made by `reset`. As in TRL 1.16 (`trl/trainer/grpo_trainer.py`), the tools
    are the class's functions, except `reset`, `get_reward` and names that begin with `_`; `reset` gets the columns of
    the row by name and returns None or the text right after the prompt; `get_reward()` takes no arguments. With a dict
    of factories, the row's column `environment` picks one and is not passed on. Two things differ from TRL: every
    trajectory has an object of its own, where TRL resets old ones, and images in an observation are refused.
    """

    def __init__(self, factory: TrlFactory | Mapping[str, TrlFactory]) -> None:
        self._factory = factory
        self._observation: str | None = None
        self.instance: Any = None

    def reset(self, task: Task) -> Any:
        """The tools by name. Raises what the environment raises, and TypeError and ValueError like TRL."""
        row = {"prompt": [{"role": "user", "content": task.question}], "answer": task.answer, **task.metadata}
        factory = self._factory
        if isinstance(factory, Mapping):
            name = row.pop("environment", None)
            if name not in factory:
                raise ValueError(f"the task has environment={name!r}; expected one of {list(factory)}")
            factory = factory[name]
        self.instance = factory()
        observation = self.instance.reset(**row)
        if inspect.isawaitable(observation):
            return self._begin_later(observation)
        return self._begin(observation)

    def around(self, instance: Any) -> TrlEnvironment:
        """Another one of this kind around an instance that has begun."""
        environment = TrlEnvironment(self._factory)
        environment.instance = instance
        return environment

    def observe(self) -> str | None:
        """What `reset` returned, once."""
        observation = self._observation
        self._observation = None
        return observation

    def reward(self, trajectory: Trajectory) -> Any:
        """What `get_reward` returns, or its awaitable; None if there is no `get_reward`."""
        get_reward = getattr(self.instance, "get_reward", None)
        return None if get_reward is None else get_reward()

    async def _begin_later(self, observation: Any) -> dict[str, Any]:
        return self._begin(await observation)

    def _begin(self, observation: Any) -> dict[str, Any]:
        """Keep what `reset` returned, and return the tools."""
        self._observation = None if observation is None else _text(observation)
        # TRL makes these methods tools. They are looked up on the class: on the instance, properties would run.
        methods = {}
        for name, _ in inspect.getmembers(type(self.instance), predicate=inspect.isfunction):
            if name not in _NO_TOOLS and not name.startswith("_"):
                method = getattr(self.instance, name)
                methods[method.__name__] = method
        return methods


def _text(observation: Any) -> str:
    """An observation as text. Like TRL, takes a string or a list of message parts. Raises TypeError for images."""
    if isinstance(observation, str):
        return observation
    parts = observation if isinstance(observation, list) else [observation]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise TypeError(f"reset returned {observation!r}; it has to return None, a string, or a list of text parts")
    return "".join(part["text"] for part in parts)
