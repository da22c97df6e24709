"""Lines in vLLM's core: where they stop, what becomes of their blocks. One engine with a KV cache of 24 blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.engine.vllm.engine import LineStepper, RequestStepper, VLLMEngine, make_stepper
from repl_rl.engine.vllm.scheduler import Ends, LineScheduler, stop_table
from repl_rl.errors import ConfigError, EngineError
from repl_rl.models.nano import NANO_PATH

BLOCKS, BLOCK_TOKENS, CONTEXT_TOKENS = 24, 32, 256
GREEDY = SamplingConfig(temperature=0)
QUESTIONS = [f"What is {number} * 17?" for number in range(11, 19)]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(NANO_PATH))


@pytest.fixture(scope="module")
def engine(vocabulary: Vocabulary) -> Iterator[VLLMEngine]:
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=8)
    engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config, num_gpu_blocks_override=BLOCKS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()


def scheduler_of(engine: VLLMEngine) -> LineScheduler:
    scheduler: LineScheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    return scheduler


def free_blocks(engine: VLLMEngine) -> int:
    with engine.paused():
        return int(scheduler_of(engine).kv_cache_manager.block_pool.get_num_free_blocks())


def prompt(vocabulary: Vocabulary, question: str) -> list[int]:
    return list(vocabulary.encode_prompt(f">>> # {question}\n>>>"))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, timeout=600))


async def typed(engine: VLLMEngine, vocabulary: Vocabulary, question: str, lines: int) -> tuple[list[int], list[float]]:
    """The whole sequence, and a log-probability per token of it, 0.0 for what was not sampled."""
    ids = prompt(vocabulary, question)
    logprobs = [0.0] * len(ids)
    output = list(vocabulary.encode_output("1\n>>>"))
    async with engine.slot(CONTEXT_TOKENS) as slot:
        for _ in range(lines):
            line = await slot.sample_line(ids, 12, GREEDY)
            ids = [*ids, *line.ids, *output]
            logprobs += [*line.logprobs, *[0.0] * len(output)]
    return ids, logprobs


def assert_exact(reference: Any, ids: list[int], logprobs: list[float]) -> None:
    with torch.no_grad():
        logps = torch.log_softmax(reference(torch.tensor([ids])).logits[0], dim=-1)  # (T, V)
    off = [abs(logps[i - 1, token].item() - logprobs[i]) for i, token in enumerate(ids) if logprobs[i]]
    assert len(off) > 10
    assert max(off) < 1e-3


def test_the_engine_runs_on_our_scheduler(engine: VLLMEngine) -> None:
    assert isinstance(scheduler_of(engine), LineScheduler)
    assert isinstance(engine.stepper, LineStepper)


def test_a_line_leaves_its_blocks_to_the_next_one_and_its_slot_gives_them_back(
    engine: VLLMEngine, vocabulary: Vocabulary
) -> None:
    async def go() -> list[int]:
        ids = prompt(vocabulary, QUESTIONS[0])
        async with engine.slot(CONTEXT_TOKENS) as slot:
            await slot.sample_line(ids, 12, GREEDY)
            while_in_slot = free_blocks(engine)
        return [while_in_slot, free_blocks(engine)]

    before = free_blocks(engine)
    while_in_slot, after = run(go())
    assert while_in_slot < before == after


def test_lines_that_go_on_from_their_blocks_are_exact(
    engine: VLLMEngine, vocabulary: Vocabulary, reference: Any
) -> None:
    ids, logprobs = run(typed(engine, vocabulary, QUESTIONS[0], 6))
    assert_exact(reference, ids, logprobs)


def test_the_engine_counts_what_it_computes_anew(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    engine.llm.reset_prefix_cache()
    first = prompt(vocabulary, QUESTIONS[3])
    output = list(vocabulary.encode_output("1\n>>>"))

    async def go() -> tuple[int, int]:
        async with engine.slot(CONTEXT_TOKENS) as slot:
            line = await slot.sample_line(first, 12, GREEDY)
            second = [*first, *line.ids, *output]
            await slot.sample_line(second, 12, GREEDY)
        return len(first) + len(second), len(first) + 1 + len(output)  # the line's last token was not given yet

    asked, computed = engine.prompt_tokens
    assert run(go()) == (engine.prompt_tokens[0] - asked, engine.prompt_tokens[1] - computed)


def test_where_blocks_run_short_lines_give_theirs_back_and_stay_exact(
    engine: VLLMEngine, vocabulary: Vocabulary, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight sessions of up to 6 blocks in a cache of 24, let in all at once."""
    monkeypatch.setattr(engine.admission, "capacity_tokens", 10**6)
    scheduler, given_back = scheduler_of(engine), []
    release, preempt = scheduler.release, scheduler._preempt_request

    def releasing(name: str) -> None:
        if name in scheduler.parked:
            given_back.append("parked")
        release(name)

    def preempting(*arguments: Any, **named: Any) -> None:
        given_back.append("preempted")
        preempt(*arguments, **named)

    monkeypatch.setattr(scheduler, "release", releasing)
    monkeypatch.setattr(scheduler, "_preempt_request", preempting)

    async def go() -> list[tuple[list[int], list[float]]]:
        return await asyncio.gather(*(typed(engine, vocabulary, question, 8) for question in QUESTIONS))

    together = run(go())
    assert given_back
    for ids, logprobs in together:
        assert_exact(reference, ids, logprobs)
    assert free_blocks(engine) == BLOCKS - 1  # vLLM keeps one for itself


