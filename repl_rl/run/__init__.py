"""A run from config to report: its folder, its progress display, held-out evaluation, training and resuming.

Importing this loads nothing: the commands of `repl-rl` name their arguments from here.
"""
