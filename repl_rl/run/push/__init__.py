"""`repl-rl push`: a run's model and rollouts as two repositories, on the Hugging Face hub or in a folder."""
