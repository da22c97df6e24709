"""What would change if a transcript went through text, by hand and on real vocabularies; log-probabilities apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml

from repl_rl.trainer.drift import Reencoded, logprob_drift, reencoded, tokens_that_come_back
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

#        0     1     2      3      4          5          6        7
BYTES = [b"a", b"b", b"ab", b"\n", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xef\xbf\xbd"]
REENCODED = yaml.safe_load(Path(__file__).with_name("reencoded.yaml").read_text(encoding="utf-8"))
LONGEST_FIRST = (2, 6, 7, 0, 1, 3, 4, 5)


def encode(text: str) -> list[int]:
    """The longest token that fits, from the left."""
    data, ids = text.encode(), []
    while data:
        found = next(index for index in LONGEST_FIRST if data.startswith(BYTES[index]))
        ids.append(found)
        data = data[len(BYTES[found]) :]
    return ids


@pytest.mark.parametrize(("ids", "expected"), REENCODED)
def test_tokens_come_back_with_their_id_and_their_place(ids: list[int], expected: list[int]) -> None:
    assert tokens_that_come_back(ids, BYTES, encode) == [bool(value) for value in expected]


def trajectory(prompt_ids: Sequence[int], ids: Sequence[int], mask: Sequence[int]) -> Trajectory:
    starts = [n for n, was in enumerate(mask) if was]
    lines = tuple(Line(n, n + 1, "", LineKind.BLANK) for n in starts)
    sampled = tuple(bool(was) for was in mask)
    return Trajectory("t", "", tuple(prompt_ids), tuple(ids), sampled, (0.0,) * len(ids), StopReason.EOS, lines)


def test_only_sampled_tokens_count_and_the_prompt_reaches_into_them() -> None:
    # prompt a | sampled b, output \n a, sampled b \n   ->   ab \n ab \n
    first = trajectory([0], [1, 3, 0, 1, 3], [1, 0, 0, 1, 1])
    assert reencoded([first], BYTES, encode) == Reencoded(sampled=3, changed=2)
    assert reencoded([first], BYTES, encode).share == pytest.approx(2 / 3)
    assert reencoded([first, trajectory([3], [2, 3], [1, 1])], BYTES, encode) == Reencoded(sampled=5, changed=2)
    assert reencoded([], BYTES, encode) == Reencoded(sampled=0, changed=0)


def test_of_a_large_batch_some_are_looked_at_from_all_of_it() -> None:
    batch = [trajectory([3], [2] * n, [1] * n) for n in range(1, 11)]
    assert reencoded(batch, BYTES, encode, most=4).sampled == 1 + 4 + 7 + 10
    assert reencoded(batch, BYTES, encode, most=10).sampled == sum(range(1, 11))


def test_logprobs_differ_over_typed_tokens_only() -> None:
    trainer = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, math.nan, -1.0]])
    sampler = torch.tensor([[-1.25, -1.5, 0.0], [-0.5, 0.0, math.inf]])
    typed = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert logprob_drift(trainer, sampler, typed) == (0.75, 3, 0.5)
    assert logprob_drift(trainer, sampler, torch.zeros_like(typed)) == (0.0, 0, 0.0)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(number: float) -> None:
    broken = torch.tensor([[-1.0, number]])
    total, count, most = logprob_drift(broken, torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2))
    assert (math.isfinite(total), count, math.isfinite(most)) == (False, 2, False)
