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
import operator
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import Trees
from repl_rl.credit import batch_line_advantages
from repl_rl.errors import ConfigError, RewardError
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory
from repl_rl.utils.text import shown

if TYPE_CHECKING:
    from repl_rl.credit.critic import Critic

Span = tuple[int, int]
"""Where a turn begins in its row, and where it ends."""


@dataclass(frozen=True, slots=True)
class Session:
    """One row of a trainer's batch: its turns, and what they earned.

    Raises RewardError if rewards don't fit the turns or are not finite, and ConfigError if states don't fit them or are
    not texts. Of a void session nothing is checked.
    """

    group: Hashable
    """Of the prompt that it answers."""
    token_counts: Sequence[int]
    """How many tokens of each turn were sampled."""
    rewards: Sequence[float]
    """What each turn earned, without the outcome."""
    outcome: float | None
    """What the session earned at its end, which is added to its last turn. None or NaN if nobody could grade it."""
    states: Sequence[str | None] | None = None
    """The state in which each turn began: any text that is equal where states are. None if it is unknown.

    The sessions of a group begin in one state, that of their prompt. So a first turn always has the group's first
    state, also where it is None; any other None is like no other state.
    """
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
        for turn, state in enumerate(self.states or ()):
            if state is not None and not isinstance(state, str):
                raise ConfigError(
                    f"turn {turn} of a session of group {self.group!r} began in state {shown(state)}; a state has to "
                    "be a text, or None where it is unknown"
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
    masked. Each span has to hold a sampled token. `states`: see `Session`. `void` (B,) is true for rows that don't
    count. Of a void row, rewards, spans and states are not read. `unit` is what a right answer earns. `critic` is the
    memory of the estimator `critic`; without it, batches know nothing of each other.

    Give all sessions of a step in one call, those of other processes too: a group that is split is two groups.

    Raises ConfigError for arguments that don't fit each other or the estimator, and RewardError for rewards that don't
    fit the turns, and for rewards and outcomes that are not finite numbers.
    """
    check_credit(credit, has_states=states is not None)
    if rewards is None and outcomes is None:
        raise ConfigError("there are neither rewards nor outcomes; give one of them, or both")
    rows = _mask_rows(mask)
    group_column = _group_column(groups, len(rows))
    void_column = _void_column(void, len(rows))
    rewards_column = None if rewards is None else _column("rewards", rewards, len(rows))
    outcome_column = None if outcomes is None else _outcome_column(outcomes, len(rows))
    span_column = None if spans is None else _column("spans", spans, len(rows))
    state_column = None if states is None else _column("states", states, len(rows))

    sessions: list[Session] = []
    row_spans: list[list[Span]] = []
    for row, row_mask in enumerate(rows):
        outcome = 0.0 if outcome_column is None else outcome_column[row]
        if void_column[row] or outcome is None or not any(row_mask):
            # A void row: its rewards, spans and states may be anything.
            sessions.append(Session(group_column[row], [], [], None, is_left_out=True))
            row_spans.append([])
            continue
        turns = turn_spans(row_mask) if span_column is None else _turns(row, row_mask, span_column[row])
        turn_rewards = [0.0] * len(turns)
        if rewards_column is not None:
            turn_rewards = _turn_rewards(row, rewards_column[row])
        if outcome_column is None and turn_rewards and math.isfinite(turn_rewards[-1]):
            # NaN stays a reward, which `Session` refuses. As an outcome it would mean that nobody could grade the row.
            outcome = turn_rewards[-1]
            turn_rewards[-1] = 0.0
        turn_states = None if state_column is None else _turn_states(row, state_column[row])
        token_counts = [int(sum(row_mask[start:end])) for start, end in turns]
        sessions.append(Session(group_column[row], token_counts, turn_rewards, outcome, turn_states))
        row_spans.append(turns)

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


def _listed(name: str, values: Any) -> list[Any]:
    """A tensor, an array, or a sequence that may hold some, as lists."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {shown(values)}; it has to hold a value for each row of the batch")
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _column(name: str, values: Any, rows: int) -> list[Any]:
    """An argument with a value for each row of the mask."""
    column = _listed(name, values)
    if len(column) != rows:
        raise ConfigError(f"{name} has {len(column)} rows, and the mask has {rows}; each row needs one")
    return column


