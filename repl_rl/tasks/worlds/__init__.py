"""Families of long sessions. The number in a name is the length.

A task of length n can be solved in n lines, the last of which submits. The state of `lock` and `maze` is on the host,
where typed code can't read it. Their rules are known here, so what each state is worth to a policy can be computed
exactly (`repl_rl.tasks.worlds.world.value`), and they pay themselves: 1 if they are solved when the session ends.
`table` and `bughunt` put values into the namespace, and what is submitted is graded. The puzzles of reasoning-gym,
whose state is on the host too, are scored by that package.
"""

from repl_rl.tasks.families import Family
from repl_rl.tasks.worlds import bughunt, gym, lock, maze, table

WORLD_FAMILIES: dict[str, Family] = {
    family.name: family for module in (lock, maze, table, bughunt, gym) for family in module.FAMILIES
}
"""All of them by name."""

__all__ = ["WORLD_FAMILIES"]
