"""What must hold for every trajectory that a real engine and real kernels made: shared by the tests of all models."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from repl_rl.config import SamplingConfig
from repl_rl.engine import Engine, SampledLine, Vocabulary
from repl_rl.rollout.events import Began, Ended, Event, Ran, Sampled
from repl_rl.trajectory import Trajectory


class RecordingEngine:
    """An engine that keeps what it was given and what it sampled, in the order of the answers.

    `after_line` is called with the number of lines so far.
    """

    def __init__(self, engine: Engine, after_line: Callable[[int], None] = lambda lines: None) -> None:
        self.engine = engine
        self._after_line = after_line
        self.calls: list[tuple[tuple[int, ...], SampledLine]] = []

    @property
    def version(self) -> int:
        return self.engine.version

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Any]:
        async with self.engine.slot(tokens, is_subcall) as slot:

            async def sample_line(ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
                given = tuple(ids)
                line = await slot.sample_line(ids, max_tokens, sampling)
                self.calls.append((given, line))
                self._after_line(len(self.calls))
                return line

            yield SimpleNamespace(sample_line=sample_line)

    def close(self) -> None:
        self.engine.close()


def assert_exact(trajectories: Sequence[Trajectory], engine: RecordingEngine, vocabulary: Vocabulary) -> None:
    """Every line given and entered once, masks on the outputs, nothing lost."""
    assert not any(trajectory.is_void for trajectory in trajectories)
    assert_the_engine_was_given_the_sequence_so_far(trajectories, engine.calls)
    for trajectory in trajectories:
        assert_masked_text_is_the_outputs(trajectory, vocabulary)


def assert_the_engine_was_given_the_sequence_so_far(
    trajectories: Sequence[Trajectory], calls: Sequence[tuple[tuple[int, ...], SampledLine]]
) -> None:
    """Every line was asked for with exactly prompt + completion so far, and entered as it was sampled."""
    expected = []
    for trajectory in trajectories:
        for line in trajectory.lines:
            given = trajectory.prompt_ids + trajectory.completion_ids[: line.start]
            sampled = trajectory.completion_ids[line.start : line.end]
            expected.append((given, sampled, trajectory.logprobs[line.start : line.end]))
    assert sorted(expected) == sorted((given, line.ids, line.logprobs) for given, line in calls)


def assert_masked_text_is_the_outputs(trajectory: Trajectory, vocabulary: Vocabulary) -> None:
    """Mask 0 stands on the outputs of all lines but the last, encoded on their own, and on nothing else."""
    length = len(trajectory.completion_ids)
    assert len(trajectory.sampled_mask) == len(trajectory.logprobs) == length
    for line, following in pairwise(trajectory.lines):
        between = range(line.end, following.start)
        assert not any(trajectory.sampled_mask[index] for index in between)
        ids = tuple(trajectory.completion_ids[index] for index in between)
        assert vocabulary.decode(ids) == line.output
        assert all(trajectory.logprobs[index] == 0.0 for index in between)
    assert trajectory.lines[0].start == 0
    tail = range(trajectory.lines[-1].end, length)
    assert len(tail) == 0 or trajectory.stop_reason in ("seconds", "max_tokens", "context")


def largest_logprob_difference(trajectory: Trajectory, model: Any) -> float:
    """|sampler - one forward pass over the finished sequence|, at most, over the sampled tokens."""
    ids = torch.tensor([trajectory.prompt_ids + trajectory.completion_ids])
    with torch.no_grad():
        logps = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1)  # (P + T, V)
    start = len(trajectory.prompt_ids)
    differences = [
        abs(logps[start + index - 1, token].item() - trajectory.logprobs[index])
        for index, token in enumerate(trajectory.completion_ids)
        if trajectory.sampled_mask[index]
    ]
    return max(differences)


def trajectory_in(events: Sequence[Event]) -> Trajectory:
    """The one that ends them, checked against everything that was told before it."""
    began, *between, ended = events
    assert isinstance(ended, Ended)
    trajectory = ended.trajectory
    assert isinstance(began, Began)
    assert began == Began(began.task, trajectory.prompt, trajectory.prompt_ids)
    ran = {event.index: event.line for event in between if isinstance(event, Ran)}
    assert [ran[index] for index in sorted(ran)] == list(trajectory.lines)
    sampled = [event for event in between if isinstance(event, Sampled)]
    assert [event.index for event in sampled] == list(range(len(trajectory.lines)))
    for event, line in zip(sampled, trajectory.lines, strict=True):
        assert event.ids == trajectory.completion_ids[line.start : line.end]
        assert event.logprobs == trajectory.logprobs[line.start : line.end]
        assert between.index(event) < next(n for n, other in enumerate(between) if other == Ran(event.index, line))
    assert [event.text for event in sampled[:-1]] == [line.text for line in trajectory.lines[:-1]]
    if sampled:  # half a character that is left over belongs to the last line, and is known at the end
        assert trajectory.lines[-1].text in (sampled[-1].text, sampled[-1].text + "\ufffd")
    return trajectory
