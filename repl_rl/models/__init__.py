"""Finds the checkpoint that a config names: a folder, a hub id, nano or Gemma."""

from repl_rl.models.find import find_model, resolve_model

__all__ = ["find_model", "resolve_model"]
