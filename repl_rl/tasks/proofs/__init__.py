"""Problems like proofs: the submission is the evidence, and a checker decides whether it holds.

A witness shows that something exists, a counterexample that a claim is false, an invariant that a loop never leaves a
set of states. There are many right answers, so nothing is compared: a confined process reads the submission as data
(`reading`) and checks it against the problem, exactly. Nothing that is submitted is ever evaluated.
"""

from repl_rl.tasks.families import Family
from repl_rl.tasks.proofs import examples, invariant

PROOF_FAMILIES: dict[str, Family] = {family.name: family for family in examples.FAMILIES + invariant.FAMILIES}
"""The families of proofs by name."""
