"""What equals a reference answer: an exact comparison of plain numbers here, all else in processes of its own.

`exact` runs in the caller's process and knows numerals alone. `process` starts `program`, which reads answers
(`python_text`, `latex_text`, `reading`) and compares them (`same`) with sympy and math-verify, which nothing else here
loads.
"""
