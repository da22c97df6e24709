"""Our credit for the turns of any trainer: from what turns earned to one advantage per token.

    advantages = token_advantages(mask, groups, CreditConfig(estimator="return_to_go"), rewards=..., outcomes=...)

A turn is what the policy sampled without a break; between turns stand the tokens of tools, environments and templates.
A session is one row of the trainer's batch. The sessions that answer one prompt are a group, of any size.

The estimators are those of `repl_rl.credit`, which gets each turn as a line. Of a line they see how many tokens it has,
what it earned and, where the caller says so, in which state it began. `branch` needs forked sessions and is refused.

A session is void, and so compared with nothing and without advantages, if it has no sampled token, if its outcome is
None or not a number (nobody could grade it), or if the caller says so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import Trees
from repl_rl.credit import batch_line_advantages
from repl_rl.errors import ConfigError, RewardError
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

if TYPE_CHECKING:
    from repl_rl.credit.critic import Critic

Span = tuple[int, int]
"""Where a turn begins in its row, and where it ends."""


@dataclass(frozen=True, slots=True)
class Session:
    """One row of a trainer's batch: its turns, and what they earned.

    Raises RewardError if rewards don't fit the turns or are not finite, and ConfigError if states don't fit them. Of a
    void session nothing is checked.
    """

    group: Hashable
    """Of the prompt that it answers."""
    token_counts: Sequence[int]
    """The tokens of each turn."""
    rewards: Sequence[float]
    """What each turn earned, without the outcome."""
    outcome: float | None
    """What the session earned at its end, which is added to its last turn. None or NaN if nobody could grade it."""
    states: Sequence[str | None] | None = None
    """The state in which each turn began: any text that is equal where states are. None if it is unknown."""
    is_left_out: bool = False
    """Whether it is void for another reason: it was aborted, say."""

    def __post_init__(self) -> None:
        if self.is_void:
            return
        turns = len(self.token_counts)
        if len(self.rewards) != turns:
            raise RewardError(
                f"a session of group {self.group!r} has {turns} turns and {len(self.rewards)} rewards; each turn needs "
                "one"
            )
        if self.states is not None and len(self.states) != turns:
            raise ConfigError(
                f"a session of group {self.group!r} has {turns} turns and {len(self.states)} states; each turn needs "
                "one, or None where it is unknown"
            )
        for turn, reward in enumerate(self.earned):
            if not math.isfinite(reward):
                raise RewardError(
                    f"turn {turn} of a session of group {self.group!r} earned {reward}; rewards have to be finite. "
                    "Where nobody could grade a session, its outcome is None"
                )

    @property
    def is_void(self) -> bool:
        """Whether it is compared with nothing and gets no advantage."""
        return self.is_left_out or not self.token_counts or self.outcome is None or math.isnan(self.outcome)

    @property
    def earned(self) -> list[float]:
        """What each turn earned, with the outcome in the last one. Zeros if the session is void."""
        if self.is_void:
            return [0.0] * len(self.token_counts)
        *before, last = self.rewards
        return [*before, last + (self.outcome or 0.0)]


def check_credit(credit: CreditConfig, *, has_states: bool, argument: str = "states") -> None:
    """Raises ConfigError if an estimator needs what the caller does not have; states are given as `argument`."""
    record = credit.record
    if record is None:
        return
    if record.trees is Trees.REQUIRED:
        raise ConfigError(
            f"credit.estimator {credit.estimator} compares the branches of forked sessions, and a batch of another "
            "trainer has none; take rloo or return_to_go"
        )
    if has_states:
        return
    if record.compares_states:
        raise ConfigError(
            f"credit.estimator {credit.estimator} compares turns that began in equal states; say in `{argument}` in "
            "which state each turn began, or take return_to_go"
        )
    if credit.baseline == "state":
        raise ConfigError(
            f"credit.baseline state compares turns that began in equal states; say in `{argument}` in which state each "
            "turn began, or take baseline place"
        )


def token_advantages(
    mask: Any,
    groups: Any,
    credit: CreditConfig,
    *,
    rewards: Any = None,
    outcomes: Any = None,
    spans: Sequence[Sequence[Span]] | None = None,
    states: Sequence[Sequence[str | None]] | None = None,
    void: Any = None,
    unit: float = 1.0,
    critic: Critic | None = None,
) -> Any:
    """One advantage per token, in the form of `mask`: a float32 tensor on its device, an array, or lists.

    `mask` (B, T) is 1 on sampled tokens and 0 on all others, with padding on whichever side. `groups` (B,) says which
    prompt a row answers. `rewards` holds a number per turn of each row, and `outcomes` (B,) one per row, which is added
    to the last turn; one of the two may be left out. Without `outcomes`, what the last turn earned is the outcome.
    `spans` says where turns are if they are not the runs of 1s: if two of them touch, or single tokens inside are
    masked. `states`: see `Session`. `void` (B,) is true for rows that don't count. `unit` is what a right answer earns.
    `critic` is the memory of the estimator `critic`; without it, batches know nothing of each other.

    Give all sessions of a step in one call, those of other processes too: a group that is split is two groups.

    Raises ConfigError for arguments that don't fit each other or the estimator, and RewardError for rewards that don't
    fit the turns or are not finite.
    """
    check_credit(credit, has_states=states is not None)
    rows: list[list[float]] = _listed(mask)
    row_spans = [turn_spans(row) for row in rows] if spans is None else spans
    columns = {"groups": groups, "rewards": rewards, "outcomes": outcomes, "states": states, "void": void}
    _check_rows(rows, row_spans, columns)
    sessions = []
    for row, group in enumerate(_listed(groups)):
        turn_rewards, outcome = _paid(row, len(row_spans[row]), rewards, outcomes)
        session = Session(
            group,
            [end - start for start, end in row_spans[row]],
            turn_rewards,
            outcome,
            None if states is None else states[row],
            is_left_out=void is not None and bool(void[row]),
        )
        sessions.append(session)

    result = []
    per_turn = turn_advantages(sessions, credit, unit=unit, critic=critic)
    for row_mask, turns, values in zip(rows, row_spans, per_turn, strict=True):
        tokens = spread_over(turns, values, len(row_mask))
        result.append([value if sampled else 0.0 for value, sampled in zip(tokens, row_mask, strict=True)])
    if hasattr(mask, "new_tensor"):
        import torch

        return torch.tensor(result, dtype=torch.float32, device=mask.device).reshape(mask.shape)
    if hasattr(mask, "tolist"):
        import numpy as np

        return np.array(result, dtype=np.float32).reshape(mask.shape)
    return result


def turn_advantages(
    sessions: Sequence[Session], credit: CreditConfig, *, unit: float = 1.0, critic: Critic | None = None
) -> list[list[float]]:
    """One advantage per turn of each session, 0.0 for those of void sessions.

    `unit` is what a right answer earns, and `critic` the memory of the estimator `critic`. Raises ConfigError if the
    estimator needs what the sessions don't have, or if it compares sessions and no group has two.
    """
    valid = [session for session in sessions if not session.is_void]
    check_credit(credit, has_states=all(session.states is not None for session in valid))
    groups: dict[Hashable, list[Session]] = {}
    for session in sessions:
        groups.setdefault(session.group, []).append(session)
    if len(groups) == len(sessions) > 1 and _compares_sessions(credit):
        raise ConfigError(
            f"credit.estimator {credit.estimator} compares the sessions of a group, and each of these {len(groups)} "
            "groups has one session; give those of one prompt the same group, or take an estimator without groups "
            "(docs/credit-elsewhere.md)"
        )
    per_group = batch_line_advantages(
        [_trajectories(group) for group in groups.values()],
        [[session.earned for session in group] for group in groups.values()],
        credit,
        outcomes=[[session.outcome or 0.0 for session in group] for group in groups.values()],
        unit=unit,
        critic=critic,
    )
    waiting = {group: iter(values) for group, values in zip(groups, per_group, strict=True)}
    return [next(waiting[session.group]) for session in sessions]


def turn_spans(mask: Sequence[float]) -> list[Span]:
    """The turns of a row: its maximal runs of 1s."""
    spans = []
    start = None
    for position, sampled in enumerate([*mask, 0]):
        if sampled and start is None:
            start = position
        elif not sampled and start is not None:
            spans.append((start, position))
            start = None
    return spans


def turn_rewards_of(token_rewards: Sequence[float], spans: Sequence[Span]) -> list[float]:
    """What each turn earned, where a trainer keeps rewards on tokens (T,).

    A turn has what stands on its tokens and on those after it, up to the next turn. What stands before the first turn
    counts for that one.
    """
    if not spans:
        return []
    starts = [0, *(start for start, _ in spans[1:]), len(token_rewards)]
    return [math.fsum(token_rewards[start:end]) for start, end in pairwise(starts)]


def spread_over(spans: Sequence[Span], values: Sequence[float], length: int) -> list[float]:
    """Values per turn over the tokens of a row, with 0.0 outside of turns. Length T."""
    tokens = [0.0] * length
    for (start, end), value in zip(spans, values, strict=True):
        tokens[start:end] = [value] * (end - start)
    return tokens


def _paid(row: int, turns: int, rewards: Any, outcomes: Any) -> tuple[list[float], float | None]:
    """What a row's turns earned, and its outcome."""
    turn_rewards = [0.0] * turns if rewards is None else [float(reward) for reward in rewards[row]]
    if outcomes is None:
        if not turn_rewards:
            return [], 0.0
        *before, last = turn_rewards
        if not math.isfinite(last):
            return turn_rewards, 0.0  # a reward that the session refuses, not an outcome that nobody could grade
        return [*before, 0.0], last
    outcome = outcomes[row]
    return turn_rewards, None if outcome is None else float(outcome)


