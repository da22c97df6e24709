"""Sub-calls at the engine of the rollouts: at no capacity do they wait for each other, and none is left behind."""

from __future__ import annotations

import asyncio
import copy
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from scripted import AskedEngine, ScriptedEngine, rollout_of
from waiting import until_async

from repl_rl.config import SamplingConfig, SeededSampling, SubcallsConfig
from repl_rl.engine import Vocabulary
from repl_rl.engine.remote import EngineHost, RemoteEngine
from repl_rl.errors import EngineError
from repl_rl.kernel import ExecResult, ExecStatus, HostCall, HostCalls
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.subcalls import PolicyModel, SubCalls
from repl_rl.trajectory import StopReason, SubCall, Task, read_jsonl, write_jsonl

SAMPLING = SamplingConfig()
TYPED = ["ask()\n", "submit_final_answer(1)\n"]


class AskingKernels:
    """Sessions whose first cell asks for `prompts` together and prints what the host answers; the second one answers.

    With `leaves`, the first cell ends as soon as that holds, without waiting for the answers. The first `quick`
    sessions answer at once, without asking.
    """

    def __init__(self, prompts: Sequence[str], leaves: Callable[[], bool] | None = None, quick: int = 0) -> None:
        self.prompts = list(prompts)
        self.leaves = leaves
        self.quick = quick

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AskingKernel]:
        self.quick -= 1
        yield AskingKernel(self, has_asked=self.quick >= 0)


class AskingKernel:
    def __init__(self, kernels: AskingKernels, has_asked: bool) -> None:
        self._kernels = kernels
        self._has_asked = has_asked

    async def prepare(self, source: str) -> None: ...

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        assert host is not None
        if self._has_asked:
            return ExecResult(ExecStatus.OK, "", answer=("1",))
        self._has_asked = True
        asked = asyncio.ensure_future(host(HostCall("llm_query_batched", (self._kernels.prompts,), {})))
        try:
            if self._kernels.leaves is not None:
                await until_async(self._kernels.leaves)
                return ExecResult(ExecStatus.OK, "")
            reply = await asked
        finally:
            asked.cancel()
        return ExecResult(ExecStatus.OK, f"{reply.error_name or reply.value}\n")


def rollout_of_asking(engine: Any, kernels: AskingKernels, **subcalls: Any) -> Rollout:
    budget = {"seconds": 3600, "tokens": 400}
    return rollout_of(engine, kernels, budget=budget, at_once=256, environment="rlm", subcalls=subcalls)


def tasks(count: int) -> list[Task]:
    return [Task(f"t{number}", "What?", "1", metadata={"context": "x"}) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "capacity_tokens"),
    [
        (100, 1),
        pytest.param(1000, 1, marks=pytest.mark.more),
        pytest.param(100, 2_000, marks=pytest.mark.more),
        pytest.param(100, 1 << 20, marks=pytest.mark.more),
        pytest.param(1000, 2_000, marks=pytest.mark.slow),
        pytest.param(1000, 1 << 20, marks=pytest.mark.slow),
    ],
)
async def test_trajectories_with_ten_sub_calls_each_end_at_any_capacity(count: int, capacity_tokens: int) -> None:
    engine = AskedEngine(vocabularies.nano(), TYPED, capacity_tokens=capacity_tokens)
    prompts = [f"part {number}" for number in range(10)]
    async with asyncio.timeout(600):
        trajectories = await rollout_of_asking(engine, AskingKernels(prompts)).many(tasks(count))
    assert {trajectory.stop_reason for trajectory in trajectories} == {StopReason.ANSWER}
    answers = f"{[f'about {prompt}' for prompt in prompts]}\n"
    assert {trajectory.lines[0].shown for trajectory in trajectories} == {answers}
    assert sum(len(line.subcalls) for each in trajectories for line in each.lines) == 10 * count
    assert (engine.admission.admitted, engine.admission.taken) == (0, 0)
    assert engine.held.total() == 0
    if capacity_tokens == 1:
        assert dict(engine.most) == {False: 1, True: 1}
    else:
        assert engine.most[True] > 1


async def test_sub_calls_of_another_process_go_first_too() -> None:
    """The same through the protocol by which workers ask for slots, at the smallest capacity."""
    engine = AskedEngine(vocabularies.nano(), TYPED, capacity_tokens=1)
    ours, theirs = socket.socketpair()
    host = await EngineHost.open(engine, ours)
    remote = await RemoteEngine.open(theirs)
    async with asyncio.timeout(300):
        trajectories = await rollout_of_asking(remote, AskingKernels("ab")).many(tasks(20))
    assert {trajectory.lines[0].shown for trajectory in trajectories} == {"['about a', 'about b']\n"}
    remote.close()
    await host.close()
    assert engine.most == {False: 1, True: 1}


