"""A policy that types what it is told: stands behind the engine seam, and knows a session by the ids it has sampled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from repl_rl.config import SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary
from repl_rl.utils.admission import Admission, Room

LOGPROB = -0.25
Script = Callable[[str], str | Sequence[str] | Awaitable[str]]


class ScriptedEngine:
    """Turn n of a session types `script(prompt)[n]`, verbatim; text that ends no turn ends with the end-of-text token.

    `given` keeps every list of ids that it was handed, `expected` what the next one of that session has to begin with.
    """

    def __init__(self, vocabulary: Vocabulary, script: Callable[[str], Sequence[str]]) -> None:
        self.version = 0
        self.given: list[list[int]] = []
        self._vocabulary = vocabulary
        self._script = script
        self.sessions: dict[tuple[int, ...], tuple[str, int]] = {}

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[ScriptedEngine]:
        yield self

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self.given.append(list(ids))
        prompt, turn = self.session_of(tuple(ids))
        typed = self._script(prompt)[turn]
        stops = any(byte in typed.encode() for byte in self._vocabulary.stops)
        sampled = [*self._vocabulary.encode_output(typed), *([] if stops else [min(self._vocabulary.eos_ids)])]
        finish = Finish.NEWLINE if stops else Finish.EOS
        if len(sampled) > max_tokens:
            sampled, finish = sampled[:max_tokens], Finish.LENGTH
        self.sessions[(*ids, *sampled)] = (prompt, turn + 1)
        return SampledLine(tuple(sampled), (LOGPROB,) * len(sampled), finish)

    def close(self) -> None:
        """Nothing is held."""

    def session_of(self, ids: tuple[int, ...]) -> tuple[str, int]:
        """The prompt and the turn of the session whose ids these go on from; a new one if there is none."""
        past = max((known for known in self.sessions if ids[: len(known)] == known), key=len, default=None)
        return (self._vocabulary.decode(ids), 0) if past is None else self.sessions[past]


class RecursiveEngine:
    """Sessions and sub-calls alike type `script(prompt)`: a list of lines, or a text as the answer to a question.

    Both wait for room as at a real engine. `held` is how many slots are held now, by depth, `most` the most that were.
    """

    version = 0

    def __init__(self, vocabulary: Vocabulary, script: Script, capacity_tokens: int = 1 << 30) -> None:
        self.admission = Admission(Room(capacity_tokens), learns=True)
        self.held: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.given: list[tuple[int, ...]] = []
        """Every list of ids that it was handed."""
        self.vocabulary = vocabulary
        self.script = script

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[RecursiveSlot]:
        async with self.admission.reserve(tokens, depth):
            self.held[depth] += 1
            self.most[depth] = max(self.most[depth], self.held[depth])
            try:
                yield RecursiveSlot(self, self.script_at(depth))
            finally:
                self.held[depth] -= 1

    def script_at(self, depth: int) -> Script:
        return self.script

    def close(self) -> None:
        """Nothing is held."""


class AskedEngine(RecursiveEngine):
    """Trajectories type `typed`, and each sub-call gets `answer(prompt)`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        typed: Sequence[str],
        answer: Script = "about {}".format,
        capacity_tokens: int = 1 << 30,
    ) -> None:
        super().__init__(vocabulary, answer, capacity_tokens)
        self._typed = typed

    def script_at(self, depth: int) -> Script:
        return self.script if depth else lambda prompt: self._typed


class RecursiveSlot:
    """Types one session, or answers one question."""

    def __init__(self, engine: RecursiveEngine, script: Script) -> None:
        self._engine = engine
        self._script = script
        self._left: list[str] | None = None

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self._engine.given.append(tuple(ids))
        if self._left is None:
            found = self._script(self._engine.vocabulary.decode(ids))
            if not isinstance(found, str | Sequence):
                found = await found
            self._left = [f" {found}\n"] if isinstance(found, str) else list(found)
        await asyncio.sleep(0)
        typed, finish = self._engine.vocabulary.encode_output(self._left.pop(0)), Finish.NEWLINE
        if len(typed) > max_tokens:
            typed, finish = typed[:max_tokens], Finish.LENGTH
        return SampledLine(tuple(typed), (LOGPROB,) * len(typed), finish)
