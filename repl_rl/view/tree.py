"""A group that was forked, as rows of a tree: one row a rollout, one column a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repl_rl.credit.tree import Segment, trees
from repl_rl.trajectory import Line, Trajectory
from repl_rl.view.words import VERDICT_MARKS, status


@dataclass(frozen=True, slots=True)
class TreeCell:
    """A line. `worth` is what its segment came to, at the first line of one; `forks` says that it ends one."""

    line: Line
    worth: float | None
    forks: bool


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A rollout, `number` in its group from 1 on. It begins `before` columns from the left; `began` says how."""

    number: int
    verdict: str
    mark: str
    before: int
    began: str
    cells: tuple[TreeCell, ...]


def tree_rows(group: Sequence[Trajectory]) -> list[TreeRow]:
    """Roots in their order, each followed by its branches.

    Empty for a group in which nothing forked, or of which a parent is missing.
    """
    if all(member.branch is None for member in group):
        return []
    rewards = [[line.reward or 0.0 for line in member.lines] for member in group]
    try:
        worths = {(each.member, each.start): each.worth(rewards) for first in trees(group) for each in _all(first)}
    except ValueError:
        return []
    children: dict[int, list[tuple[int, int]]] = {}
    for index, member in enumerate(group):
        if member.branch is not None and member.branch.line:
            children.setdefault(member.branch.parent, []).append((member.branch.line, index))
    rows: list[TreeRow] = []

    def add(index: int, before: int) -> None:
        member, forks = group[index], {line for line, _ in children.get(index, ())}
        verdict, branch, began = status(member), member.branch, ""
        if branch is not None:
            began = f"by {branch.by} after line {branch.line - 1} of #{branch.parent + 1}, weight {branch.weight:.3g}"
            began = began if branch.line else "from the prompt, instead of a fork that did not come about"
        cells = [
            TreeCell(line, worths.get((index, number)) if number in {0, *forks} else None, number + 1 in forks)
            for number, line in enumerate(member.lines)
        ]
        rows.append(TreeRow(index + 1, verdict, VERDICT_MARKS[verdict], before, began, tuple(cells)))
        for line, child in sorted(children.get(index, ())):
            add(child, before + line)

    for index, member in enumerate(group):
        if member.branch is None or not member.branch.line:
            add(index, 0)
    return rows


def _all(segment: Segment) -> list[Segment]:
    return [segment, *(each for following in segment.following for each in _all(following))]