def test_a_slot_may_change_what_was_said_before(engine: VLLMEngine, vocabulary: Vocabulary, reference: Any) -> None:
    async def go() -> tuple[list[int], list[float]]:
        async with engine.slot(CONTEXT_TOKENS) as slot:
            await slot.sample_line(prompt(vocabulary, QUESTIONS[1]), 12, GREEDY)
            ids = prompt(vocabulary, QUESTIONS[2])
            line = await slot.sample_line(ids, 40, GREEDY)
        return [*ids, *line.ids], [*[0.0] * len(ids), *line.logprobs]

    ids, logprobs = run(go())
    with torch.no_grad():
        logps = torch.log_softmax(reference(torch.tensor([ids])).logits[0], dim=-1)
    sampled = [(i, token) for i, token in enumerate(ids) if logprobs[i]]
    assert max(abs(logps[i - 1, token].item() - logprobs[i]) for i, token in sampled) < 1e-3


def test_what_was_computed_with_older_weights_is_not_gone_on_from(
    engine: VLLMEngine, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> int:
        async with engine.slot(CONTEXT_TOKENS) as slot:
            ids = prompt(vocabulary, QUESTIONS[3])
            line = await slot.sample_line(ids, 12, GREEDY)
            engine.version += 1
            started: list[int] = []
            add = scheduler_of(engine).add_request

            def watched(request: Any) -> None:
                started.append(request.num_computed_tokens)
                add(request)

            monkeypatch.setattr(scheduler_of(engine), "add_request", watched)
            await slot.sample_line([*ids, *line.ids], 12, GREEDY)
            return started[0]

    assert run(go()) == 0


def test_a_cancelled_line_frees_its_request_and_its_slot_can_go_on(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    async def go() -> None:
        ids = prompt(vocabulary, QUESTIONS[4])
        async with engine.slot(CONTEXT_TOKENS) as slot:
            asked = asyncio.create_task(slot.sample_line(ids, 100, SamplingConfig(temperature=2)))
            await asyncio.sleep(0.01)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert (await slot.sample_line(ids, 40, GREEDY)).finish is Finish.NEWLINE

    run(go())
    assert free_blocks(engine) == BLOCKS - 1
    assert not scheduler_of(engine).requests


def test_slots_wait_for_the_kv_cache(engine: VLLMEngine) -> None:
    assert engine.admission.capacity_tokens == BLOCKS * BLOCK_TOKENS

    async def go() -> int:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(engine.slot(CONTEXT_TOKENS))
            waiting = asyncio.create_task(stack.enter_async_context(engine.slot(CONTEXT_TOKENS)))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            waiting.cancel()
            return len(done)

    fresh, engine.admission._lengths = engine.admission._lengths.copy(), engine.admission._lengths.__class__(maxlen=256)
    try:
        assert run(go()) == 0
    finally:
        engine.admission._lengths = fresh


def test_without_parking_each_line_is_a_request_of_its_own_and_exact(
    engine: VLLMEngine, vocabulary: Vocabulary, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the token of a step in flight would go to whichever request has the id by then."""
    monkeypatch.setattr(LineScheduler, "parks_blocks", False)
    names: list[str] = []
    add = scheduler_of(engine).add_line

    def watched(request: Any) -> None:
        names.append(request.request_id)
        add(request)

    monkeypatch.setattr(scheduler_of(engine), "add_line", watched)
    ids, logprobs = run(typed(engine, vocabulary, QUESTIONS[7], 4))
    assert_exact(reference, ids, logprobs)
    assert len(set(names)) == 4
    assert free_blocks(engine) == BLOCKS - 1


def test_lines_that_all_wait_with_blocks_in_hand_do_not_wait_for_ever(
    engine: VLLMEngine, vocabulary: Vocabulary, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sessions of up to 7 blocks in a cache of 24; what comes back comes at once."""
    monkeypatch.setattr(engine.admission, "capacity_tokens", 10**6)
    lines = 6
    everybody = asyncio.Barrier(lines)

    async def session(question: str) -> tuple[list[int], list[float]]:
        ids = prompt(vocabulary, question)
        logprobs, output = [0.0] * len(ids), list(vocabulary.encode_output("1234567890\n" * 2 + ">>>"))
        async with engine.slot(CONTEXT_TOKENS) as slot:
            for _ in range(4):
                await everybody.wait()
                line = await slot.sample_line(ids, 12, GREEDY)
                ids = [*ids, *line.ids, *output]
                logprobs += [*line.logprobs, *[0.0] * len(output)]
        return ids, logprobs

    async def go() -> list[tuple[list[int], list[float]]]:
        return await asyncio.gather(*(session(question) for question in QUESTIONS[:lines]))

    for ids, logprobs in run(go()):
        assert_exact(reference, ids, logprobs)
    assert free_blocks(engine) == BLOCKS - 1


def test_other_requests_are_vllms_own_business(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    ids = prompt(vocabulary, QUESTIONS[5])
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)
    with engine.paused():
        output = engine.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 30
    assert any(token in vocabulary.newline_ids for token in output.token_ids[:-1])


@pytest.mark.parametrize(("length", "max_tokens"), [(10, 0), (CONTEXT_TOKENS - 4, 5), (CONTEXT_TOKENS + 1, 1)])
def test_a_line_without_room_is_refused(engine: VLLMEngine, length: int, max_tokens: int) -> None:
    async def go() -> None:
        async with engine.slot(CONTEXT_TOKENS) as slot:
            await slot.sample_line([5] * length, max_tokens, GREEDY)

    with pytest.raises(ConfigError, match=rf"at most {max_tokens} tokens after {length} does not fit"):
        run(go())


def test_a_trajectory_longer_than_the_context_is_refused(engine: VLLMEngine) -> None:
    async def go() -> None:
        async with engine.slot(CONTEXT_TOKENS + 1):
            pass

    with pytest.raises(ConfigError, match=r"a trajectory of 257 tokens does not fit into engine.context_tokens 256"):
        run(go())


def test_a_line_that_vllm_gives_up_on_is_asked_for_again(
    engine: VLLMEngine, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper, failed = engine.stepper, []
    assert isinstance(stepper, LineStepper)
    step = stepper.step_vllm

    def failing(times: int) -> Any:
        for finished in step():
            if len(failed) < times:
                failed.append(finished.slot)
                yield finished._replace(ids=[], logprobs=[], reason="error")
            else:
                yield finished

    expected = run(typed(engine, vocabulary, QUESTIONS[6], 1))
    monkeypatch.setattr(stepper, "step_vllm", lambda: failing(2))
    assert run(typed(engine, vocabulary, QUESTIONS[6], 1))[0] == expected[0]
    assert len(failed) == 2
    failed.clear()
    monkeypatch.setattr(stepper, "step_vllm", lambda: failing(3))
    with pytest.raises(EngineError, match="gave up on a line 3 times, the last time with 'error'"):
        run(typed(engine, vocabulary, QUESTIONS[6], 1))


def test_the_stop_table_has_a_row_for_each_of_the_models_rows(vocabulary: Vocabulary) -> None:
    table = stop_table(vocabulary, 10_000)
    assert len(table) == 10_000
    assert {index for index, ends in enumerate(table) if ends == Ends.LINE} == set(vocabulary.newline_ids)
    assert {index for index, ends in enumerate(table) if ends == Ends.TEXT} == set(vocabulary.eos_ids)


def test_make_stepper_takes_what_the_engine_was_built_for(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    assert isinstance(make_stepper(engine, vocabulary), LineStepper)


@pytest.mark.parametrize("make", [LineStepper, RequestStepper])
def test_who_came_first_goes_on_first(
    engine: VLLMEngine,
    vocabulary: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
    make: type[LineStepper | RequestStepper],
) -> None:
    """Three slots and one place. Their second lines are asked for in reverse."""
    slots = ["first", "second", "third"]
    asked = {slot: prompt(vocabulary, question) for slot, question in zip(slots, QUESTIONS, strict=False)}

    def ended(stepper: LineStepper | RequestStepper) -> list[str]:
        order: list[str] = []
        while len(order) < len(slots):
            for slot, line in stepper.step():
                assert isinstance(line, SampledLine)
                asked[slot] += line.ids
                order.append(slot)
        return order

    with engine.paused():
        monkeypatch.setattr(scheduler_of(engine), "max_num_active_reqs", 1)
        stepper = make(engine, vocabulary)
        for slot in slots:
            stepper.add(slot, list(asked[slot]), 3, SamplingConfig(temperature=0))
        first_lines = ended(stepper)
        for slot in reversed(slots):
            stepper.add(slot, list(asked[slot]), 3, SamplingConfig(temperature=0))
        second_lines = ended(stepper)
        for slot in slots:
            stepper.leave(slot)
    assert first_lines == second_lines == slots


# An engine that is closed takes what vLLM keeps per process with it: the tests with engines of their own come last.


def test_the_public_way_types_the_same(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    expected = [run(typed(engine, vocabulary, question, 3)) for question in QUESTIONS[:2]]
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=8)
    public = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config, scheduler_cls=Scheduler)
    try:
        assert isinstance(public.stepper, RequestStepper)
        for question, (ids, logprobs) in zip(QUESTIONS, expected, strict=False):
            found_ids, found_logprobs = run(typed(public, vocabulary, question, 3))
            assert found_ids == ids
            assert found_logprobs == pytest.approx(logprobs, abs=1e-4)
    finally:
        public.close()


def test_a_number_that_is_none_stops_everybody(vocabulary: Vocabulary) -> None:
    engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), EngineConfig(context_tokens=CONTEXT_TOKENS))
    try:
        engine.llm.apply_model(lambda model: model.model.norm.weight.data.fill_(float("nan")))
        for _ in range(2):
            with pytest.raises(EngineError, match="the weights are broken"):
                run(typed(engine, vocabulary, QUESTIONS[0], 1))
    finally:
        engine.close()
