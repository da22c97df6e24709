"""Set before torch is imported anywhere: what the CPU engine needs when kernels share its cores."""

from repl_rl.engine.environment import prepare_environment

prepare_environment()
