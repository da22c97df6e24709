"""`budget.repeats`: small models type the same failing line dozens of times, if nothing ends that."""

from __future__ import annotations

from collections import Counter

from repl_rl.dialect import Turn
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.session import Session
from repl_rl.trajectory import LineKind, StopReason


class Repeats(Guest):
    """Ends a session that has so often repeated what gets it nowhere: code that fails in one way, at any time; and, in
    a row, blank lines, one comment, or code that shows the same again, calls no tool and changes nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_row, self._last = 0, object()
        self._failures = Counter[tuple[str, str | None]]()

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        if session.stop is None and self.after(ran, turn.text) >= self._most:
            session.stop = StopReason.REPEATS
        return ran

    def after(self, ran: TurnResult, text: str) -> int:
        """The most often repeated of these, once a line is over."""
        shown = [(run.cell.source, run.text) for run in ran.cells if run.text]
        is_known = shown and not ran.calls and ran.fingerprint is not None
        done: object = (shown, ran.fingerprint) if is_known else object()
        if ran.kind in (LineKind.BLANK, LineKind.COMMENT):
            done = text.strip()
        if ran.kind is not LineKind.OPEN:  # a block comes to nothing before it ends
            self._in_row, self._last = (self._in_row + 1 if done == self._last else 1), done
        failed = [(run.cell.source, run.error_message) for run in ran.cells if run.has_failed]
        self._failures.update(failed)
        return max([self._in_row, *(self._failures[each] for each in failed)])
