"""What is not about us: loops, threads, processes, a pickled channel, cache folders, import paths, text, statistics."""
