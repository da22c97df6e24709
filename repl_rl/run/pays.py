"""What a config pays for, found out by paying it: made-up sessions are scored and credited as real ones are.

A policy learns what pays. So `--dry-run` says what a right session earns, what the best-paid wrong one does that types
one kind of line again and again, and what one more line is worth; and it warns where a wrong session beats a right one,
or where a small reward becomes an advantage as large as that of a right answer.

Not covered: rules that ask for a text or an output, which made-up lines don't have, and what a policy can do to please
a reward function of the user's. `repl-rl rescore` shows that, on sessions that were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from repl_rl.config import Config
from repl_rl.credit import batch_line_advantages
from repl_rl.errors import RewardError
from repl_rl.rewards import RewardTable, ScoredTrajectory
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, Trajectory
from repl_rl.view.words import counted, signed

_TOKENS = 8
"""Of a made-up line."""
_MOST_LINES = 64
_GROUP_SIZE = 8
_ALIKE = 0.5
"""An advantage that is such a share of a right answer's is about as large."""
_BLOWN_UP = 3.0
"""How many times larger a reward may become, relative to that of a right answer, on its way to an advantage."""
_TRIED = {
    LineKind.COMMENT: "comment",
    LineKind.STATEMENT: "statement",
    LineKind.EXPRESSION: "expression",
    LineKind.SYNTAX_ERROR: "syntax error",
    LineKind.EXCEPTION: "exception",
}
"""The kinds of lines that a policy can type as often as it likes, and what one is called."""


@dataclass(frozen=True, slots=True)
class Farmed:
    """The best-paid of the wrong sessions that type one kind of line to the end of their budget."""

    kind: LineKind
    lines: int
    repeats: bool
    """Whether they are the same line again and again; else each shows or binds something new."""
    total: float

    @property
    def in_words(self) -> str:
        name = _TRIED[self.kind]
        if self.repeats:
            return f"the same {name} {self.lines} times"
        return counted(self.lines, name)


@dataclass(frozen=True, slots=True)
class Pays:
    """What a config pays, at the training step at which lines are paid most."""

    right: float
    """A session of one statement and a right answer."""
    silent: float
    """One line that is worth nothing to anybody, and no answer."""
    farmed: Farmed
    more: dict[LineKind, float]
    """What one more line of each kind is worth to the right session."""

    @property
    def in_words(self) -> str:
        more = ", ".join(f"{_TRIED[kind]} {signed(value)}" for kind, value in self.more.items())
        wrong = f"a wrong session {signed(self.silent)} at most"
        if self.farmed.total > self.silent:
            wrong = f"a wrong session {signed(self.farmed.total)}, for {self.farmed.in_words}"
        return f"a right answer after one statement {signed(self.right)}; {wrong}; one line more: {more}"


def what_pays(config: Config, table: RewardTable) -> Pays:
    """Raises RewardError if a reward function of the user's fails on made-up sessions."""
    weight = config.rewards.shaping.weight
    last_step = max(config.train.steps - 1, 0)
    step = last_step if weight.at(last_step) > weight.at(0) else 0

    def total(session: Trajectory, grade: float) -> float:
        return math.fsum(table.score(session, grade, step).line_rewards)

    right = total(_session([_line(LineKind.STATEMENT, 0), _ANSWER]), 1.0)
    most_lines = min(config.budget.lines, _MOST_LINES)
    farmed = []
    for kind in _TRIED:
        for repeats in (False, True):
            lines = [_line(kind, 0 if repeats else number) for number in range(most_lines)]
            farmed.append(Farmed(kind, most_lines, repeats, total(_session(lines), 0.0)))
    more = {}
    for kind in _TRIED:
        session = _session([_line(LineKind.STATEMENT, 0), _line(kind, 1), _ANSWER])
        more[kind] = total(session, 1.0) - right
    silent = total(_session([_line(LineKind.STATEMENT, 0)]), 0.0)
    return Pays(right, silent, max(farmed, key=lambda session: session.total), more)


def holes(config: Config, table: RewardTable, pays: Pays) -> Iterator[str]:
    """Where a policy would be taught something else than to be right, a sentence each."""
    if config.rewards.outcome > 0:
        yield from _farms(config, pays)
        yield from _charges(config, table, pays)
        yield from _blown_up(config, table)


def _farms(config: Config, pays: Pays) -> Iterator[str]:
    if pays.farmed.total < pays.right:
        return
    yield (
        f"rewards: a wrong session earns {signed(pays.farmed.total)} for {pays.farmed.in_words}, and a right answer "
        f"after one statement {signed(pays.right)}: a policy learns to farm lines. Limit what they pay, with "
        f"rewards.shaping.caps.gain below {config.rewards.outcome:g}"
    )


