"""A padded batch as one row: by hand, and against a literal reading of what the row has to hold."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.trainer.packing import Packed, computed, divide, pack

IDS = torch.tensor([[0, 11, 12, 21, 22, 23, 24], [31, 32, 33, 41, 42, 43, 0]])
#                    .  prompt   typed out typed out      prompt    out typed out .
ATTENTION = torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]])
TYPED = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]])


def test_a_batch_by_hand() -> None:
    packed = pack(IDS, ATTENTION, TYPED)
    # nothing behind the token that predicts the last typed one: 23 of the first row, 42 of the second
    assert packed.ids.tolist() == [[11, 12, 21, 22, 31, 32, 33, 41]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert packed.lengths == (4, 4)
    assert packed.bounds.tolist() == [0, 4, 8]
    assert packed.at.tolist() == [1, 3, 7]
    assert packed.targets.tolist() == [21, 23, 42]
    values = torch.tensor([-1.0, -2.0, -3.0])
    assert packed.spread(values, (2, 4)).tolist() == [[-1.0, 0.0, -2.0, 0.0], [0.0, -3.0, 0.0, 0.0]]


def test_where_nothing_was_typed_at_all_one_token_stays() -> None:
    packed = pack(IDS, ATTENTION, torch.zeros(2, 4, dtype=torch.long))
    assert (packed.ids.tolist(), packed.at.tolist(), packed.targets.tolist()) == ([[11]], [0], [12])


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompts can't be empty"):
        pack(torch.tensor([[0, 5]]), torch.tensor([[0, 1]]), torch.tensor([[1]]))
    with pytest.raises(ValueError, match="prompts can't be empty"):
        pack(torch.tensor([[5, 6]]), torch.tensor([[1, 1]]), torch.tensor([[1, 1]]))


def test_what_sequences_have_in_common_is_there_once() -> None:
    """A group of two with one prompt, the same first token typed, and a third whose prompt begins alike."""
    ids = torch.tensor([[1, 2, 3, 21, 22, 23], [1, 2, 3, 21, 32, 33], [0, 1, 2, 41, 42, 0]])
    typed = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    packed = pack(ids, (ids > 0).long(), typed)
    assert packed.ids.tolist() == [[1, 2, 3, 21, 22, 32, 41]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 4, 2]]
    assert packed.lengths == (5, 1, 1)
    assert [places.tolist() for places in packed.shared] == [[], [0, 1, 2, 3], [0, 1]]
    assert packed.longest == 5
    assert packed.seen.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 6]
    assert (packed.bounds.tolist(), packed.seen_bounds.tolist()) == ([0, 5, 6, 7], [0, 5, 10, 13])
    assert packed.at.tolist() == [2, 3, 4, 2, 3, 5, 1, 6]
    assert packed.targets.tolist() == [21, 22, 23, 21, 32, 33, 41, 42]


def test_little_in_common_is_not_shared() -> None:
    ids = torch.arange(40).view(2, 20) + 1
    ids[1, :2] = ids[0, :2]
    packed = pack(ids, torch.ones_like(ids), torch.ones(2, 17))
    assert packed.lengths == (19, 19), "a tenth of the sequence"


Rows = Sequence[Sequence[int]]


def padded(prompts: Rows, completions: Rows, masks: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, P + T), prompts padded on the left and completions on the right, and which of (B, T) were typed."""
    width, length = max(map(len, prompts)), max(map(len, completions))
    rows = [
        [*[0] * (width - len(prompt)), *prompt, *completion, *[0] * (length - len(completion))]
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    return torch.tensor(rows), torch.tensor([[*map(int, mask), *[0] * (length - len(mask))] for mask in masks])


TOKENS = st.integers(1, 2)


@pytest.mark.parametrize("shares", [False, True])
@given(st.data())
def test_every_typed_token_is_predicted_behind_what_really_stood_before_it(shares: bool, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4))
    prompts = [data.draw(st.lists(TOKENS, min_size=1, max_size=3)) for _ in range(rows)]
    masks = [data.draw(st.lists(st.booleans(), min_size=1, max_size=5)) for _ in range(rows)]
    completions = [data.draw(st.lists(TOKENS, min_size=len(mask), max_size=len(mask))) for mask in masks]
    ids, typed = padded(prompts, completions, masks)
    length = typed.size(1)
    packed = pack(ids, (ids > 0).long(), typed, shares=shares)
    expected = [
        (row * length + place, completion[place], prompt + completion[:place])
        for row, (prompt, completion, mask) in enumerate(zip(prompts, completions, masks, strict=True))
        for place, was in enumerate(mask)
        if was
    ]
    before = histories(packed)
    found = [
        (place, target, before[at])
        for at, target, place in zip(packed.at.tolist(), packed.targets.tolist(), packed.offsets.tolist(), strict=True)
    ]
    if not expected:
        assert len(found) == 1
        return
    assert found == expected
    whole = [
        max((history for place, _, history in expected if place // length == row), key=len)
        for row in range(rows)
        if any(masks[row])
    ]
    if shares:
        assert sorted(before) == sorted(
            {tuple(each[:end]): each[:end] for each in whole for end in range(1, len(each) + 1)}.values()
        )
    else:
        assert packed.lengths == tuple(map(len, whole))


def histories(packed: Packed) -> list[list[int]]:
    """For each token of the row, it and the tokens that it sees, in the order of their positions."""
    found, start = [], 0
    for length, shared in zip(packed.lengths, packed.shared, strict=True):
        for end in range(start + 1, start + length + 1):
            places = [*shared.tolist(), *range(start, end)]
            assert packed.positions[0, places].tolist() == list(range(len(places)))
            found.append(packed.ids[0, places].tolist())
        start += length
    return found


@pytest.mark.parametrize("shares", [False, True])
@given(st.lists(st.lists(TOKENS, max_size=9), min_size=1, max_size=7), st.integers(1, 16))
def test_no_pass_has_more_tokens_than_it_may(shares: bool, completions: Rows, most: int) -> None:
    ids, typed = padded([[3]] * len(completions), completions, [[1] * len(each) for each in completions])
    _, rows = computed(ids, (ids > 0).long(), torch.nn.functional.pad(typed, (1, 0)).bool())
    passes = divide(rows, most, shares=shares)
    assert sorted(row for each in passes for row in each) == [row for row, each in enumerate(completions) if each]
    for each in filter(None, passes):
        packed = pack(ids[each], (ids[each] > 0).long(), typed[each], shares=shares)
        assert sum(packed.lengths) <= most or len(each) == 1
    assert divide(rows, most, shares=shares, agreed=lambda count: count + 9)[-1] == [], "eight have a row at most"


def test_passes_are_few_and_even_and_keep_what_is_shared_together() -> None:
    rows = [np.full(length, length) for length in (5, 1, 4, 2, 3, 0)]
    assert divide(rows, 9, shares=False) == [[0, 4], [2, 3, 1]], "8 and 7, not 9 and 6"
    assert divide(rows, 4, shares=False) == [[0], [2], [4], [3, 1]]
    assert divide(rows, 99, shares=False, agreed=lambda count: count + 1) == [[0, 4], [2, 3, 1]]
    groups = [np.array([*prompt, *own]) for own in ([7], [8], [9]) for prompt in ([1, 1, 1], [2, 2, 2])]
    assert divide(groups, 6, shares=True) == [[0, 2, 4], [1, 3, 5]]
