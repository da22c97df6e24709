"""Ids in, one sampled line out.

An engine knows tokens and weights, and no kernels. `Engine` is the seam: a trajectory takes a `Slot` at it and asks for
line after line; the tests run the line loop with a scripted one. `make_engine` picks by config.
"""

from repl_rl.engine.base import Engine, Finish, SampledLine, ServesSlots, SharedEngine, Slot, TrainableEngine
from repl_rl.engine.factory import make_engine
from repl_rl.engine.vocabulary import Vocabulary, load_vocabulary

__all__ = [
    "Engine",
    "Finish",
    "SampledLine",
    "ServesSlots",
    "SharedEngine",
    "Slot",
    "TrainableEngine",
    "Vocabulary",
    "load_vocabulary",
    "make_engine",
]
