"""Decides what equals a reference answer: plain numbers in the caller's process, everything else in separate processes.

`verdicts` runs in the caller's process. It asks `process`, which starts `program`. That reads answers (`python_text`,
`latex_text`) and compares them (`compare`) with sympy and math-verify, which are loaded only there.
"""

from repl_rl.tasks.grading.verdicts import grade, grade_many, require_gradable

__all__ = ["grade", "grade_many", "require_gradable"]
