"""The token side of a transcript: it only grows, and its three lists stay of one length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.rollout.state import Transcript

IDS = st.lists(st.integers(0, 99), max_size=4)


def test_sampled_and_output_tokens_by_hand() -> None:
    transcript = Transcript([7, 8])
    assert transcript.append_sampled([1, 2], [-0.5, -1.5]) == (0, 2)
    assert transcript.append_output([3]) == (2, 3)
    assert transcript.append_output([]) == (3, 3)
    assert transcript.append_sampled([4], [-0.25]) == (3, 4)
    # ids                       prompt| 1     2     3     4
    assert transcript.ids == [7, 8, 1, 2, 3, 4]
    assert transcript.sampled_mask == [True, True, False, True]
    assert transcript.logprobs == [-0.5, -1.5, 0.0, -0.25]
    assert transcript.prompt_ids == (7, 8)
    assert len(transcript) == 6


def test_ids_and_logprobs_come_together() -> None:
    transcript = Transcript([7])
    with pytest.raises(ValueError, match="2 sampled ids came with 1 logprobs"):
        transcript.append_sampled([1, 2], [-0.5])
    assert transcript.ids == [7]


@given(IDS, st.lists(st.tuples(IDS, st.booleans()), max_size=8))
def test_it_is_the_concatenation_of_what_was_put_in(prompt: list[int], parts: list[tuple[list[int], bool]]) -> None:
    transcript = Transcript(prompt)
    expected: list[int] = []
    mask: list[bool] = []
    for ids, sampled in parts:
        before = transcript.ids
        append = transcript.append_sampled(ids, [-1.0] * len(ids)) if sampled else transcript.append_output(ids)
        assert append == (len(expected), len(expected) + len(ids))
        assert transcript.ids[: len(before)] == before
        expected += ids
        mask += [sampled] * len(ids)
    assert transcript.ids == prompt + expected
    assert transcript.completion_ids == expected
    assert transcript.sampled_mask == mask
    assert transcript.logprobs == [-1.0 if sampled else 0.0 for sampled in mask]
    assert len(transcript) == len(prompt) + len(expected)
