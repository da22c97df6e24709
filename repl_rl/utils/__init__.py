"""What is not about us: loops and threads, a pickled channel, cache folders, import paths, processes, text, statistics."""
