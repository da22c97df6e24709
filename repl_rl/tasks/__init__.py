"""Problems, from generated families and data sets, and the grader that reads submitted answers of every form."""

from repl_rl.tasks.datasets import PRESETS, Preset, load_splits, load_tasks, require_gradable
from repl_rl.tasks.families import FAMILIES, Family
from repl_rl.tasks.grading import grade, grade_many, judge_many
from repl_rl.tasks.grading.reasons import Verdict
from repl_rl.tasks.identity import Split
from repl_rl.tasks.make import environment_of, make_tasks, split_of
from repl_rl.tasks.symbolic import SYMBOLIC_FAMILIES

__all__ = [
    "FAMILIES",
    "PRESETS",
    "SYMBOLIC_FAMILIES",
    "Family",
    "Preset",
    "Split",
    "Verdict",
    "environment_of",
    "grade",
    "grade_many",
    "judge_many",
    "load_splits",
    "load_tasks",
    "make_tasks",
    "require_gradable",
    "split_of",
]
