"""The former place of what `repl_rl.rollout` has of `repl_rl.rollout.scoring`, for programs that import it from here.

Once this is imported, it stands where the function `repl_rl.rollout.score` is looked up: it can be called as that one.
"""

import sys
from types import ModuleType
from typing import Any

from repl_rl.rollout.scoring import CreditedTrajectory as CreditedTrajectory
from repl_rl.rollout.scoring import credit as credit
from repl_rl.rollout.scoring import credit_numbers as credit_numbers
from repl_rl.rollout.scoring import graded_by as graded_by
from repl_rl.rollout.scoring import is_flat as is_flat
from repl_rl.rollout.scoring import reward_table as reward_table
from repl_rl.rollout.scoring import score as score


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return score(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
