"""Lines in vLLM's core: where they stop, what becomes of their blocks. The engine has a KV cache of 48 blocks."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine.conftest import BLOCKS, CONTEXT_TOKENS
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm.v1.engine import FinishReason

from repl_rl.config import SamplingConfig
from repl_rl.engine import SampledLine, Vocabulary
from repl_rl.engine.vllm.engine import LineSlot, LineStepper, VLLMEngine
from repl_rl.engine.vllm.scheduler import LineScheduler, StopIds, stop_ids
from repl_rl.errors import EngineError
from repl_rl.models.nano import NANO_PATH

BLOCK_TOKENS = 32
GREEDY = SamplingConfig(temperature=0)
QUESTIONS = [f"What is {number} * 17?" for number in range(11, 19)]
Typed = tuple[list[int], list[float]]
"""The ids of a whole sequence, and a log-probability for each, 0.0 for what was not sampled."""


@pytest.fixture
def engine(vllm_engine: VLLMEngine) -> Iterator[VLLMEngine]:
    """After the test, nothing may hold a block; vLLM keeps one for itself."""
    line_ends = scheduler_of(vllm_engine).line_ends
    yield vllm_engine
    scheduler_of(vllm_engine).line_ends = line_ends
    assert free_blocks(vllm_engine) == BLOCKS - 1
    assert not scheduler_of(vllm_engine).requests


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()


def scheduler_of(engine: VLLMEngine) -> LineScheduler:
    return engine.stepper.scheduler


def free_blocks(engine: VLLMEngine) -> int:
    with engine.paused():
        return int(scheduler_of(engine).kv_cache_manager.block_pool.get_num_free_blocks())


def prompt(vocabulary: Vocabulary, question: str) -> list[int]:
    return list(vocabulary.encode_prompt(f">>> # {question}\n>>>"))


async def typed(engine: VLLMEngine, vocabulary: Vocabulary, question: str, lines: int) -> Typed:
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
    assert off
    assert max(off) < 1e-3


def test_the_engine_runs_on_our_scheduler_with_the_arguments_of_the_config(engine: VLLMEngine) -> None:
    assert isinstance(scheduler_of(engine), LineScheduler)
    assert engine.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks_override == BLOCKS
    assert engine.admission.rooms[0].capacity == BLOCKS * BLOCK_TOKENS


def test_what_ends_a_line_or_a_text_is_not_sent_to_vllms_workers(vocabulary: Vocabulary) -> None:
    ends = stop_ids(vocabulary)
    assert ends == vocabulary.newline_ids | vocabulary.eos_ids
    sent: StopIds = pickle.loads(pickle.dumps(ends))
    assert (type(sent), len(sent)) == (StopIds, 0)


async def test_lines_go_on_from_their_blocks_exactly_and_their_slot_gives_them_back(
    engine: VLLMEngine, vocabulary: Vocabulary, reference: Any
) -> None:
    before = free_blocks(engine)
    async with engine.slot(CONTEXT_TOKENS) as slot:
        await slot.sample_line(prompt(vocabulary, QUESTIONS[0]), 12, GREEDY)
        assert free_blocks(engine) < before
    assert free_blocks(engine) == before
    assert_exact(reference, *await typed(engine, vocabulary, QUESTIONS[0], 6))


async def test_the_engine_counts_what_it_computes_anew(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    with engine.paused():
        engine.llm.reset_prefix_cache()
    first = prompt(vocabulary, QUESTIONS[3])
    output = list(vocabulary.encode_output("1\n>>>"))
    asked, computed = engine.prompt_tokens
    async with engine.slot(CONTEXT_TOKENS) as slot:
        line = await slot.sample_line(first, 12, GREEDY)
        second = [*first, *line.ids, *output]
        await slot.sample_line(second, 12, GREEDY)
    anew = len(first) + 1 + len(output)  # the line's last token was not given yet
    assert engine.prompt_tokens == (asked + len(first) + len(second), computed + anew)


def test_where_waiting_lines_hold_the_blocks_that_the_first_lacks_the_last_ones_give_way(
    engine: VLLMEngine, vocabulary: Vocabulary, reference: Any
) -> None:
    """Five slots hold 45 of 47 blocks as their first lines end, all in one step, and their second lines begin at once:
    each lacks three blocks."""
    slots = {LineSlot(str(number)): [5 + number] * 9 * BLOCK_TOKENS for number in range(5)}
    logprobs = {slot: [0.0] * len(ids) for slot, ids in slots.items()}
    with engine.paused():
        stepper = LineStepper(engine, vocabulary)
        stepper._ends = StopIds(range(engine.llm.model_config.get_vocab_size()))
        stepper.scheduler.line_ends = stepper._ends
        for output in ([], [7] * 3 * BLOCK_TOKENS):
            for slot, ids in slots.items():
                ids += output
                logprobs[slot] += [0.0] * len(output)
                stepper.add(slot, list(ids), 3, GREEDY)
            waiting, steps = set(slots), 0
            while waiting:
                assert (steps := steps + 1) < 100, "nothing runs any more"
                for slot, line in stepper.step():
                    assert isinstance(line, SampledLine)
                    slots[slot] += line.ids
                    logprobs[slot] += line.logprobs
                    waiting.remove(slot)
        for slot in slots:
            stepper.leave(slot)
    for slot, ids in slots.items():
        assert_exact(reference, ids, logprobs[slot])


def test_other_requests_are_vllms_own_business(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    ids = prompt(vocabulary, QUESTIONS[5])
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)
    with engine.paused():
        output = engine.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 30
    assert any(token in vocabulary.newline_ids for token in output.token_ids[:-1])


async def test_a_line_that_vllm_gives_up_on_is_asked_for_again(
    engine: VLLMEngine, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, failures = engine.llm.llm_engine.engine_core, [0]
    get_output = client.get_output

    def failing() -> Any:
        outputs = get_output()
        for output in outputs.outputs:
            if output.finish_reason is not None and failures[0]:
                failures[0] -= 1
                output.finish_reason = FinishReason.ERROR
        return outputs

    expected = await typed(engine, vocabulary, QUESTIONS[6], 1)
    monkeypatch.setattr(client, "get_output", failing)
    failures[0] = 2
    assert (await typed(engine, vocabulary, QUESTIONS[6], 1))[0] == expected[0]
    assert failures == [0]
    failures[0] = 3
    with pytest.raises(EngineError, match="gave up on a line 3 times, the last time with 'error'"):
        await typed(engine, vocabulary, QUESTIONS[6], 1)


def test_who_came_first_goes_on_first(
    engine: VLLMEngine, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slots and one that may run. Their second lines are asked for in reverse."""
    slots = [LineSlot("first"), LineSlot("second"), LineSlot("third")]
    asked = {slot: prompt(vocabulary, question) for slot, question in zip(slots, QUESTIONS, strict=False)}

    def ended(stepper: LineStepper) -> list[LineSlot]:
        order: list[LineSlot] = []
        while len(order) < len(slots):
            for slot, line in stepper.step():
                assert isinstance(line, SampledLine)
                asked[slot] += line.ids
                order.append(slot)
        return order

    with engine.paused():
        monkeypatch.setattr(scheduler_of(engine), "max_num_active_reqs", 1)
        stepper = LineStepper(engine, vocabulary)
        for slot in slots:
            stepper.add(slot, list(asked[slot]), 3, GREEDY)
        first_lines = ended(stepper)
        for slot in reversed(slots):
            stepper.add(slot, list(asked[slot]), 3, GREEDY)
        second_lines = ended(stepper)
        for slot in slots:
            stepper.leave(slot)
    assert first_lines == second_lines == slots


def test_a_log_probability_that_is_not_a_number_is_an_error(engine: VLLMEngine, vocabulary: Vocabulary) -> None:
    """What becomes of an engine then: `test_transformers_engine.py`."""
    with engine.paused():
        [kept] = engine.llm.apply_model(lambda model: model.model.norm.weight.data.clone())
        engine.llm.apply_model(lambda model: model.model.norm.weight.data.fill_(float("nan")))
        stepper, slot = LineStepper(engine, vocabulary), LineSlot("slot")
        stepper.add(slot, prompt(vocabulary, QUESTIONS[0]), 1, GREEDY)
        with pytest.raises(EngineError, match="the weights are broken"):
            list(stepper.step())
        engine.llm.apply_model(lambda model: model.model.norm.weight.data.copy_(kept))
        engine.llm.reset_prefix_cache()
        stepper.leave(slot)
