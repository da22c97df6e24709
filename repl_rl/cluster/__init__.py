"""Rollouts on other machines, by Ray: line loops with their kernels, and vLLM servers that the run starts itself.

The trainer's side is a `RolloutCluster`, in place of the process that makes the rollouts of one machine
(`repl_rl.rollout.worker`). On each machine a `RolloutActor` runs the same `Rollout`, with kernels there and with lines
from vLLM servers. Tasks go there and trajectories come back; nothing else travels.
"""

from repl_rl.cluster.connection import connect as connect
from repl_rl.cluster.replicas import open_replicas as open_replicas
from repl_rl.cluster.rollouts import RolloutCluster as RolloutCluster
