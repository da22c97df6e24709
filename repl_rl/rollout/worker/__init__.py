"""Rollouts in a process of their own, next to the one that samples.

In one process, the line loop and the engine would take turns at Python's interpreter lock, and each line that is
parsed, run and inserted would hold up the whole batch. So the loop and its kernels live in a worker. Only ids cross
over: requests for lines, sampled tokens, and the finished trajectories.
"""

from repl_rl.rollout.worker.handle import RolloutWorker as RolloutWorker
