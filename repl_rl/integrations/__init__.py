"""Our interpreter inside other trainers, one module per trainer; importing this package loads none of them.

- `trl`: an `environment_factory` for TRL's own `GRPOTrainer`.
- `openenv`: an OpenEnv server, which `repl-rl serve openenv` starts.
- `verifiers`: a taskset, a harness and an environment for `verifiers`.
"""
