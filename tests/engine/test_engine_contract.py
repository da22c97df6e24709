"""What every engine promises: the same tests on each of them. Servers have theirs in `test_server_engine.py`."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine import Engine, Finish, SampledLine, Vocabulary, make_engine
from repl_rl.errors import ConfigError, EngineError
from repl_rl.models.nano import NANO_PATH

CONTEXT_TOKENS = 512
GREEDY = SamplingConfig(temperature=0)
EVEN = SamplingConfig(temperature=2)
OWN_VLLM = pytest.param("vllm", marks=pytest.mark.more)
"""One that the test starts itself."""


@pytest.fixture(scope="module")
def vocabulary(ending_vocabulary: Vocabulary) -> Vocabulary:
    return ending_vocabulary


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def engine(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Iterator[Engine]:
    if request.param == "vllm":
        yield request.getfixturevalue("vllm_engine")
        return
    engine = opened(request.param, vocabulary)
    yield engine
    engine.close()


def opened(backend: Any, vocabulary: Vocabulary, **settings: Any) -> Engine:
    config = EngineConfig(backend=backend, context_tokens=CONTEXT_TOKENS, **settings)
    return make_engine(str(NANO_PATH), vocabulary, ModelConfig(), config, seed=11)


@pytest.fixture(scope="module", params=[OWN_VLLM, "transformers"])
def deterministic(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Iterator[Engine]:
    engine = opened(request.param, vocabulary, deterministic=True)
    yield engine
    engine.close()


def prompt(vocabulary: Vocabulary, number: int) -> list[int]:
    """Prompts of different lengths, all of which begin in the same way."""
    return list(vocabulary.encode_prompt(f">>> # What is {number} * 17?\n" + ">>> 1\n1\n" * (number % 5) + ">>>"))


async def line(engine: Engine, ids: list[int], sampling: SamplingConfig = GREEDY, max_tokens: int = 40) -> SampledLine:
    """One line of a slot of its own."""
    async with engine.slot(CONTEXT_TOKENS) as slot:
        return await slot.sample_line(ids, max_tokens, sampling)


def assert_same(found: SampledLine, expected: SampledLine) -> None:
    assert (found.ids, found.finish) == (expected.ids, expected.finish)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_a_line_ends_with_the_first_token_that_holds_a_newline_or_ends_the_text_or_at_its_length(
    engine: Engine, vocabulary: Vocabulary
) -> None:
    lines = await asyncio.gather(*(line(engine, prompt(vocabulary, n), EVEN, max_tokens=12) for n in range(256)))
    ends = vocabulary.newline_ids | vocabulary.eos_ids
    for sampled in lines:
        assert not ends.intersection(sampled.ids[:-1])
        last = sampled.ids[-1]
        in_the_end = Finish.NEWLINE if last in vocabulary.newline_ids else Finish.EOS
        assert sampled.finish is (in_the_end if last in ends else Finish.LENGTH)
        assert len(sampled.ids) == 12 or sampled.finish is not Finish.LENGTH
    found = {sampled.finish for sampled in lines}
    assert found >= {Finish.NEWLINE, Finish.LENGTH}
    assert Finish.EOS in found or not ends.issuperset(vocabulary.encode_output(",")), "see `ending_vocabulary`"


async def test_a_line_that_ends_with_its_last_allowed_token_has_ended(engine: Engine, vocabulary: Vocabulary) -> None:
    prompts = [prompt(vocabulary, number) for number in range(20)]
    lines = [(ids, await line(engine, ids)) for ids in prompts]
    ids, whole = next((ids, found) for ids, found in lines if found.finish is Finish.NEWLINE and len(found.ids) > 1)
    length = len(whole.ids)
    assert_same(await line(engine, ids, max_tokens=length), whole)
    cut = await line(engine, ids, max_tokens=length - 1)
    assert (cut.ids, cut.finish) == (whole.ids[:-1], Finish.LENGTH)


async def test_many_slots_side_by_side_sample_what_each_samples_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    async def session(number: int) -> list[SampledLine]:
        ids = prompt(vocabulary, number)
        lines = []
        async with engine.slot(CONTEXT_TOKENS) as slot:
            for turn in range(4):
                lines.append(await slot.sample_line(ids, 40, GREEDY))
                ids += [*lines[-1].ids, *vocabulary.encode_output(f"{number + turn}\n>>>")]
        return lines

    together = await asyncio.gather(*map(session, range(70)))
    for number, lines in enumerate(together[:10]):
        for found, expected in zip(lines, await session(number), strict=True):
            assert_same(found, expected)


async def test_min_p_and_the_repetition_penalty_are_those_of_transformers(
    engine: Engine, vocabulary: Vocabulary
) -> None:
    """Of a float32 forward pass: the penalty goes by all ids before a token, prompt included, then the temperature."""
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32)
    sampling = SamplingConfig(temperature=1.7, min_p=0.02, repetition_penalty=1.4)
    prompts = [prompt(vocabulary, number) for number in range(24)]
    for ids, found in zip(
        prompts, await asyncio.gather(*(line(engine, ids, sampling) for ids in prompts)), strict=True
    ):
        seen = torch.tensor([[*ids, *found.ids]])
        with torch.no_grad():
            logits = model(seen).logits[0]
        for index, (token, logprob) in enumerate(zip(found.ids, found.logprobs, strict=True), len(ids)):
            processed = RepetitionPenaltyLogitsProcessor(1.4)(seen[:, :index], logits[index - 1 : index]) / 1.7
            kept = MinPLogitsWarper(0.02)(seen, processed).log_softmax(-1)
            assert logprob == pytest.approx(kept[0, token].item(), abs=1e-3)


async def test_a_line_depends_on_its_ids_and_not_on_what_the_slot_was_asked_before(
    engine: Engine, vocabulary: Vocabulary
) -> None:
    first, other = prompt(vocabulary, 4), prompt(vocabulary, 9)
    async with engine.slot(CONTEXT_TOKENS) as slot:
        for ids in (first, other, first[:-6], first):
            assert_same(await slot.sample_line(ids, 40, GREEDY), await line(engine, ids))


async def test_a_cancelled_line_leaves_the_batch_and_its_slot_goes_on(engine: Engine, vocabulary: Vocabulary) -> None:
    ids = prompt(vocabulary, 1)

    async def cancelled_then_asked(number: int) -> SampledLine:
        async with engine.slot(CONTEXT_TOKENS) as slot:
            for wait_s in (0.0, 0.001 * number):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(slot.sample_line(prompt(vocabulary, number), 400, EVEN), wait_s)
            return await slot.sample_line(ids, 40, GREEDY)

    expected = await line(engine, ids)
    for found in await asyncio.gather(*map(cancelled_then_asked, range(70))):
        assert_same(found, expected)


async def test_what_is_too_long_for_the_context_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"a trajectory of 513 tokens does not fit into engine.context_tokens 512"):
        async with engine.slot(CONTEXT_TOKENS + 1):
            pass
    for length, max_tokens in ((CONTEXT_TOKENS, 1), (CONTEXT_TOKENS - 4, 5), (1, 0)):
        with pytest.raises(ConfigError, match=rf"at most {max_tokens} tokens after {length} does not fit.*context_tok"):
            await line(engine, [5] * length, max_tokens=max_tokens)
    assert len((await line(engine, [5] * (CONTEXT_TOKENS - 4), max_tokens=4)).ids) <= 4


@pytest.mark.parametrize("backend", [OWN_VLLM, "transformers"])
async def test_weights_of_another_model_are_an_error_that_names_one_and_leave_the_engine_as_it_was(
    backend: str, vocabulary: Vocabulary
) -> None:
    engine: Any = opened(backend, vocabulary)
    try:
        before = await line(engine, prompt(vocabulary, 1))
        weights = [("model.other.weight", torch.zeros(3))]
        if backend == "vllm":  # which has the layer in one with two others, and waits for them
            weights.insert(0, ("model.layers.0.self_attn.q_proj.weight", torch.zeros(128, 128)))
        with pytest.raises(EngineError, match=r"can't load .*other"):
            engine.load_weights(weights)
        assert_same(await line(engine, prompt(vocabulary, 1)), before)
    finally:
        engine.close()


@pytest.mark.parametrize("backend", [OWN_VLLM, "transformers"])
async def test_closing_is_heard_by_who_waits_and_by_who_comes(backend: Any, vocabulary: Vocabulary) -> None:
    engine = opened(backend, vocabulary)

    async def one_line_after_the_other() -> None:
        while True:
            await line(engine, prompt(vocabulary, 1), EVEN, max_tokens=450)

    typing = [asyncio.create_task(one_line_after_the_other()) for _ in range(8)]
    await asyncio.sleep(0.005)
    await asyncio.to_thread(engine.close)
    for each in typing:
        with pytest.raises(EngineError, match="closed"):
            await each
    with pytest.raises(EngineError, match="closed"):
        await line(engine, prompt(vocabulary, 1))
    engine.close()


async def test_a_deterministic_engine_draws_a_line_by_its_trajectorys_seed_and_place_alone(
    deterministic: Engine, vocabulary: Vocabulary
) -> None:
    async def two_lines(sampling: SeededSampling) -> list[SampledLine]:
        ids, lines = prompt(vocabulary, 3), []
        async with deterministic.slot(CONTEXT_TOKENS) as slot:
            for _ in range(2):
                lines.append(await slot.sample_line(ids, 40, sampling))
                ids += [*lines[-1].ids, 1, 2, 3]
        return lines

    batch = EVEN.seeded("7/train/3")
    first, other = await two_lines(batch.of_trajectory(0)), await two_lines(batch.of_trajectory(1))
    again = await two_lines(EVEN.seeded("7/train/3").of_trajectory(0))
    assert again == first, "ids and log-probabilities, to the bit"
    assert await line(deterministic, prompt(vocabulary, 3), batch.of_trajectory(0)) == first[0]
    ids = [*prompt(vocabulary, 3), *first[0].ids, 1, 2, 3]
    in_a_new_slot = await line(deterministic, ids, batch.of_trajectory(0))
    assert in_a_new_slot == first[1], "what the slot has computed for its first line makes no difference"
    assert [line.ids for line in first] != [line.ids for line in other]
    assert first[0].ids != first[1].ids, "each line has numbers of its own"


async def test_a_seed_draws_the_same_line_in_a_batch_up_to_rounding(
    deterministic: Engine, vocabulary: Vocabulary
) -> None:
    def seeded(number: int) -> Coroutine[Any, Any, SampledLine]:
        return line(deterministic, prompt(vocabulary, number), EVEN.seeded("batch").of_trajectory(number))

    for number, together in enumerate(await asyncio.gather(*map(seeded, range(8)))):
        assert_same(together, await seeded(number))
