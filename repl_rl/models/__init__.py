"""From the name in a config to a checkpoint that can be loaded: a folder, a hub id, nano, Gemma."""

from repl_rl.models.find import find_model, resolve_model

__all__ = ["find_model", "resolve_model"]
