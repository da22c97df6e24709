"""Our interpreter and our credit inside other trainers; importing this package loads none of them.

- `trl`: an `environment_factory` for TRL's own `GRPOTrainer`.
- `openenv`: an OpenEnv server, which `repl-rl serve openenv` starts.
- `verifiers`: a taskset, a harness and an environment for `verifiers`.
- `credit`: our credit for the turns of any trainer; `verl` has it for verl, and `trl_credit` for TRL's `GRPOTrainer`.
"""
