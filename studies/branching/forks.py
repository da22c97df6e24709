"""Rules for `branch.at` that look at outcomes: branches begin when their root is over, and bisect it.

    branch: {roots: 2, branches: 6, at: "studies.branching.forks:Contrast"}

Both sample a state that was lost more often than the policy comes there, so they are biased. An outcome is the
environment's reward, or the grade of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.rollout import ForkRule, Root


class Bisection:
    """Looks for the line that decided about a session: the last one before which another outcome can still be had.

    The first branch begins half way. After one that came out differently, the next begins half way towards the end,
    else half way towards the beginning. Once the line is found, all others begin before it.
    """

    def __init__(self, outcome: float, turns: Sequence[int]) -> None:
        """`turns` are those after which a branch may begin, in order."""
        self._outcome = outcome
        self._turns = turns
        self._least, self._end = 0, len(turns)
        self._contrasting: int | None = None

    @property
    def turn(self) -> int | None:
        """The turn after which the next branch begins; None if there is none after which anything may change."""
        return self._contrasting if self._least == self._end else self._turns[self._middle]

    @property
    def _middle(self) -> int:
        return (self._least + self._end) // 2

    def compare(self, outcome: float) -> None:
        """Take what came of the branch that began there."""
        if self._least == self._end:
            return
        if outcome != self._outcome:
            self._contrasting, self._least = self._turns[self._middle], self._middle + 1
        else:
            self._end = self._middle


class Contrast(ForkRule):
    """Bisects each root (after BranPO)."""

    looks_at_outcomes = True

    def __init__(self, roots: Sequence[Root]) -> None:
        super().__init__(roots)
        self._bisections: dict[int, Bisection] = {}

    def ended(self, root: Root, is_branch: bool, outcome: float | None) -> None:
        if not is_branch:
            self.root_ended(root, outcome)
        elif root.branches_left and root.index in self._bisections:
            if outcome is None:
                root.end()
            else:
                self._bisections[root.index].compare(outcome)
                self._begin_next(root)

    def root_ended(self, root: Root, outcome: float | None) -> None:
        """Let the first branch begin, unless the root was lost."""
        if outcome is None:
            root.end()
        else:
            self._bisections[root.index] = Bisection(outcome, root.fork_points)
            self._begin_next(root)

    def _begin_next(self, root: Root) -> None:
        turn = self._bisections[root.index].turn
        if turn is None:
            root.end()
        else:
            root.begin_branch(turn)


class PassRate(Contrast):
    """Bisects the roots of a group that all came to the same, which would teach nothing (after Prefix Sampling)."""

    def __init__(self, roots: Sequence[Root]) -> None:
        super().__init__(roots)
        self._outcomes: dict[int, float | None] = {}

    def root_ended(self, root: Root, outcome: float | None) -> None:
        self._outcomes[root.index] = outcome
        if len(self._outcomes) < len(self.roots):
            return
        agree = len({known for known in self._outcomes.values() if known is not None}) == 1
        for each in self.roots:
            super().root_ended(each, self._outcomes[each.index] if agree else None)
