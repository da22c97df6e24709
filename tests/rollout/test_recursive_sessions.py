"""`rlm_query`: sessions that sessions ask for, in real kernels of one pool, none of which waits for another forever."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import vocabularies
from exactness import assert_masked_text_is_the_outputs
from scripted import RecursiveEngine, rollout_of
from test_subcalls import Noting
from waiting import until_async

from repl_rl.config import SamplingConfig, SeededSampling, SubcallsConfig
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.metrics import batch_metrics
from repl_rl.rollout.subcalls import NoAnswerError, SubCalls
from repl_rl.trajectory import StopReason, SubCall, Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.utils.threads import BackgroundLoop

pytestmark = pytest.mark.more

Pools = Callable[..., KernelPool]
Script = dict[str, Any]
LIMITS = Limits(line_s=60)
TASK = Task("root", "Begin", "42", metadata={"context": "abc"})


def engine_of(script: Script, **options: Any) -> RecursiveEngine:
    """What is typed after a prompt that holds this word; other prompts are answered with themselves."""

    def typed(prompt: str) -> Any:
        found = next((typed for word, typed in script.items() if word == prompt or f"# {word}\n" in prompt), None)
        return f"about {prompt}" if found is None else found() if callable(found) else found

    return RecursiveEngine(vocabularies.nano(), typed, **options)


def asking(engine: Any, pool: KernelPool, lines: int = 12, seconds: float = 3600, **subcalls: Any) -> Rollout:
    budget = {"lines": lines, "tokens": 3000, "line_tokens": 200, "seconds": seconds, "repeats": None}
    return rollout_of(engine, pool, context_tokens=4096, budget=budget, subcalls=subcalls, environment="rlm")


async def take_all(pool: KernelPool) -> None:
    """Take as many sessions as the pool has room for: the last ones are those that it keeps for greater depths."""
    async with AsyncExitStack() as stack, asyncio.timeout(300):
        for depth in [*[0] * (pool.size - pool.depth), *range(1, pool.depth + 1)]:
            await stack.enter_async_context(pool.session(depth))


@pytest.fixture
def pool(kernel_pools: Pools) -> KernelPool:
    return kernel_pools(LIMITS, size=3, depth=2)


@pytest.fixture
def large_pool(kernel_pools: Pools) -> KernelPool:
    return kernel_pools(LIMITS, size=6, depth=2)


@pytest.fixture
def play(loop: BackgroundLoop, pool: KernelPool) -> Callable[..., Trajectory]:
    """Plays a script; afterwards neither engine nor pool holds anything."""

    def play(script: Script, task: Task = TASK, **options: Any) -> Trajectory:
        engine = engine_of(script)
        [trajectory] = loop.run(asking(engine, pool, **{"depth": 2, "tokens": 9000, **options}).many([task]))
        assert (engine.admission.admitted, engine.admission.taken) == (0, 0)
        loop.run(take_all(pool))
        return trajectory

    return play


Play = Callable[..., Trajectory]


def seen(calls: Sequence[SubCall]) -> list[tuple[str, str, int, int, str | None]]:
    return [(call.prompt, call.text, call.depth, call.lines, call.error_name) for call in calls]


def test_a_session_asks_for_a_session_with_a_context_of_its_own(play: Play) -> None:
    trajectory = play(
        {
            "Begin": ["x = 1\n", "rlm_query('Count', list('abcd'))\n", "x, context\n", "FINAL(_)\n"],
            "Count": ["x = len(context)\n", "x, llm_query('why')\n", "FINAL(x)\n"],
        }
    )
    assert [line.shown for line in trajectory.lines] == ["", "'4'\n", "(1, 'abc')\n", ""]
    assert trajectory.answer == ("(1, 'abc')",)
    assert "rlm_query(prompt: str, context: Any = None) -> str" in trajectory.prompt
    asked = trajectory.lines[1].subcalls
    assert seen(asked) == [("Count", "4", 1, 3, None), ("why", "about why", 2, 0, None)]
    assert (asked[0].batch, asked[1].batch) == (0, 1)
    vocabulary = vocabularies.nano()
    assert asked[0].tokens == sum(
        len(vocabulary.encode_output(line)) for line in ("x = len(context)\n", "x, llm_query('why')\n", "FINAL(x)\n")
    )
    assert_masked_text_is_the_outputs(trajectory, vocabulary)
    numbers = batch_metrics([trajectory], 1.0)
    assert (numbers["subcalls/calls"], numbers["subcalls/sessions"], numbers["subcalls/depth"]) == (2.0, 1.0, 2.0)


QUOTES = ["class A: __repr__ = lambda self: chr(39) + 'a' + chr(39) + ', {[]}'\n", "\n", "FINAL(A())\n"]


@pytest.mark.parametrize(
    ("asked", "answer"), [(["FINAL(context * 2)\n"], "'AskAsk'"), (QUOTES, "\"'a', {[]}\"")], ids=["context", "quotes"]
)
def test_without_a_context_the_prompt_is_it_and_an_answer_is_handed_on_as_it_is_written_and_never_evaluated(
    play: Play, asked: list[str], answer: str
) -> None:
    assert play({"Begin": ["FINAL(rlm_query('Ask'))\n"], "Ask": asked}).answer == (answer,)


def test_beyond_the_depth_a_question_is_answered_at_once(play: Play) -> None:
    script: Script = {
        "Begin": ["FINAL(rlm_query('One'))\n"],
        "One": ["FINAL(rlm_query('Two', [2]))\n"],
        "Two": ["FINAL(rlm_query('Three', {'n': 3}))\n"],
    }
    shallow, deep = play(script, depth=2), play(script, depth=3)
    assert shallow.answer == ("'about Two\\n\\n[2]'",)
    assert deep.answer == ("\"about Three\\n\\n{'n': 3}\"",)
    assert [(call.depth, call.lines) for call in shallow.lines[0].subcalls] == [(1, 1), (2, 0)]
    assert [(call.depth, call.lines) for call in deep.lines[0].subcalls] == [(1, 1), (2, 1), (3, 0)]
    assert "rlm_query" not in play({"Begin": ["FINAL(1)\n"]}, depth=1).prompt


def test_batches_keep_their_order_and_records_follow_who_asked(play: Play) -> None:
    trajectory = play(
        {
            "Begin": ["said = rlm_query_batched(['Ask', 'Tell', 'Ask'], ['a', 'b', None])\n", "FINAL(said)\n"],
            "Ask": ["FINAL(llm_query(context + '?'))\n"],
            "Tell": ["FINAL(context)\n"],
        }
    )
    assert trajectory.answer == ("['about a?', 'b', 'about Ask?']",)
    assert [call[:3] for call in seen(trajectory.lines[0].subcalls)] == [
        ("Ask", "about a?", 1),
        ("a?", "about a?", 2),
        ("Tell", "b", 1),
        ("Ask", "about Ask?", 1),
        ("Ask?", "about Ask?", 2),
    ]


def test_sessions_that_come_to_nothing_say_why(play: Play) -> None:
    trajectory = play(
        {
            "Begin": [
                "rlm_query('Idle')\n",
                "rlm_query('Dies')\n",
                "rlm_query('Long ' * 20_000)\n",
                "rlm_query('Fits not ' * 1000)\n",
                "rlm_query('\\ud800')\n",
                "rlm_query_batched(['a', 'b'], [1])\n",
                "FINAL(1)\n",
            ],
            "Idle": ["1\n"] * 7,
            "Dies": ["import os; os._exit(1)\n"],
        },
        lines=7,
    )
    said = [line.shown.strip("'\n") for line in trajectory.lines]
    assert said[0] == "[no answer: the session ended without one, max_lines]"
    assert said[1] == "[no answer: the session ended without one, killed]"
    assert said[2] == "[no answer: a prompt of 100,000 characters does not fit; give long text as context]"
    assert "the prompt of task 'root/3' has 4493 tokens and engine.context_tokens is 4096; " in said[3]
    assert trajectory.lines[4].error_name is not None
    assert trajectory.lines[5].error_name == "ValueError"
    assert "2 prompts and 1 contexts; give each prompt one, or None" in said[5]
    names = [call.error_name for line in trajectory.lines[:4] for call in line.subcalls]
    assert names == ["max_lines", "killed", "length", "session"]


def test_budgets_are_those_of_the_trajectory(play: Play) -> None:
    script: Script = {
        "Begin": ["rlm_query_batched(['Asks', 'Asks'])\n", "llm_query('x')\n", "FINAL(1)\n"],
        "Asks": ["a = llm_query('y')\n", "FINAL(a)\n"],
    }
    few = play(script, calls=3)
    refused = "[no answer: the budget of 3 questions is used up]"
    assert sorted(eval(few.lines[0].shown)) == [refused, "about y"]
    assert eval(few.lines[1].shown) == refused
    short = play(script, tokens=40, session_tokens=30, call_tokens=10)
    assert [call.error_name for call in short.lines[0].subcalls if call.depth == 1] == [None, "max_tokens"]
    assert sum(call.tokens for line in short.lines for call in line.subcalls) <= 40


def test_the_seconds_of_a_session_are_those_of_who_waits_for_it(play: Play) -> None:
    script: Script = {"Begin": ["rlm_query('Slow')\n", "FINAL(1)\n"], "Slow": ["1\n", "FINAL(2)\n"]}
    trajectory = play(script, seconds=1e-6)
    assert trajectory.stop_reason is StopReason.SECONDS
    assert seen(trajectory.lines[0].subcalls) == [
        ("Slow", "[no answer: the session ended without one, seconds]", 1, 1, "seconds")
    ]


@pytest.mark.parametrize("capacity_tokens", [1, pytest.param(1 << 20, marks=pytest.mark.slow)])
async def test_more_sessions_than_kernels_end_at_any_capacity(pool: KernelPool, capacity_tokens: int) -> None:
    """Three kernels: one for each depth, when each root and each of its two sessions asks for two more."""
    engine = engine_of(
        {
            "Begin": ["FINAL(rlm_query_batched(['One', 'One']))\n"],
            "One": ["FINAL(rlm_query_batched(['Two', 'Two']))\n"],
            "Two": ["FINAL(len(llm_query('end')))\n"],
        },
        capacity_tokens=capacity_tokens,
    )
    rollout = asking(engine, pool, depth=3, tokens=1 << 20)
    before = pool.stats.sessions
    async with asyncio.timeout(600):
        made = await rollout.many([TASK] * 5)
    assert {each.answer for each in made} == {("[\"['9', '9']\", \"['9', '9']\"]",)}
    assert pool.stats.sessions - before == 5 * 7
    assert engine.held.total() == engine.admission.admitted == 0
    if capacity_tokens == 1:
        assert dict(engine.most) == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_what_a_line_leaves_behind_ends_with_all_that_it_has_asked_in_turn() -> None:
    async def session(task: Task, max_tokens: int, subcalls: SubCalls, sampling: SamplingConfig) -> Trajectory:
        if task.question == "refused":
            raise NoAnswerError("session", "not now")
        await subcalls.ask([f"about {task.question}"])
        raise AssertionError

    stalled = Noting()
    stalled.may_answer.clear()
    config = SubcallsConfig(depth=2, tokens=2000, session_tokens=500, call_tokens=2000)
    calls = SubCalls(stalled, config, SeededSampling(seed="s"), "t", session)
    asking = asyncio.ensure_future(calls.ask_sessions(["a", "refused"]))
    await until_async(lambda: len(stalled.asked) == 1)
    taken = await calls.take()
    assert asking.cancelled()
    assert seen(taken) == [
        ("a", "", 1, 0, "cancelled"),
        ("about a", "", 2, 0, "cancelled"),
        ("refused", "[no answer: not now]", 1, 0, "session"),
    ]
    again = asyncio.ensure_future(calls.ask(["b"]))
    await until_async(lambda: len(stalled.asked) == 2)
    await calls.close()
    assert again.cancelled()
    assert stalled.asked[-1][1] == 2000, "all that was set aside has come back"


async def test_sessions_end_with_their_batch(large_pool: KernelPool) -> None:
    pool, begun = large_pool, 0

    async def never() -> str:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()
        raise AssertionError

    engine = engine_of({"Begin": ["rlm_query('Stall')\n"], "Stall": ["llm_query('never')\n"], "never": never})
    rollout = asking(engine, pool, depth=2)
    async with asyncio.timeout(600):
        async with aclosing(rollout.as_completed(RolloutBatch([TASK, TASK]))) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await until_async(lambda: begun == 2)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert dict(engine.most) == {0: 2, 1: 2, 2: 2}
    assert engine.held.total() == engine.admission.admitted == 0
    await take_all(pool)


@pytest.mark.slow
async def test_a_session_that_can_have_no_memory_is_refused_and_its_place_is_free_again() -> None:
    # The session counts as its block and some MB: within 165 of them, but 16 more, which another would need, are not.
    engine = engine_of(
        {
            "Begin": ["block = bytearray(146 << 20)\n", "import time; time.sleep(1)\n", "FINAL(rlm_query('Small'))\n"],
            "Small": ["FINAL(1)\n"],
        }
    )
    async with KernelPool(4, Limits(line_s=60), warm=0, memory_mb=165, depth=1) as pool:
        async with asyncio.timeout(300):
            [trajectory] = await asking(engine, pool, depth=2).many([TASK])
        await take_all(pool)
    assert trajectory.answer is not None
    assert "the memory of the pool's sessions is used up" in trajectory.answer[0]
    assert [call.error_name for call in trajectory.lines[2].subcalls] == ["aborted"]


async def test_seeds_of_sessions_and_answers_are_their_own(pool: KernelPool) -> None:
    seeds: list[str] = []
    one = ["llm_query_batched(['x', 'y'])\n", "FINAL(llm_query('z'))\n"]
    script: Script = {"Begin": ["FINAL(rlm_query_batched(['One', 'One']))\n"], "One": one}
    engine = engine_of(script, note=lambda sampling: seeds.append(sampling.seed))
    await asking(engine, pool, depth=2, at_once=1).many([TASK], SeededSampling(seed="s"))
    of_session = ("", "/sub-call 0", "/sub-call 1", "", "/sub-call 2")
    assert seeds == ["s/0", *(f"s/0/sub-call {number}{each}" for number in (0, 1) for each in of_session)]


def test_records_of_sessions_are_written_and_read(play: Play, tmp_path: Any) -> None:
    script: Script = {"Begin": ["FINAL(rlm_query('One'))\n"], "One": ["import math\n", "FINAL(llm_query('x'))\n"]}
    plain, kept = play(script), play(script, train=True)
    assert [call.trajectory for call in plain.lines[0].subcalls] == [None, None]
    session, answer = (call.trajectory for call in kept.lines[0].subcalls)
    assert session is not None
    assert answer is not None
    assert [line.text for line in session.lines] == ["import math\n", "FINAL(llm_query('x'))\n"]
    assert (session.answer, session.task_id, answer.task_id) == (("'about x'",), "root/0", "root/0/0")
    assert all(not line.subcalls for line in session.lines)
    write_jsonl(tmp_path / "made.jsonl", [plain, kept])
    assert list(read_jsonl(tmp_path / "made.jsonl")) == [plain, kept]


def test_kernels_without_places_for_such_sessions_are_refused(kernel_pools: Pools) -> None:
    with pytest.raises(ConfigError, match=r"subcalls.depth 3 lets sessions wait .*give KernelPool\(size, depth=2\)"):
        asking(engine_of({}), kernel_pools(LIMITS, size=2), depth=3)
    with pytest.raises(ConfigError, match=r"size 2 has no place for sessions that wait for 2 more.*at least 3"):
        KernelPool(2, depth=2)
