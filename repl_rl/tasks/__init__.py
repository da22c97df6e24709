"""Number problems that nobody does in the head, and the grader that reads what was submitted."""

from repl_rl.tasks.families import FAMILIES, Family
from repl_rl.tasks.grading import grade
from repl_rl.tasks.make import Split, make_tasks, split_of

__all__ = ["FAMILIES", "Family", "Split", "grade", "make_tasks", "split_of"]
