"""What is not about us: loops, threads and processes, a pickled channel, cache folders, import paths, text, statistics."""