class EngineWithDepths(AskedEngine):
    """An engine of a user's own, as docs/engines.md described them when sub-calls could be nested."""

    depths: list[int]

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Any]:
        self.depths.append(depth)
        async with super().slot(tokens, depth > 0) as slot:
            yield slot


@pytest.mark.parametrize("in_another_process", [False, True])
async def test_an_engine_whose_slots_take_a_depth_gets_1_for_sub_calls(in_another_process: bool) -> None:
    engine: Any = EngineWithDepths(vocabularies.nano(), TYPED, capacity_tokens=1)
    engine.depths = []
    async with AsyncExitStack() as stack:
        asked = engine
        if in_another_process:
            ours, theirs = socket.socketpair()
            host = await EngineHost.open(engine, ours)
            stack.push_async_callback(host.close)
            asked = await RemoteEngine.open(theirs)
            stack.callback(asked.close)
        async with asyncio.timeout(300):
            [trajectory] = await rollout_of_asking(asked, AskingKernels("ab")).many(tasks(1))
    assert trajectory.lines[0].shown == "['about a', 'about b']\n"
    assert engine.depths == [0, 1, 1]


async def test_seeds_of_answers_are_their_own() -> None:
    sampled: list[Any] = []
    engine = AskedEngine(vocabularies.nano(), TYPED, note=sampled.append)
    rollout = rollout_of_asking(engine, AskingKernels("ab"), at_once=1)
    await rollout.many(tasks(1), SeededSampling(seed="s"))
    assert [sampling.seed for sampling in sampled] == ["s/0", "s/0/sub-call 0", "s/0/sub-call 1", "s/0"]


@pytest.mark.parametrize("trains", [False, True])
async def test_what_the_policy_sampled_is_recorded_where_it_is_trained(trains: bool, tmp_path: Path) -> None:
    engine = AskedEngine(vocabularies.nano(), TYPED)
    [trajectory] = await rollout_of_asking(engine, AskingKernels("ab"), train=trains).many(tasks(1))
    sampled = [call.trajectory for call in trajectory.lines[0].subcalls]
    names = [None if each is None else (each.task_id, each.answer) for each in sampled]
    assert names == ([("t0/0", ("about a",)), ("t0/1", ("about b",))] if trains else [None, None])
    write_jsonl(tmp_path / "made.jsonl", [trajectory])
    assert list(read_jsonl(tmp_path / "made.jsonl")) == [trajectory]


def stalled(prompt: str) -> Any:
    return asyncio.Event().wait()


async def test_sub_calls_end_with_the_line_that_asked() -> None:
    engine = AskedEngine(vocabularies.nano(), TYPED, stalled)
    kernels = AskingKernels("abcd", leaves=lambda: engine.held[True] == 4)
    held: list[int] = []
    rollout = rollout_of_asking(engine, kernels)
    async for event in rollout.stream(tasks(1)[0]):
        held.append(engine.held[True])
        last = event
    assert held[-1] == 0
    [first, _] = last.trajectory.lines  # type: ignore[union-attr]
    assert [(call.prompt, call.error_name) for call in first.subcalls] == [(name, "cancelled") for name in "abcd"]
    assert (engine.admission.admitted, engine.admission.taken) == (0, 0)


@pytest.mark.parametrize("ends", ["closed", "failing"])
async def test_a_batch_that_ends_in_the_middle_leaves_nothing_at_the_engine(ends: str) -> None:
    """After this, weights may change: some sub-calls are being answered, others wait for room."""
    asked: list[str] = []
    broken = asyncio.Event()

    async def stall(prompt: str) -> str:
        asked.append(prompt)
        if ends == "failing" and len(asked) == 12:
            broken.set()
        await broken.wait()
        raise EngineError("the engine failed")

    engine = AskedEngine(vocabularies.nano(), TYPED, stall, capacity_tokens=4000)
    kernels = AskingKernels([f"part {number}" for number in range(20)])
    rollout = rollout_of_asking(engine, kernels, call_tokens=16)
    async with asyncio.timeout(300):
        if ends == "failing":
            trajectories = await rollout.many(tasks(8))
            assert {each.lines[0].shown for each in trajectories} == {"EngineError\n"}
        else:
            async with aclosing(rollout.as_completed(RolloutBatch(tasks(8)))) as stream:
                waiting = asyncio.ensure_future(anext(stream))
                await until_async(lambda: len(asked) > 10)
                assert engine.held[True] > 0
                waiting.cancel()
                await asyncio.wait([waiting])
    assert engine.held.total() == 0
    assert (engine.admission.admitted, engine.admission.taken) == (0, 0)


