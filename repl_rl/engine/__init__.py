"""Ids in, one sampled line out.

An engine knows tokens and weights, and no kernels. `Engine` is the seam: the line loop works with anything that has
`sample_line`, and the tests run it with a scripted one. `make_engine` picks by config.
"""

from repl_rl.engine.base import Engine, Finish, SampledLine
from repl_rl.engine.factory import make_engine
from repl_rl.engine.vocabulary import Vocabulary, load_vocabulary

__all__ = ["Engine", "Finish", "SampledLine", "Vocabulary", "load_vocabulary", "make_engine"]
