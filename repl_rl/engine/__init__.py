"""Token ids in, one sampled line out.

An engine knows tokens and weights, but nothing of kernels. `Engine` is the interface: a trajectory takes a `Slot` of an
engine and asks it for one line after another; the tests use a scripted engine. `make_engine` makes the engine that a
config names.
"""

from repl_rl.engine.base import (
    Engine,
    Finish,
    SampledLine,
    ServesSlots,
    SharedEngine,
    Slot,
    TensorFacts,
    TrainableEngine,
    Versions,
)
from repl_rl.engine.factory import make_engine
from repl_rl.engine.vocabulary import Vocabulary, load_vocabulary

__all__ = [
    "Engine",
    "Finish",
    "SampledLine",
    "ServesSlots",
    "SharedEngine",
    "Slot",
    "TensorFacts",
    "TrainableEngine",
    "Versions",
    "Vocabulary",
    "load_vocabulary",
    "make_engine",
]
