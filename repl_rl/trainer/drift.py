"""How far the trained tokens and their log-probabilities are from the sampled ones. Pure functions.

Both differences are 0 if ids are kept as sampled and the trainer computes the same as the sampler. `reencoded` measures
what keeping the ids avoids: how many typed tokens would change if the transcript were decoded and encoded again.
`logprob_drift` measures what remains: two programs compute with the same weights.

T tokens of a transcript, prompt included, in `tokens_that_come_back`; (B, T) is (batch, completion token) in
`logprob_drift`.
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
"""How many trajectories of a batch are encoded again, spread evenly over it. Each costs one encoding of its text."""


@dataclass(frozen=True, slots=True)
class Reencoded:
    """How many sampled tokens were compared, and how many of them change when the text is encoded again."""

    sampled: int
    changed: int

    @property
    def share(self) -> float:
        """The share that changed. Raises ZeroDivisionError if nothing was sampled."""
        return self.changed / self.sampled


def reencoded(
    trajectories: Sequence[Trajectory],
    token_bytes: Sequence[bytes],
    encode: Callable[[str], Sequence[int]],
    most: int = MOST_TRAJECTORIES,
) -> Reencoded:
    """Decode up to `most` transcripts, encode them again, and count the sampled tokens that change.

    `token_bytes` holds the bytes of each id; `encode` maps a whole text to ids, and names of special tokens to the
    special tokens' ids.
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
    """For each of T ids: whether decoding all of them and encoding the text gives the same id for the same bytes.

    A byte that is not UTF-8 becomes one U+FFFD in the text, so the token that holds it never comes back, but the ones
    after it can. Ids beyond the vocabulary have no bytes and count as coming back.
    """
    parts = [token_bytes[index] if index < len(token_bytes) else b"" for index in ids]
    text = b"".join(parts).decode("utf-8", "surrogateescape")
    shown, lengths = text, [len(part) for part in parts]
    if not text.isascii() and any(map(_is_bad, text)):
        shown = "".join("\N{REPLACEMENT CHARACTER}" if _is_bad(char) else char for char in text)
        flags = [[True] if _is_bad(char) else [False] * len(char.encode()) for char in text]
        is_bad = itertools.chain.from_iterable(flags)  # each of them becomes the three bytes of U+FFFD
        lengths = [len(part) + 2 * sum(itertools.islice(is_bad, len(part))) for part in parts]
    again = encode(shown)
    known = set(_spans(again, (len(token_bytes[index]) for index in again)))
    return [span in known or span[0] == span[1] for span in _spans(ids, lengths)]


def logprob_drift(trainer: Tensor, sampler: Tensor, typed: Tensor) -> tuple[float, int, float]:
    """Sum, count and maximum of |trainer - sampler| over the typed tokens; all of shape (B, T).

    Sum and maximum are not finite if one of the two inputs isn't. Without a typed token all three are 0.
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


def _is_bad(char: str) -> bool:
    return "\udc80" <= char <= "\udcff"
