"""No two sessions of a batch draw the same random numbers, whichever engine or server samples them."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from real_rollouts import opened as opened_servers
from serving import CONTEXT_TOKENS, servers
from test_engine_contract import opened

from repl_rl.config import SamplingConfig, SeededSampling
from repl_rl.engine import Engine, Vocabulary
from repl_rl.engine.server.client import WORKER_EXTENSION, ServerFacts, takes_seeds
from repl_rl.rollout.custom import SamplerEngine

MANY = 32
"""Prompts of 300 tokens: more than vLLM computes in a step, so that some are split."""
HOT = SamplingConfig(temperature=1.5)


def prompt(vocabulary: Vocabulary) -> list[int]:
    ids = vocabulary.encode_prompt(">>> # What is 3 * 17?\n" + ">>> 1\n1\n" * 100)
    return list(ids[:300])


async def session(engine: Engine, ids: list[int], sampling: SamplingConfig, tokens: int = 60) -> tuple[int, ...]:
    """Lines until there are `tokens` tokens."""
    typed = list(ids)
    async with engine.slot(len(ids) + tokens) as slot:
        while (left := len(ids) + tokens - len(typed)) > 0:
            typed += (await slot.sample_line(typed, left, sampling)).ids
    return tuple(typed[len(ids) :])


async def group(engines: Sequence[Engine], ids: list[int], sampling: SamplingConfig) -> list[tuple[int, ...]]:
    """Siblings, spread over the engines, one engine after the other: two of a process don't compute at once."""

    def own(index: int) -> SamplingConfig:
        return sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling

    made: dict[int, tuple[int, ...]] = {}
    for first, engine in enumerate(engines):
        indices = range(first, MANY, len(engines))
        typed = await asyncio.gather(*(session(engine, ids, own(index)) for index in indices))
        made.update(zip(indices, typed, strict=True))
    return [made[index] for index in range(MANY)]


@pytest.mark.more
@pytest.mark.parametrize("backend", ["vllm", "transformers"])
async def test_siblings_of_two_fresh_engines_differ_and_follow_their_seeds(
    backend: str, vocabulary: Vocabulary
) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(closing(opened(backend, vocabulary))) for _ in range(2)]
        ids, batch = prompt(vocabulary), HOT.seeded("0/train/1/0/0")
        first = await group(engines, ids, batch)
        assert len(set(first)) == MANY
        assert len({*first, *await group(engines, ids, HOT.seeded("0/train/1/0/1"))}) == 2 * MANY, "another rank"
        again = await group(engines[::-1], ids, batch)
        assert sum(one == other for one, other in zip(first, again, strict=True)) > MANY // 2, "but for rounding"


@pytest.mark.more
async def test_without_seeds_of_lines_vllm_draws_for_the_whole_batch(vocabulary: Vocabulary) -> None:
    with closing(opened("vllm", vocabulary, line_seeds=False)) as engine:
        ids, batch = prompt(vocabulary), HOT.seeded("0/train/1/0/0")
        assert len({*await group([engine], ids, batch), *await group([engine], ids, batch)}) == 2 * MANY


@pytest.mark.parametrize(
    ("device", "extension", "takes"),
    [("cuda", None, True), (None, None, True), ("cpu", WORKER_EXTENSION, True), ("cpu", None, False)],
)
def test_a_cpu_server_takes_seeds_with_our_worker_extension_alone(
    device: str | None, extension: str | None, takes: bool
) -> None:
    facts = ServerFacts("0.32.0", device=device, worker_extension=extension)
    assert takes_seeds(facts) is takes


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.covers("two fresh vLLM servers", "siblings differ, and follow their seeds")
async def test_siblings_of_two_fresh_servers_differ_and_follow_their_seeds(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    with servers(tmp_path, 2, "--max-num-batched-tokens=600") as running:
        ids, batch = prompt(vocabulary), HOT.seeded("0/train/1/0/0")
        with opened_servers(running, vocabulary) as both:
            first = await group([both], ids, batch)
            assert len(set(first)) == MANY
            assert len(set(await group([both], ids, HOT))) == MANY, "a sampling without a seed"
        with opened_servers(running[:1], vocabulary) as one, opened_servers(running[1:], vocabulary) as other:
            again = await group([one, other], ids, batch)
            assert sum(a == b for a, b in zip(first, again, strict=True)) > MANY // 2
            assert len(set(await group([one, other], ids, HOT))) == MANY


async def test_slots_of_a_loop_of_ones_own_differ(vocabulary: Vocabulary) -> None:
    with closing(opened("transformers", vocabulary)) as engine:
        sampling = HOT.seeded("0/train/1/0/0")
        seen = SamplerEngine(engine, vocabulary, sampling, CONTEXT_TOKENS)
        ids = list(vocabulary.encode_prompt(">>> # What is 3 * 17?\n>>>"))
        assert len(set(await asyncio.gather(*(session(seen, ids, sampling) for _ in range(6))))) == 6
