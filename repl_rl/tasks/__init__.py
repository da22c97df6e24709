"""Problems and the grader that reads what was submitted: generated families, data sets, answers of every form."""

from repl_rl.tasks.families import FAMILIES, Family
from repl_rl.tasks.grading import grade, grade_many, require_gradable
from repl_rl.tasks.make import Split, make_tasks, split_of

__all__ = ["FAMILIES", "Family", "Split", "grade", "grade_many", "make_tasks", "require_gradable", "split_of"]
