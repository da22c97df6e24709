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
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.session import Session
from repl_rl.trajectory import Compaction, Line, LineKind, StopReason
from repl_rl.utils.text import cut_middle

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
        budget, context_tokens = session.budget, session.setup.context_tokens
        assert budget.compact_at is not None
        self._limit = min(int(budget.compact_at * context_tokens), context_tokens - budget.line_tokens)
        self._dialect: Any = session.episode.dialect
        self._own: frozenset[str] = frozenset()

    async def opened(self, session: Session) -> None:
        """Note the names that the session begins with. Raises KernelError."""
        result = await session.kernel.execute(_LIST_NAMES)
        self._own = frozenset(name for name, _ in _NAME.findall(result.output))
        if result.state_lost:
            session.stop = StopReason.KILLED

    async def after_line(self, session: Session, line: Line) -> None:
        """Compact, unless the session is over. Raises KernelError."""
        if session.stop is None and self.is_due(session):
            listed = await self.compact(session)
            if listed.answer is not None:  # of a thread that the session has left behind
                session.answer, session.stop = listed.answer, StopReason.ANSWER
            elif listed.state_lost:
                session.stop = StopReason.KILLED

    def is_due(self, session: Session) -> bool:
        """Whether the transcript is long, and its last line is over and done with."""
        at_prompt = session.lines[-1].kind is not LineKind.OPEN and self._follows(session, len(session.lines))
        return len(session.transcript) >= self._limit and at_prompt

    async def compact(self, session: Session) -> ExecResult:
        """Compact it, if that makes it shorter. As many of the last lines are kept as leave half of the room free; the
        very last one is always kept, because its output has not been read yet.

        Returns the result of listing the interpreter's names, which may say that it is gone. Raises KernelError.
        """
        result = await session.kernel.execute(_LIST_NAMES)
        bound = [f"{name} ({kind})" for name, kind in _NAME.findall(result.output) if name not in self._own]
        prompt_ids, transcript, count = session.prompt.ids, session.transcript, len(session.lines)
        for first in range(max(1, count - _KEPT_LINES), count):
            if not self._follows(session, first):
                continue
            told = f"{first} line{'s are' if first > 1 else ' is'} left out here"
            told += f"; what they have bound is still there: {', '.join(bound)}" if bound else ", and nothing is bound"
            text = self._dialect.summary(cut_middle(told, _SUMMARY_CHARS, " ... "))
            kept = session.lines[first:]
            tail = transcript.completion_ids[kept[0].start :]
            ids = (*prompt_ids, *session.setup.vocabulary.encode_output(text), *tail)
            most = self._limit - 1 if len(kept) == 1 else (len(prompt_ids) + self._limit) // 2
            if len(ids) <= most:
                text = session.prompt.text + text + "".join(line.text + line.output for line in kept)
                transcript.compactions.append(Compaction(len(transcript.completion_ids), text, ids))
                if isinstance(session.sampling, SeededSampling):  # lengths, by which lines draw, may come again
                    session.sampling = session.sampling.of_trajectory(len(transcript.compactions))
                break
        return result

    def _follows(self, session: Session, first: int) -> bool:
        """Whether line `first` may follow a summary, and the line before it had ended."""
        before = session.lines[first - 1]
        return before.kind is not LineKind.OPEN and self._dialect.may_follow_summary(before.output)
