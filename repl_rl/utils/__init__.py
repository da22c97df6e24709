"""Helpers that are not specific to repl_rl: threads, processes, a pickled channel, folders, import paths, text."""
