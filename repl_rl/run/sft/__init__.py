"""`repl-rl sft`: fine-tuning on recorded sessions, a cold start for training with rewards."""
