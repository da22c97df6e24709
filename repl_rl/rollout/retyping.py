"""Recorded sessions, typed again in the tokens of another model, or behind another prompt.

    session = await retyped(kernels, setup, task, recorded)
    if what_differs(recorded, session) is None: ...        # it did what it did when it was recorded

The recorded lines are typed at the line loop in a fresh interpreter, so that prompt, outputs, masks and the ends of
turns are those of the rollouts with `setup`. Where the recorded ids are of the same vocabulary, they are typed as they
are. Text of another tokenizer is encoded line by line. A token may hold text after the newline that ends its turn, and
then the rest of the text follows as if it had been typed ahead.

Not covered: sessions that asked a language model, whose answers are not repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from repl_rl.config import SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary
from repl_rl.kernel import KernelSource
from repl_rl.rollout.continued import as_sampled
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

_ENDS_BY_ITSELF = (StopReason.ANSWER, StopReason.EOS, StopReason.KILLED)
"""Reasons that come again when the same lines are typed. The others are budgets, which may be others here."""


async def retyped(kernels: KernelSource, setup: RolloutSetup, task: Task, recorded: Trajectory) -> Trajectory:
    """The lines of a whole recorded session, typed again as the answer to `task`, with the recorded grade.

    It ends where the lines end, or earlier if a budget of `setup` does not allow them. Raises what `Rollout.many`
    raises.
    """
    policy = RetypingPolicy(recorded, setup.vocabulary)
    [session] = await Rollout(policy, kernels, setup).many([task])
    last = session.lines[-1] if session.lines else None
    if policy.is_done and last is not None and last.kind is LineKind.OVERLONG:
        # The loop had asked for one more line, where a budget had ended the recorded session.
        session = replace(session.at(len(session.lines) - 1), stop_reason=recorded.stop_reason)
    return replace(
        session,
        outcome_reward=recorded.outcome_reward,
        environment_reward=recorded.environment_reward,
        environment_reason=recorded.environment_reason,
        reference=recorded.reference,
        grade_reason=recorded.grade_reason,
    )


def what_differs(recorded: Trajectory, session: Trajectory) -> str | None:
    """What a session did that the recorded one had not done, or the other way round, in a sentence; None for nothing.

    Compared are the cells, in order, with what they showed, and the answer. Lines may be cut elsewhere.
    """
    before = [(cell.source, cell.output) for line in recorded.lines for cell in line.cells]
    now = [(cell.source, cell.output) for line in session.lines for cell in line.cells]
    for (source, output), (source_now, output_now) in zip(before, now, strict=False):
        if source != source_now:
            return f"{source_now!r} ran in the place of {source!r}"
        if output != output_now:
            return f"{source!r} showed {output_now!r}, not {output!r}"
    if len(before) != len(now):
        return f"statements that ran: {len(now)}, not {len(before)}"
    if recorded.answer != session.answer:
        return f"the answer is {session.answer}, not {recorded.answer}"
    if recorded.stop_reason in _ENDS_BY_ITSELF and session.stop_reason is not recorded.stop_reason:
        return f"it ended by {session.stop_reason}, not by {recorded.stop_reason}"
    return None


class RetypingPolicy:
    """An engine without a model, for one session: its slot types a recorded one."""

    version = 0

    def __init__(self, recorded: Trajectory, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        if is_of_vocabulary(recorded, vocabulary):
            self._lines = _recorded_lines(recorded, vocabulary)
        else:
            self._lines = encoded_lines(recorded, vocabulary)
        self.is_done = False
        """Whether all lines were typed, and another one was asked for."""

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[RetypingPolicy]:
        yield self

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """The next line, cut where a budget ends; after the last one, a token that counts as a line cut short."""
        line = next(self._lines, None)
        if line is None:
            self.is_done = True
            return SampledLine((self._vocabulary.turn_end_id,), (0.0,), Finish.LENGTH)
        if len(line.ids) > max_tokens:
            return SampledLine(line.ids[:max_tokens], line.logprobs[:max_tokens], Finish.LENGTH)
        return line

    def close(self) -> None:
        """There is nothing to release."""


def is_of_vocabulary(recorded: Trajectory, vocabulary: Vocabulary) -> bool:
    """Whether the recorded ids stand for the recorded text in this vocabulary."""
    typed = b""
    for line in recorded.lines:
        ids = recorded.completion_ids[line.start : line.end]
        if max(ids) >= len(vocabulary.token_bytes):
            return False
        typed += vocabulary.bytes_of(ids[:-1] if ids[-1] in vocabulary.eos_ids else ids)
    return typed.decode("utf-8", "replace") == "".join(line.text for line in recorded.lines)


def _recorded_lines(recorded: Trajectory, vocabulary: Vocabulary) -> Iterator[SampledLine]:
    """The lines as they were sampled, but for one that was cut short."""
    for line in recorded.lines:
        if line.kind is not LineKind.OVERLONG:
            yield as_sampled(recorded, line, vocabulary.eos_ids)


def encoded_lines(recorded: Trajectory, vocabulary: Vocabulary) -> Iterator[SampledLine]:
    """The text of the lines in this vocabulary, as an engine would have sampled it; log-probabilities are 0.0.

    A line without a byte that ends a turn had ended with the end of the text. Raises ValueError for a tokenizer that
    changes the text.
    """
    stop_bytes = set(vocabulary.stops)
    pending = b""  # of a line that this vocabulary cuts in two, the rest
    for line in recorded.lines:
        if line.kind is LineKind.OVERLONG:
            return
        text = line.text.encode("utf-8", "replace")
        pending += text
        while not stop_bytes.isdisjoint(pending):
            ids = _first_turn(_encoded(pending, vocabulary), vocabulary)
            yield SampledLine(ids, (0.0,) * len(ids), Finish.NEWLINE)
            pending = pending[len(vocabulary.bytes_of(ids)) :]
        if stop_bytes.isdisjoint(text):
            ids = (*_encoded(pending, vocabulary), vocabulary.turn_end_id)
            yield SampledLine(ids, (0.0,) * len(ids), Finish.EOS)
            pending = b""


def _encoded(text: bytes, vocabulary: Vocabulary) -> tuple[int, ...]:
    ids = vocabulary.encode_output(text.decode("utf-8", "replace"))
    if vocabulary.bytes_of(ids) != text:
        raise ValueError(f"{text!r} does not come back from its tokens")
    return ids


def _first_turn(ids: tuple[int, ...], vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids up to the first one that ends a turn, which is among them."""
    for index, token in enumerate(ids):
        if token in vocabulary.stop_ids:
            return ids[: index + 1]
    raise AssertionError("a byte that ends a turn is in a token that does")
