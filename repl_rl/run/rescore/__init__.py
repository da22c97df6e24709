"""`repl-rl rescore`: `command` reads a run step by step and writes what comes of it, `findings` says what changed."""
