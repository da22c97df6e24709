"""What is not about us: an event loop in a thread, a pickled channel, cache folders, import paths, process groups."""
