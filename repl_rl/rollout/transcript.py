"""The token side of a growing trajectory: ids, mask and log-probabilities, always of one length."""

from __future__ import annotations

from collections.abc import Sequence


class Transcript:
    """Prompt ids, encoded once, and a completion that only grows at its end. Nothing is ever encoded again."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.completion_ids: list[int] = []
        self.sampled_mask: list[bool] = []
        self.logprobs: list[float] = []

    @property
    def ids(self) -> list[int]:
        """What the engine is given for the next line: prompt and completion so far."""
        return [*self.prompt_ids, *self.completion_ids]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    def append_sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> tuple[int, int]:
        """Put in what the policy sampled; its start and end in the completion."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} sampled ids came with {len(logprobs)} logprobs")
        return self._append(ids, logprobs, sampled=True)

    def append_output(self, ids: Sequence[int]) -> tuple[int, int]:
        """Put in interpreter text, masked; its start and end in the completion."""
        return self._append(ids, [0.0] * len(ids), sampled=False)

    def cut_behind(self, end: int) -> None:
        """Keep `end` tokens of the completion."""
        for values in (self.completion_ids, self.sampled_mask, self.logprobs):
            del values[end:]

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], sampled: bool) -> tuple[int, int]:
        start = len(self.completion_ids)
        self.completion_ids.extend(ids)
        self.sampled_mask.extend([sampled] * len(ids))
        self.logprobs.extend(logprobs)
        return start, len(self.completion_ids)
