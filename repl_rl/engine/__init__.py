"""Token ids in, one sampled line out.

An engine knows tokens and weights, but nothing of kernels. `Engine` is the interface: a trajectory takes a `Slot` of an
engine and asks it for one line after another; the tests use a scripted engine. `make_engine` makes the engine that a
config names.
"""

from repl_rl.engine.base import CountsPrompts as CountsPrompts
from repl_rl.engine.base import Engine as Engine
from repl_rl.engine.base import Finish as Finish
from repl_rl.engine.base import SampledLine as SampledLine
from repl_rl.engine.base import ServesSlots as ServesSlots
from repl_rl.engine.base import SharedEngine as SharedEngine
from repl_rl.engine.base import Sleeps as Sleeps
from repl_rl.engine.base import Slot as Slot
from repl_rl.engine.base import TakesAdapters as TakesAdapters
from repl_rl.engine.base import TensorFacts as TensorFacts
from repl_rl.engine.base import TrainableEngine as TrainableEngine
from repl_rl.engine.base import Versions as Versions
from repl_rl.engine.factory import make_engine as make_engine
from repl_rl.engine.vocabulary import Vocabulary as Vocabulary
from repl_rl.engine.vocabulary import load_vocabulary as load_vocabulary
