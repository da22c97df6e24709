"""The environment `repl-rl-env` for `verifiers`: its env, its harness and its taskset."""

from repl_rl.integrations.verifiers import ReplEnv, ReplHarness, ReplTaskset

__all__ = ["ReplEnv", "ReplHarness", "ReplTaskset"]
