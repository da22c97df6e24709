"""Finds the checkpoint that a config names: a folder, a hub id, nano or Gemma."""

from repl_rl.models.find import find_model as find_model
from repl_rl.models.find import resolve_model as resolve_model
