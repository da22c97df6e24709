"""Token ids in, one sampled line out.

An engine knows tokens and weights, but nothing of kernels. `Engine` is the interface: a trajectory takes a `Slot` of an
engine and asks it for one line after another; the tests use a scripted engine. `make_engine` makes the engine that a
config names. Importing this loads nothing; a name that is asked for loads its module.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.engine.base import CountsPrompts as CountsPrompts
    from repl_rl.engine.base import CountsSteps as CountsSteps
    from repl_rl.engine.base import Engine as Engine
    from repl_rl.engine.base import Finish as Finish
    from repl_rl.engine.base import RecordsGraphs as RecordsGraphs
    from repl_rl.engine.base import SampledLine as SampledLine
    from repl_rl.engine.base import ServesSlots as ServesSlots
    from repl_rl.engine.base import SharedEngine as SharedEngine
    from repl_rl.engine.base import Sleeps as Sleeps
    from repl_rl.engine.base import Slot as Slot
    from repl_rl.engine.base import TakesAdapters as TakesAdapters
    from repl_rl.engine.base import TensorFacts as TensorFacts
    from repl_rl.engine.base import TrainableEngine as TrainableEngine
    from repl_rl.engine.base import Versions as Versions
    from repl_rl.engine.base import slot_of as slot_of
    from repl_rl.engine.factory import make_engine as make_engine
    from repl_rl.engine.vocabulary import Vocabulary as Vocabulary
    from repl_rl.engine.vocabulary import load_vocabulary as load_vocabulary

_HOMES = {
    "CountsPrompts": "base",
    "CountsSteps": "base",
    "Engine": "base",
    "Finish": "base",
    "RecordsGraphs": "base",
    "SampledLine": "base",
    "ServesSlots": "base",
    "SharedEngine": "base",
    "Sleeps": "base",
    "Slot": "base",
    "TakesAdapters": "base",
    "TensorFacts": "base",
    "TrainableEngine": "base",
    "Versions": "base",
    "Vocabulary": "vocabulary",
    "load_vocabulary": "vocabulary",
    "make_engine": "factory",
    "slot_of": "base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.engine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.engine.{_HOMES[name]}"), name)
