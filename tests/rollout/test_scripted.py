"""Sessions typed by hand: what comes out is what a model's rollout would be, in any dialect."""

import asyncio

import pytest
from vocabularies import nano

from repl_rl.config import SamplingConfig
from repl_rl.dialect.inline import InlineDialect
from repl_rl.engine import Finish
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.scripted import ScriptedPolicy, turns, type_session
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

pytestmark = pytest.mark.more


def typed(*arguments: object, **options: object) -> Trajectory:
    return asyncio.run(type_session(*arguments, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "stops", "pieces"),
    [
        ("a\n\nb\n", b"\n", ["a\n", "\n", "b\n"]),
        ("x = 1\n>y", b"\n=", ["x =", " 1\n", ">y"]),
        ("]a]-b^\\", b"\n]-^\\", ["]", "a]", "-", "b^", "\\"]),
        ("", b"\n", []),
    ],
)
def test_a_text_is_cut_behind_each_stop_and_loses_nothing(text: str, stops: bytes, pieces: list[str]) -> None:
    assert turns(text, stops) == pieces
    assert "".join(pieces) == text


def test_a_typed_session_is_a_trajectory_with_its_ids_and_mask() -> None:
    text = " r = 6 * 7\n r\n submit_final_answer(r)\n"
    trajectory = typed(Task("t", "What is 6 * 7?", "42"), text)
    assert [line.kind for line in trajectory.lines] == [LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.ANSWER]
    assert [line.output for line in trajectory.lines] == [">>>", "42\n>>>", ""]
    assert (trajectory.task_id, trajectory.answer, trajectory.stop_reason) == ("t", ("42",), StopReason.ANSWER)
    sampled = [i for i, mask in zip(trajectory.completion_ids, trajectory.sampled_mask, strict=True) if mask]
    assert nano().decode(sampled) == text
    assert set(trajectory.logprobs) == {0.0}


def double(x: int) -> int:
    """Twice x."""
    return 2 * x


def test_tools_are_there() -> None:
    assert typed("Q", " double(21)\n", tools=[double]).lines[0].output == "42\n>>>"


def test_behind_the_text_comes_the_end_of_text() -> None:
    trajectory = typed("What is 6 * 7?", " r = 6 * 7\n r")
    assert [line.text for line in trajectory.lines] == [" r = 6 * 7\n", " r"]
    assert trajectory.lines[1].output == "42\n"
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.EOS, None)
    assert trajectory.completion_ids[trajectory.lines[1].end - 1] in nano().eos_ids


def test_turns_end_where_the_dialects_do() -> None:
    trajectory = typed("What is 6 * 7?", "It is <fn>6 * 7</fn>.\nAnswer: 42\n", dialect=InlineDialect())
    assert [(line.text, line.output) for line in trajectory.lines] == [
        ("It is <fn>", ""),
        ("6 * 7</fn>", "<fn_results>42</fn_results>"),
        (".\n", ""),
        ("Answer: 42\n", ""),
    ]


def test_sessions_share_kernels_that_are_given() -> None:
    async def go() -> list[Trajectory]:
        async with KernelPool(1, Limits(line_s=60)) as pool:
            return [await type_session("Q", f" {n}\n", kernels=pool) for n in (1, 2)]

    assert [trajectory.lines[0].output for trajectory in asyncio.run(go())] == ["1\n>>>", "2\n>>>"]


async def test_two_slots_type_the_same_and_a_budget_cuts() -> None:
    policy = ScriptedPolicy(nano(), " 1234\n 5\n")
    for _ in range(2):
        async with policy.slot(10) as slot:
            first = await slot.sample_line([], 100, SamplingConfig())
            assert (nano().decode(first.ids), first.finish) == (" 1234\n", Finish.NEWLINE)
            cut = await slot.sample_line([], 1, SamplingConfig())
            assert (len(cut.ids), cut.finish) == (1, Finish.LENGTH)
