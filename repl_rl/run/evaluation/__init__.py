"""`repl-rl eval`: compares several models and dialects on the same held-out problems, with confidence intervals.

Importing this package loads nothing heavy, so that the command line starts quickly.
"""
