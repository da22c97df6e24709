"""The client; the server is `repl_rl_env.server.app`."""

from .client import ReplRlEnv

__all__ = ["ReplRlEnv"]