def _mask_rows(mask: Any) -> list[Sequence[float]]:
    rows = _listed("the mask", mask)
    for row, row_mask in enumerate(rows):
        if not isinstance(row_mask, Sequence):
            raise ConfigError(
                f"row {row} of the mask is {shown(row_mask)}; the mask has to hold a row of tokens for each session: "
                "(B, T)"
            )
        try:
            values: Iterable[Any] = set(row_mask)  # of thousands of tokens, the two that there should be
        except TypeError:
            values = row_mask
        for value in values:
            if value not in (0, 1):
                raise ConfigError(
                    f"row {row} of the mask holds {shown(value)}; it has to be 1 on sampled tokens, else 0: (B, T)"
                )
    return rows


def _group_column(groups: Any, rows: int) -> list[Hashable]:
    column = _column("groups", groups, rows)
    for row, group in enumerate(column):
        try:
            hash(group)
        except TypeError as error:
            raise ConfigError(
                f"row {row} of groups is {shown(group)}; it has to be one value, such as a number or a text: (B,)"
            ) from error
    return column


def _void_column(void: Any, rows: int) -> list[bool]:
    if void is None:
        return [False] * rows
    column = _column("void", void, rows)
    for row, value in enumerate(column):
        # Python takes [False], of a column of the shape (B, 1), for true.
        if value not in (0, 1):
            raise ConfigError(f"row {row} of void is {shown(value)}; it has to be true or false: (B,)")
    return [bool(value) for value in column]


def _outcome_column(outcomes: Any, rows: int) -> list[float | None]:
    """None where nobody could grade the session."""
    column: list[float | None] = []
    for row, value in enumerate(_column("outcomes", outcomes, rows)):
        try:
            outcome = math.nan if value is None else float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RewardError(
                f"row {row} of outcomes is {shown(value)}; it has to be one number, or None if nobody could grade the "
                "session: (B,)"
            ) from error
        column.append(None if math.isnan(outcome) else outcome)
    return column


def _turn_rewards(row: int, rewards: Any) -> list[float]:
    try:
        return [float(reward) for reward in rewards]
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardError(
            f"row {row} of rewards is {shown(rewards)}; it has to hold a number for each turn. What a whole session "
            "earned goes into `outcomes`"
        ) from error


def _turn_states(row: int, states: Any) -> Sequence[str | None] | None:
    if states is None:
        return None
    if isinstance(states, str) or not isinstance(states, Sequence):
        raise ConfigError(
            f"row {row} of states is {shown(states)}; it has to hold a text for each turn, or None where it is unknown"
        )
    return states


def _turns(row: int, row_mask: Sequence[float], spans: Any) -> list[Span]:
    """The caller's spans of a row that has sampled tokens."""
    try:
        turns = [(operator.index(start), operator.index(end)) for start, end in spans]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"row {row} of spans is {shown(spans)}; it has to hold a pair of token numbers, (start, end), for each turn"
        ) from error
    edges = [0]
    for start, end in turns:
        edges += [start, end]
    edges.append(len(row_mask))
    are_in_order = edges == sorted(edges)
    sampled_counts = [sum(row_mask[start:end]) for start, end in turns]
    sampled = sum(row_mask)
    if not are_in_order or 0 in sampled_counts or sum(sampled_counts) != sampled:
        raise ConfigError(
            f"row {row} has turns at tokens {turns}; they have to be in order and hold a sampled token each, and all "
            f"{sampled:g} sampled tokens of the row have to lie in them"
        )
    return turns


def _compares_sessions(credit: CreditConfig) -> bool:
    """Whether a session that is alone in its group would have no advantage."""
    return credit.record is not None and credit.estimator != "critic" and credit.baseline != "none"


def _trajectories(group: Sequence[Session]) -> list[Trajectory]:
    """The sessions of a group as trajectories: a line per turn, and nothing between them.

    Estimators find the state in which a line began in the fingerprint of the line before it, and take the first lines
    of a group for equal. A state that is reached again and equals the first one gets the fingerprint of the start, "".
    States of void sessions are not read.
    """
    first_states: set[str] = set()
    for session in group:
        if session.is_void or not session.states:
            continue
        first_state = session.states[0]
        if first_state is not None:
            first_states.add(first_state)
    if len(first_states) > 1:
        raise ConfigError(
            f"the sessions of group {group[0].group!r} begin in {len(first_states)} different states; those that are "
            "compared have to begin in one, so give them different groups"
        )
    trajectories = []
    for session in group:
        states = None if session.is_void else session.states
        lines: list[Line] = []
        end = 0
        for turn, count in enumerate(session.token_counts):
            state_after = None
            if states is not None and turn + 1 < len(states):
                state_after = states[turn + 1]
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
