"""Set before torch is imported anywhere: what the CPU engine needs when kernels share its cores."""

from hypothesis import settings

from repl_rl.engine.environment import prepare_environment

prepare_environment()

# A busy machine is no fault of the code; pytest's own time limit catches what hangs.
settings.register_profile("repl_rl", deadline=None)
settings.load_profile("repl_rl")