def _charges(config: Config, table: RewardTable, pays: Pays) -> Iterator[str]:
    """Errors on the way to a right answer may cost more than it brings; then it is better not to try."""
    most_failures = min(config.budget.lines, _MOST_LINES) - 1
    for kind in (LineKind.SYNTAX_ERROR, LineKind.EXCEPTION):
        lines = [_line(kind, number) for number in range(most_failures)]
        earned = math.fsum(table.score(_session([*lines, _ANSWER]), 1.0).line_rewards)
        if most_failures and earned < pays.silent:
            yield (
                f"rewards: a right answer after {counted(most_failures, _TRIED[kind])} earns {signed(earned)}, and a "
                f"session that tries nothing {signed(pays.silent)}: a policy learns to give up. Limit what is charged, "
                f"with rewards.shaping.caps.loss below {config.rewards.outcome:g}"
            )
            return


def _blown_up(config: Config, table: RewardTable) -> Iterator[str]:
    """Among sessions of equal outcome, the estimator may divide a small reward by its own small deviation."""
    if config.branch is not None:
        return  # made-up sessions are no trees
    plain = _session([_line(LineKind.STATEMENT, 0), _ANSWER])
    one_right = [1.0] + [0.0] * (_GROUP_SIZE - 1)
    of_outcome = _spread(config, [table.score(plain, grade) for grade in one_right])
    for kind in _TRIED:
        odd = _session([_line(kind, 1), _ANSWER])  # as long as the others: `turn` compares lines place by place
        reward = math.fsum(table.score(odd, 0.0).line_rewards) - math.fsum(table.score(plain, 0.0).line_rewards)
        if not reward:
            continue
        for grade, outcome in ((1.0, "right"), (0.0, "wrong")):
            group = [table.score(odd, grade), *(table.score(plain, grade) for _ in range(_GROUP_SIZE - 1))]
            of_line = _spread(config, group)
            grows_by = of_line / of_outcome / (abs(reward) / config.rewards.outcome)
            if of_line >= _ALIKE * of_outcome and grows_by >= _BLOWN_UP:
                yield (
                    f"credit: where all {_GROUP_SIZE} sessions of a group are {outcome}, one {_TRIED[kind]} of "
                    f"{signed(reward)} sets advantages {of_line:.2g} apart, and a right answer among wrong ones "
                    f"{of_outcome:.2g}: the estimator divides a small reward by its own small deviation. Take "
                    "credit.scale: none or outcome, or return_to_go"
                )
                return


def _spread(config: Config, group: Sequence[ScoredTrajectory]) -> float:
    """How far apart the advantages of a group's lines are, without the memory that `critic` would have."""
    advantages = batch_line_advantages(
        [[session.trajectory for session in group]],
        [[session.line_rewards for session in group]],
        config.credit,
        outcomes=[[session.outcome or 0.0 for session in group]],
        unit=config.rewards.outcome,
    )
    values = [value for of_session in advantages[0] for value in of_session]
    return max(values) - min(values)


_ANSWER = Line(0, 1, " submit_final_answer(x)\n", LineKind.ANSWER)


def _line(kind: LineKind, number: int) -> Line:
    """The line of a kind with this number; those of other numbers show, bind or say something else."""
    typed = {
        LineKind.COMMENT: f"# thought {number}",
        LineKind.STATEMENT: f"x{number} = f({number})",
        LineKind.EXPRESSION: f"f({number})",
        LineKind.SYNTAX_ERROR: f"x{number} = (",
        LineKind.EXCEPTION: f"y{number}",
    }[kind]
    shown = {
        LineKind.EXPRESSION: f"{1001 + number}\n",
        LineKind.SYNTAX_ERROR: "SyntaxError: '(' was never closed\n",
        LineKind.EXCEPTION: f"NameError: name 'y{number}' is not defined\n",
    }.get(kind, "")
    error_name = {LineKind.SYNTAX_ERROR: "SyntaxError", LineKind.EXCEPTION: "NameError"}.get(kind)
    fingerprint = f"state {number}" if kind is LineKind.STATEMENT else "state"
    cells = (RecordedCell(typed, shown),) if kind.ran else ()
    return Line(
        0, 1, f" {typed}\n", kind, error_name, f"{shown}>>>", fingerprint=fingerprint if kind.ran else None, cells=cells
    )


def _session(lines: Sequence[Line]) -> Trajectory:
    placed = []
    mask: list[bool] = []
    for line in lines:
        placed.append(replace(line, start=len(mask), end=len(mask) + _TOKENS))
        mask += [True] * _TOKENS + [False]
    has_answered = lines[-1].kind is LineKind.ANSWER
    return Trajectory(
        task_id="made up to try rewards",
        prompt=">>> # What is 6 * 7?\n>>>",
        prompt_ids=(0,),
        completion_ids=(1,) * len(mask),
        sampled_mask=tuple(mask),
        logprobs=tuple(-0.5 if is_sampled else 0.0 for is_sampled in mask),
        stop_reason=StopReason.ANSWER if has_answered else StopReason.MAX_LINES,
        lines=tuple(placed),
        answer=("42",) if has_answered else None,
    )


def row_and_notes(config: Config, table: RewardTable) -> tuple[str, list[str]]:
    """For the dry run: what pays, in words, and the holes."""
    try:
        pays = what_pays(config, table)
        return pays.in_words, list(holes(config, table, pays))
    except RewardError as error:
        return "not known", [f"what lines pay was not tried: {error}"]
