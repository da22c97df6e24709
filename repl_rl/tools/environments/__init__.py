"""Environments: the user's own state that a trajectory acts on, with tools, observations and rewards."""

from repl_rl.tools.environments.factory import (
    Environment,
    EnvironmentFactory,
    TrlEnvironment,
    environment_factory,
    from_trl,
    is_trl,
)
from repl_rl.tools.environments.session import EnvironmentSession

__all__ = [
    "Environment",
    "EnvironmentFactory",
    "EnvironmentSession",
    "TrlEnvironment",
    "environment_factory",
    "from_trl",
    "is_trl",
]
