"""Environments: the user's own state that a trajectory acts on, with tools, observations and rewards."""

from repl_rl.tools.environments.factory import EnvironmentFactory as EnvironmentFactory
from repl_rl.tools.environments.factory import environment_factory as environment_factory
from repl_rl.tools.environments.factory import pays_outcome as pays_outcome
from repl_rl.tools.environments.session import EnvironmentSession as EnvironmentSession
