"""What `repl-rl eval` does: several models and dialects on the same held-out problems, with intervals, side by side.

Loads nothing by itself, so that the command line stays quick.
"""
