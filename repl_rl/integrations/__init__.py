"""Our interpreter inside other people's trainers, one module per trainer; importing this loads none of them.

- `trl`: an `environment_factory` for TRL's own `GRPOTrainer`.
- `verifiers`: a taskset, a harness and an environment for `verifiers`.
"""
