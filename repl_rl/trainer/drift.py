"""Pure: how far what is trained on is from what was sampled, in tokens and in log-probabilities.

Both are 0 where ids are kept as sampled and the trainer computes what the sampler did. `reencoded` measures what the
first rule saves: how many typed tokens would be others if the transcript went through text. `logprob_drift` measures
what is left: the same weights in two programs.

T tokens of a transcript, prompt included, in `reencoded`; (B, T) is (batch, completion token) in `logprob_drift`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repl_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

MOST_TRAJECTORIES = 64
"""Trajectories of a batch that are encoded again, evenly spread over it: each costs as much as encoding it once."""


@dataclass(frozen=True, slots=True)
class Reencoded:
    """How many sampled tokens were looked at, and how many of them do not come back from text."""

    sampled: int
    changed: int

    @property
    def share(self) -> float:
        """Raises ZeroDivisionError where nothing was sampled."""
        return self.changed / self.sampled


def reencoded(
    trajectories: Sequence[Trajectory],
    token_bytes: Sequence[bytes],
    encode: Callable[[str], Sequence[int]],
    most: int = MOST_TRAJECTORIES,
) -> Reencoded:
    """Put up to `most` transcripts through text and count the sampled tokens that come back otherwise.

    `token_bytes` holds the bytes of each id; `encode` maps a whole text to ids, names of special tokens to theirs.
    """
    stride = -(-len(trajectories) // most) or 1
    sampled = changed = 0
    for trajectory in trajectories[::stride]:
        ids = (*trajectory.prompt_ids, *trajectory.completion_ids)
        came_back = tokens_that_come_back(ids, token_bytes, encode)[len(trajectory.prompt_ids) :]
        typed = list(itertools.compress(came_back, trajectory.sampled_mask))
        sampled += len(typed)
        changed += len(typed) - sum(typed)
    return Reencoded(sampled, changed)


def tokens_that_come_back(
    ids: Sequence[int], token_bytes: Sequence[bytes], encode: Callable[[str], Sequence[int]]
) -> list[bool]:
    """For each of T ids: whether the encoded text of all of them holds the same id over the same bytes.

    A byte that is not UTF-8 stands in the text as one U+FFFD, so the token that holds it never comes back, and those
    after it can. Ids beyond the vocabulary have no bytes and count as coming back.
    """
    parts = [token_bytes[index] if index < len(token_bytes) else b"" for index in ids]
    text = b"".join(parts).decode("utf-8", "surrogateescape")
    shown = "".join("\N{REPLACEMENT CHARACTER}" if _is_bad(char) else char for char in text) if _has_bad(text) else text
    lengths = _shown_lengths(parts, text) if shown is not text else map(len, parts)
    again = encode(shown)
    known = set(_spans(again, (len(token_bytes[index]) for index in again)))
    return [span in known or span[0] == span[1] for span in _spans(ids, lengths)]


def logprob_drift(trainer: Tensor, sampler: Tensor, typed: Tensor) -> tuple[float, int, float]:
    """Sum, count and maximum of |trainer - sampler| over the typed tokens; all of shape (B, T).

    Not finite where one of the two is not. Without a typed token all three are 0.
    """
    difference = (trainer - sampler).abs()[typed.bool()]  # (typed tokens,)
    if not difference.numel():
        return 0.0, 0, 0.0
    return difference.double().sum().item(), difference.numel(), difference.max().item()


def _spans(ids: Iterable[int], lengths: Iterable[int]) -> Iterable[tuple[int, int, int]]:
    """Start, end and id of each token, in bytes of the text."""
    end = 0
    for index, length in zip(ids, lengths, strict=True):
        start, end = end, end + length
        yield start, end, index


def _has_bad(text: str) -> bool:
    return any(map(_is_bad, text)) if not text.isascii() else False


def _is_bad(char: str) -> bool:
    return "\udc80" <= char <= "\udcff"


def _shown_lengths(parts: Sequence[bytes], text: str) -> list[int]:
    """Bytes of each part with every bad byte grown to the three of U+FFFD."""
    is_bad = itertools.chain.from_iterable([True] if _is_bad(char) else [False] * len(char.encode()) for char in text)
    return [len(part) + 2 * sum(itertools.islice(is_bad, len(part))) for part in parts]
