"""`Rollout.stream` of one task: what it tells is the trajectory, and leaving it frees all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest
from exactness import trajectory_in
from scripted import LOGPROB, Gate, ScriptedEngine, rollout_of
from small import without_times
from test_three_views import CONTEXT_TOKENS

from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.events import Began, Ended, Event, Ran, Sampled, events_of
from repl_rl.rollout.loop import Rollout
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

TASK = Task("t1", "What is 6 * 7?", "42")
LINES = (" x = 42\n", " x\n", " submit_final_answer(x)\n")


def listen(rollout: Rollout, task: Task = TASK) -> list[Event]:
    async def hear() -> list[Event]:
        return [event async for event in rollout.stream(task)]

    return asyncio.run(hear())


def test_the_events_of_a_session_by_hand(vocabulary: Vocabulary) -> None:
    """A batch of the task makes the same trajectory, and a finished trajectory tells what it told as it ran."""
    events = listen(rollout_of(ScriptedEngine(vocabulary, LINES)))
    told = [event.text if isinstance(event, Sampled) else event for event in events]
    trajectory = trajectory_in(events)
    first, second, third = trajectory.lines
    ran = [" x = 42\n", Ran(0, first), " x\n", Ran(1, second), " submit_final_answer(x)\n", Ran(2, third)]
    assert told == [Began(TASK, trajectory.prompt, trajectory.prompt_ids), *ran, Ended(trajectory)]
    assert (second.output, second.kind) == ("42\n>>>", LineKind.EXPRESSION)
    assert events[1] == Sampled(0, " x = 42\n", trajectory.completion_ids[: first.end], (LOGPROB,) * first.end)
    assert (trajectory.answer, trajectory.stop_reason) == (("42",), StopReason.ANSWER)
    [batch] = asyncio.run(rollout_of(ScriptedEngine(vocabulary, LINES)).many([TASK]))
    assert without_times(trajectory) == without_times(batch)
    assert list(events_of(TASK, trajectory)) == events


def test_closing_the_iterator_in_the_middle_of_a_cell_frees_slot_and_kernel(vocabulary: Vocabulary) -> None:
    async def go() -> None:
        gate, engine = Gate(), ScriptedEngine(vocabulary, LINES)
        async with aclosing(rollout_of(engine, gate.kernels).stream(TASK)) as stream:
            async for event in stream:
                if isinstance(event, Sampled):
                    await gate.is_asked.wait()
                    assert (engine.slots, gate.kernels.open) == (1, 1)
                    break
        assert (engine.slots, gate.kernels.open) == (0, 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())  # on a loop without other tasks


def test_where_no_kernel_comes_up_there_is_a_beginning_and_an_end(vocabulary: Vocabulary) -> None:
    class Nothing:
        @asynccontextmanager
        async def session(self) -> AsyncIterator[None]:
            raise KernelStartError("no room")
            yield

    events = listen(rollout_of(ScriptedEngine(vocabulary, LINES), Nothing()))
    assert [type(event) for event in events] == [Began, Ended]
    assert trajectory_in(events).error == "KernelStartError: no room"


def test_what_can_not_be_rolled_out_is_refused_before_anything_is_told(vocabulary: Vocabulary) -> None:
    rollout = rollout_of(ScriptedEngine(vocabulary, LINES))
    with pytest.raises(ConfigError, match="the prompt of task 'long' has"):
        listen(rollout, Task("long", "z" * 3 * CONTEXT_TOKENS, ""))
    for wrong in ("What is it?", [TASK], {"question": "What is it?", "answer": "42"}):
        with pytest.raises(ConfigError, match=r"is not a task: give Task\(id, question, answer\)"):
            rollout.stream(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="is not a task"):
            RolloutBatch([wrong])  # type: ignore[list-item]
    for odd in ({"question": None}, {"answer": 42}, {"history": ({"role": "user", "content": "Hello"},)}):
        with pytest.raises(ConfigError, match=r"task 'long' holds .* where a text has to be"):
            rollout.stream(replace(Task("long", "?", ""), **odd))  # type: ignore[arg-type]


def test_a_loop_of_ones_own_is_told_when_it_has_ended(vocabulary: Vocabulary) -> None:
    trajectory = trajectory_in(listen(rollout_of(ScriptedEngine(vocabulary, LINES))))

    async def own(tasks: Sequence[Task], engine: object, kernels: object) -> list[Trajectory]:
        return [trajectory]

    events = listen(rollout_of(ScriptedEngine(vocabulary, LINES), sampler=own))
    assert events == list(events_of(TASK, trajectory))
