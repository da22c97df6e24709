"""A policy that types what it is told: stands behind the engine seam, and knows a session by the ids it has sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from repl_rl.config import SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary

LOGPROB = -0.25


class ScriptedEngine:
    """Turn n of a session types `script(prompt)[n]`, verbatim; text that ends no turn ends with the end-of-text token.

    `given` keeps every list of ids that it was handed, `expected` what the next one of that session has to begin with.
    """

    def __init__(self, vocabulary: Vocabulary, script: Callable[[str], Sequence[str]]) -> None:
        self.version = 0
        self.given: list[list[int]] = []
        self._vocabulary = vocabulary
        self._script = script
        self._sessions: dict[tuple[int, ...], tuple[str, int]] = {}

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[ScriptedEngine]:
        yield self

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self.given.append(list(ids))
        prompt, turn = self._session(tuple(ids))
        typed = self._script(prompt)[turn]
        stops = any(byte in typed.encode() for byte in self._vocabulary.stops)
        sampled = [*self._vocabulary.encode_output(typed), *([] if stops else [min(self._vocabulary.eos_ids)])]
        finish = Finish.NEWLINE if stops else Finish.EOS
        if len(sampled) > max_tokens:
            sampled, finish = sampled[:max_tokens], Finish.LENGTH
        self._sessions[(*ids, *sampled)] = (prompt, turn + 1)
        return SampledLine(tuple(sampled), (LOGPROB,) * len(sampled), finish)

    def close(self) -> None:
        """Nothing is held."""

    def _session(self, ids: tuple[int, ...]) -> tuple[str, int]:
        """The prompt and the turn of the session whose ids these go on from; a new one if there is none."""
        past = max((known for known in self._sessions if ids[: len(known)] == known), key=len, default=None)
        return (self._vocabulary.decode(ids), 0) if past is None else self._sessions[past]
