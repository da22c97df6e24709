"""Families of long sessions: a world behind a tool, walked through move by move. The number in a name is the length.

A task of length n can be solved in n lines: n - 1 moves, and one to submit. The world's state is on the host, where
typed code can't read it. Its rules are known here, so what each state is worth to a policy can be computed exactly
(`repl_rl.tasks.worlds.world.value`). Rewards come from the world: 1 for one that is solved when the session ends.
"""

from repl_rl.tasks.families import Family
from repl_rl.tasks.worlds import lock, maze

WORLD_FAMILIES: dict[str, Family] = {family.name: family for module in (lock, maze) for family in module.FAMILIES}
"""All of them by name."""

__all__ = ["WORLD_FAMILIES"]