class Noting:
    """A model that notes what it is asked, and answers when it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, SamplingConfig]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.under_way = self.most = 0

    async def complete(self, prompt: str, max_tokens: int, sampling: SamplingConfig) -> SubCall:
        self.asked.append((prompt, max_tokens, sampling))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        await self.may_answer.wait()
        self.under_way -= 1
        return SubCall(prompt, prompt.upper(), len(prompt), min(max_tokens, len(prompt)))


async def test_answers_keep_the_order_and_so_many_are_asked_at_once() -> None:
    model = Noting()
    calls = SubCalls(model, SubcallsConfig(at_once=3), SAMPLING)
    assert await calls.ask(list("abcdefgh")) == list("ABCDEFGH")
    assert model.most == 3
    assert [call.prompt for call in await calls.take()] == list("abcdefgh")
    assert await calls.take() == ()


async def test_what_is_left_of_the_tokens_set_aside_comes_back() -> None:
    model = Noting()
    calls = SubCalls(model, SubcallsConfig(tokens=10, call_tokens=6), SAMPLING)
    late = "[no answer: the budget of 10 tokens for answers is used up]"
    assert await calls.ask(["ab", "c", "d"]) == ["AB", "C", late]
    assert await calls.ask(["efg"]) == ["EFG"]
    assert [tokens for _, tokens, _ in model.asked] == [6, 4, 6]


async def test_what_was_set_aside_for_a_call_that_is_ended_comes_back() -> None:
    model = Noting()
    model.may_answer.clear()
    calls = SubCalls(model, SubcallsConfig(tokens=10, call_tokens=10), SAMPLING)
    asking = asyncio.ensure_future(calls.ask(["a"]))
    await until_async(lambda: model.under_way == 1)
    assert [(call.prompt, call.text, call.error_name) for call in await calls.take()] == [("a", "", "cancelled")]
    assert asking.cancelled()
    model.may_answer.set()
    assert await calls.ask(["b"]) == ["B"]
    assert [tokens for _, tokens, _ in model.asked] == [10, 10]


async def test_a_closed_session_asks_nothing_any_more() -> None:
    model = Noting()
    model.may_answer.clear()
    calls = SubCalls(model, SubcallsConfig(), SAMPLING)
    asking = asyncio.ensure_future(calls.ask(["a"]))
    await until_async(lambda: model.under_way == 1)
    await calls.close()
    assert asking.cancelled()
    assert await calls.ask(["b"]) == ["[no answer: the session is over]"]
    assert len(model.asked) == 1


async def test_a_base_model_continues_the_line_and_a_chat_model_its_turn() -> None:
    vocabulary, lines = vocabularies.nano(), ["one\n", "two\n", "three"]
    base, chat = ScriptedEngine(vocabulary, lines), ScriptedEngine(vocabulary, lines)
    tokenizer = copy.deepcopy(vocabulary.tokenizer)
    tokenizer.chat_template = "{% for each in messages %}<{{ each.content }}>{% endfor %}"
    made = await PolicyModel(base, vocabulary, 512, chat=False).complete("Say:", 50, SAMPLING)
    assert (made.text, made.prompt_tokens) == ("one", len(vocabulary.encode_prompt("Say:")))
    model = PolicyModel(chat, Vocabulary(tokenizer, tuple(vocabulary.eos_ids)), 512)
    made = await model.complete("Say:", 50, SAMPLING)
    assert made.text == "one\ntwo\nthree"
    assert [vocabulary.decode(ids) for ids in chat.given] == ["<Say:>", "<Say:>one\n", "<Say:>one\ntwo\n"]
    chat.sessions.clear()
    assert (await model.complete("Say:", 3, SAMPLING)).tokens == 3


async def test_questions_beyond_a_budget_cost_no_work_and_few_records() -> None:
    """A session can ask for thousands in one line of a few characters, and its clock stands still meanwhile."""

    subcalls = SubCalls(Noting(), SubcallsConfig(calls=2), SAMPLING)
    before = len(asyncio.all_tasks())
    said = [await subcalls.ask(["a"] * 1_000) for _ in range(1_000)]
    assert said[0] == ["A", "A"] + ["[no answer: the budget of 2 questions is used up]"] * 998
    assert said[-1] == ["[no answer: the budget of 2 questions is used up]"] * 1_000
    assert len(asyncio.all_tasks()) == before
    recorded = await subcalls.take()
    assert [call.error_name for call in recorded] == [None, None, *["calls"] * 100]
    with pytest.raises(ValueError, match="1001 questions at once, and 1000 are the most; ask fewer"):
        await subcalls.ask(["x"] * 1_001)
