"""What equals a reference answer: plain numbers are compared here at once, all else in processes of its own.

`verdicts` runs in the caller's process. It asks `process`, which starts `program`; that reads answers (`python_text`,
`latex_text`) and compares them (`compare`) with sympy and math-verify, which nothing else here loads.
"""

from repl_rl.tasks.grading.verdicts import grade, grade_many, require_gradable

__all__ = ["grade", "grade_many", "require_gradable"]
