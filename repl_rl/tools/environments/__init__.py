"""Environments: the user's own state that a trajectory acts on, with tools, observations and rewards."""

from repl_rl.tools.environments.factory import EnvironmentFactory, environment_factory
from repl_rl.tools.environments.session import EnvironmentSession

__all__ = ["EnvironmentFactory", "EnvironmentSession", "environment_factory"]
