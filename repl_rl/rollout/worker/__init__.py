"""Rollouts in a process of their own, beside the one that samples.

The line loop and an engine that steps in this process would take turns at Python's interpreter lock: each line that is
parsed, run and put in would hold up the whole batch. So the loop and its kernels live in a worker, and what crosses
over is ids: which line is wanted, what was sampled, and the finished trajectories.
"""

from repl_rl.rollout.worker.handle import RolloutWorker

__all__ = ["RolloutWorker"]
