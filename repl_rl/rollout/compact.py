"""Compaction: a long transcript gives way to a summary and its last lines, while the interpreter lives on.

    prompt, then ` # 9 lines are left out here; what they have bound is still there: data (list), total (int)`,
    then the last lines as they were

The kept lines are the same tokens as before, and the summary is encoded once. What is sampled from then on is trained
with exactly this prompt (`Trajectory.parts`), and what was sampled before, with the one that it had.
"""

import re
from typing import Any

from repl_rl.config import SeededSampling
from repl_rl.kernel import ExecResult
from repl_rl.rollout.guest import Guest, GuestSession
from repl_rl.rollout.session import Session
from repl_rl.trajectory import Compaction, Line, LineKind, StopReason
from repl_rl.utils.text import cut_middle
from repl_rl.utils.user_code import Seam, boundary

_KEPT_LINES = 4
_SUMMARY_CHARS = 600
_NAME = re.compile(r"^([^\W\d_]\w*) \((\w+)\)$", re.MULTILINE)
_LIST_NAMES = (
    "print(*(f'{name} ({type(value).__name__})' for name, value in list(globals().items())), sep=chr(10), flush=True)"
)
"""Binds no name, and leaves `_` as it is."""


class Compactor(Guest):
    """Compacts the transcript of one session, whose dialect has a form for summaries."""

    def __init__(self, session: Session) -> None:
        budget = session.budget
        context_tokens = session.setup.context_tokens
        assert budget.compact_at is not None
        self._limit = min(int(budget.compact_at * context_tokens), context_tokens - budget.line_tokens)
        self._session = session
        self._dialect: Any = session.episode.dialect
        self._first_names: frozenset[str] = frozenset()

    async def opened(self, session: GuestSession) -> None:
        """Note the names that the session begins with. Raises KernelError."""
        result = await session.kernel.execute(_LIST_NAMES)
        self._first_names = frozenset(name for name, _ in _NAME.findall(result.output))
        if result.state_lost:
            session.end(StopReason.KILLED)

    async def after_line(self, session: GuestSession, line: Line) -> None:
        """Compact, unless the session is over. Raises KernelError."""
        if session.stop is None and self.is_due():
            result = await self.compact()
            if result.answer is not None:  # of a thread that the session has left behind
                self._session.answer = result.answer
                session.end(StopReason.ANSWER)
            elif result.state_lost:
                session.end(StopReason.KILLED)

    def is_due(self) -> bool:
        """Whether the transcript is long, and its last line is over and done with."""
        if len(self._session.transcript) < self._limit:
            return False
        lines = self._session.lines
        return lines[-1].kind is not LineKind.OPEN and self._may_cut_before(len(lines))

    async def compact(self) -> ExecResult:
        """Compact it, if that makes it shorter. As many of the last lines are kept as leave half of the room free; the
        very last one is always kept, because its output has not been read yet.

        Returns the result of listing the interpreter's names, which may say that it is gone. Raises KernelError.
        """
        session = self._session
        transcript = session.transcript
        count = len(session.lines)
        result = await session.kernel.execute(_LIST_NAMES)
        names = [f"{name} ({kind})" for name, kind in _NAME.findall(result.output) if name not in self._first_names]
        prompt = session.prompt
        half_free = (len(prompt.ids) + self._limit) // 2
        for first in range(max(1, count - _KEPT_LINES), count):  # the longest tail is tried first
            if not self._may_cut_before(first):
                continue
            content = cut_middle(_summary(first, names), _SUMMARY_CHARS, " ... ")
            with boundary(Seam.DIALECT, self._dialect, "summary"):
                summary = self._dialect.summary(content)
            summary_ids = session.setup.vocabulary.encode_output(summary)
            tail = session.lines[first:]
            tail_ids = transcript.completion_ids[tail[0].start :]
            ids = tuple(prompt.ids) + tuple(summary_ids) + tuple(tail_ids)
            most_ids = self._limit - 1 if len(tail) == 1 else half_free
            if len(ids) > most_ids:
                continue
            tail_text = "".join(line.text + line.output for line in tail)
            text = prompt.text + summary + tail_text
            transcript.compactions.append(Compaction(len(transcript.completion_ids), text, ids))
            if isinstance(session.sampling, SeededSampling):  # lengths, by which lines draw, may come again
                session.sampling = session.sampling.of_trajectory(len(transcript.compactions))
            break
        return result

    def _may_cut_before(self, first: int) -> bool:
        """Whether line `first` may follow a summary, and the line before it had ended."""
        before = self._session.lines[first - 1]
        if before.kind is LineKind.OPEN:
            return False
        with boundary(Seam.DIALECT, self._dialect, "may_follow_summary"):
            return bool(self._dialect.may_follow_summary(before.output))


def _summary(count: int, names: list[str]) -> str:
    """What stands for the first `count` lines, which have bound `names`."""
    lines = f"{count} lines are" if count > 1 else "1 line is"
    if not names:
        return f"{lines} left out here, and nothing is bound"
    return f"{lines} left out here; what they have bound is still there: {', '.join(names)}"