def _check_rows(rows: Sequence[Sequence[float]], row_spans: Sequence[Sequence[Span]], columns: dict[str, Any]) -> None:
    """Raises ConfigError if a column has another number of rows than the mask, or spans don't fit it."""
    for name, column in {**columns, "spans": row_spans}.items():
        if column is not None and len(column) != len(rows):
            raise ConfigError(f"{name} has {len(column)} rows, and the mask has {len(rows)}; each row needs one")
    if columns["rewards"] is None and columns["outcomes"] is None:
        raise ConfigError("there are neither rewards nor outcomes; give one of them, or both")
    for index, (row, spans) in enumerate(zip(rows, row_spans, strict=True)):
        odd_values = set(row) - {0, 1}
        if odd_values:
            raise ConfigError(
                f"row {index} of the mask holds {min(odd_values)}; it has to be 1 on sampled tokens, else 0"
            )
        edges = [0, *(edge for span in spans for edge in span), len(row)]
        are_in_order = edges == sorted(edges) and all(start < end for start, end in spans)
        sampled = sum(row)
        in_turns = sum(sum(row[start:end]) for start, end in spans)
        if not are_in_order or in_turns != sampled:
            raise ConfigError(
                f"row {index} has turns at tokens {list(spans)}; they have to be in order and hold a token each, and "
                f"all {sampled:g} sampled tokens of the row have to lie in them"
            )


