"""The engine seam: one call samples one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from repl_rl.config import SamplingConfig


class Finish(StrEnum):
    """Why a line ended."""

    NEWLINE = "newline"
    """Its last token holds a newline."""
    EOS = "eos"
    """Its last token ends the text."""
    LENGTH = "length"
    """It used up `max_tokens`."""


@dataclass(frozen=True, slots=True)
class SampledLine:
    """What the policy sampled in one go: at least one id, and each id's log-probability in nats under the sampler."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish

    def __post_init__(self) -> None:
        if not 0 < len(self.ids) == len(self.logprobs):
            raise ValueError(f"a sampled line of {len(self.ids)} ids and {len(self.logprobs)} logprobs")


class Engine(Protocol):
    """A policy that samples lines. Calls may overlap freely; each is one sequence in the engine's batch."""

    @property
    def version(self) -> int:
        """How many weight updates the policy has seen."""

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """Continue `ids` (all of prompt and completion so far) up to and including a token that holds a newline.

        Raises EngineError if the engine can't go on. Cancelling the call frees its sequence.
        """

    def close(self) -> None:
        """Release the model; a second call does nothing."""
