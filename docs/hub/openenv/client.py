"""Actions are `{"code": ...}`; observations have `output`, `kind`, `error_name` and, after a reset, `question`."""

from openenv.core import GenericEnvClient


class ReplRlEnv(GenericEnvClient):
    """A session of the server. Needs neither repl_rl nor torch."""