def _listed(values: Any) -> list[Any]:
    """A tensor, an array, or a sequence that may hold some, as lists."""
    if hasattr(values, "tolist"):
        listed: list[Any] = values.tolist()
        return listed
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _compares_sessions(credit: CreditConfig) -> bool:
    """Whether a session that is alone in its group would have no advantage."""
    return credit.record is not None and credit.estimator != "critic" and credit.baseline != "none"


def _trajectories(group: Sequence[Session]) -> list[Trajectory]:
    """The sessions of a group as trajectories: a line per turn, and nothing between them.

    Estimators find the state in which a line began in the fingerprint of the line before it, and take the first lines
    of a group for equal. A state that is reached again and equals the first one gets the fingerprint of the start, "".
    """
    first_states = {session.states[0] for session in group if session.states and session.states[0] is not None}
    if len(first_states) > 1:
        raise ConfigError(
            f"the sessions of group {group[0].group!r} begin in {len(first_states)} different states; those that are "
            "compared have to begin in one, so give them different groups"
        )
    trajectories = []
    for session in group:
        lines: list[Line] = []
        end = 0
        for turn, count in enumerate(session.token_counts):
            state_after = None
            if session.states is not None and turn + 1 < len(session.token_counts):
                state_after = session.states[turn + 1]
            fingerprint = None if state_after is None else f"state {state_after}"
            if state_after in first_states:
                fingerprint = ""
            lines.append(Line(end, end + count, "", LineKind.STATEMENT, fingerprint=fingerprint))
            end += count
        trajectory = Trajectory(
            task_id=str(session.group),
            prompt="",
            prompt_ids=(),
            completion_ids=(0,) * end,
            sampled_mask=(True,) * end,
            logprobs=(0.0,) * end,
            stop_reason=StopReason.ABORTED if session.is_void else StopReason.EOS,
            lines=tuple(lines),
        )
        trajectories.append(trajectory)
    return trajectories
