"""Environments: state of the user's own that a trajectory acts on, with tools, observations and rewards."""

from repl_rl.tools.environments.factory import EnvironmentFactory, environment_factory, is_trl
from repl_rl.tools.environments.protocol import Environment
from repl_rl.tools.environments.session import EnvironmentSession
from repl_rl.tools.environments.trl import TrlEnvironment, from_trl, row_of

__all__ = [
    "Environment",
    "EnvironmentFactory",
    "EnvironmentSession",
    "TrlEnvironment",
    "environment_factory",
    "from_trl",
    "is_trl",
    "row_of",
]
