"""Our interpreter and our credit inside other trainers, and our sessions in other formats; importing this package loads
none of them.

- `trl`: an `environment_factory` for TRL's own `GRPOTrainer`.
- `openenv`: an OpenEnv server, which `repl-rl serve openenv` starts.
- `verifiers`: a taskset, a harness and an environment for `verifiers`.
- `atif`, `inspect_log`: sessions as `repl-rl export` writes them.
- `credit`: our credit for the turns of any trainer; `verl` has it for verl, and `trl_credit` for TRL's `GRPOTrainer`.
"""
