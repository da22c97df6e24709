"""From what `environment=` is given to a function that makes one environment per trajectory.

A class or any other callable without `reset` is called for each; an object with `reset` is deep-copied. Whether it is
ours or TRL's is read from `reset`, or from `get_reward`, which only TRL's have:

- ours: `reset` can be called with the task as its one positional argument, and takes no `**kwargs`;
- TRL's: it takes `**kwargs`, or the columns of a row by their names.

Where that guesses wrong, `from_trl` says it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.tools.environments.protocol import Environment
from repl_rl.tools.environments.trl import TrlEnvironment, from_trl
from repl_rl.utils.import_path import imported

EnvironmentFactory = Callable[[], Environment]


def environment_factory(environment: Any) -> EnvironmentFactory:
    """What makes one environment per trajectory, from a class, a factory, an object, or an import path of one of them.

    A dict of TRL's factories is taken, too. A factory that is no class is called once more, to see what it makes.
    Raises ConfigError on something without `reset`, and on an object that can't be copied.
    """
    if isinstance(environment, str):
        environment = imported(environment, "environment", "package.module:Class")
    if isinstance(environment, Mapping):
        return from_trl(environment)
    if isinstance(environment, partial) and environment.func is TrlEnvironment:
        return environment
    make, sample = _maker(environment)
    return from_trl(make) if is_trl(sample) else make


def is_trl(environment: Any) -> bool:
    """Whether a class or an object is written for TRL. Raises ConfigError if it is neither TRL's nor ours."""
    name = _name_of(environment)
    reset = getattr(environment, "reset", None)
    if not callable(reset):
        raise ConfigError(f"environment {name} has no method reset(task), which begins a trajectory")
    if callable(getattr(environment, "get_reward", None)):
        return True
    parameters = list(inspect.signature(reset).parameters.values())
    if inspect.isclass(environment) and not isinstance(
        inspect.getattr_static(environment, "reset"), staticmethod | classmethod
    ):
        parameters = parameters[1:]  # without self
    return _takes_columns(parameters, name)


def _takes_columns(parameters: list[Parameter], name: str) -> bool:
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return True
    required = [parameter for parameter in parameters if parameter.default is Parameter.empty]
    named = [p for p in required if p.kind is Parameter.KEYWORD_ONLY]
    positional = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    if named or len([p for p in required if p.kind is not Parameter.VAR_POSITIONAL]) > 1:
        return True
    if not positional:
        raise ConfigError(
            f"environment {name}: its reset takes no task; write reset(self, task), or reset(self, **row)"
        )
    return False


def _maker(environment: Any) -> tuple[Callable[[], Any], Any]:
    """What makes one, and a class or an object to look at."""
    if inspect.isclass(environment):
        return environment, environment
    if callable(getattr(environment, "reset", None)):
        return partial(copy.deepcopy, environment), _copied(environment)
    if not callable(environment):
        raise ConfigError(f"environment {_name_of(environment)} has no method reset(task), which begins a trajectory")
    try:
        return environment, environment()
    except Exception as error:  # a user's factory may raise anything
        raise ConfigError(f"the environment factory {_name_of(environment)} raised {_said(error)}") from error


def _copied(environment: Any) -> Any:
    try:
        return copy.deepcopy(environment)
    except Exception as error:  # an object's own __deepcopy__ may raise anything
        raise ConfigError(
            f"environment {_name_of(environment)} is an object, which every trajectory gets a copy of, and it can't be "
            f"copied ({_said(error)}); give its class, or a function that makes one"
        ) from error


def _name_of(environment: Any) -> str:
    return getattr(environment, "__name__", None) or type(environment).__name__


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
