"""What the transformers engine does beyond the common contract: seeds, new and broken weights, places, memory."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml
from random_checkpoint import make_random_checkpoint

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.engine.transformers.engine import RowBatch, RowSequence, TransformersEngine, fed_together
from repl_rl.engine.transformers.model import RowModel
from repl_rl.errors import ConfigError, EngineError

CONTEXT_TOKENS = 512
BYTES_PER_TOKEN = 2 * 2 * (2 * 32) * 4
"""Layers, keys and values, heads and their size, float32."""
FED_TOGETHER = yaml.safe_load(Path(__file__).with_name("fed_together.yaml").read_text(encoding="utf-8"))
GREEDY = SamplingConfig(temperature=0)
EVEN = SamplingConfig(temperature=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Types lines of some dozen tokens."""
    return make_random_checkpoint(tmp_path_factory.mktemp("checkpoint"), end_bias=-7.0)


@pytest.fixture(scope="module")
def vocabulary(checkpoint: Path) -> Vocabulary:
    return load_vocabulary(str(checkpoint))


Open = Callable[..., TransformersEngine]


@pytest.fixture
def opened(checkpoint: Path, vocabulary: Vocabulary) -> Iterator[Open]:
    """Opens engines of a seed and a config, which are closed after the test."""
    with ExitStack() as stack:

        def opened(seed: int = 0, **settings: Any) -> TransformersEngine:
            config = EngineConfig(**{"context_tokens": CONTEXT_TOKENS, **settings})
            engine = TransformersEngine(str(checkpoint), vocabulary, ModelConfig(), config, seed)
            return stack.enter_context(closing(engine))

        yield opened


def prompt(vocabulary: Vocabulary, number: int) -> list[int]:
    return list(vocabulary.encode_prompt(f">>> # {number}\n>>>"))


async def session(
    engine: TransformersEngine, ids: list[int], turns: int = 3, sampling: SamplingConfig = EVEN, max_tokens: int = 40
) -> list[SampledLine]:
    """Lines of one slot, an output of four tokens after each; `ids` grows by all of it."""
    lines = []
    async with engine.slot(CONTEXT_TOKENS) as slot:
        for _ in range(turns):
            lines.append(await slot.sample_line(ids, max_tokens, sampling))
            ids += [*lines[-1].ids, 1, 2, 3, 4]
    return lines


async def sessions(engine: TransformersEngine, vocabulary: Vocabulary, count: int, **how: Any) -> list[Any]:
    return await asyncio.gather(*(session(engine, prompt(vocabulary, n), **how) for n in range(count)))


@dataclass
class Passes:
    """What forward passes were given: the tokens of each row, and how many rows there were at most."""

    fed: list[int] = field(default_factory=list)
    widest: int = 0
    rows: int = 0


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    seen, next_logits = Passes(), RowModel.next_logits

    def watched(model: RowModel, first_row: int, pending: Any, lengths: Any) -> torch.Tensor:
        seen.fed.extend(map(len, pending))
        seen.widest = max(seen.widest, first_row + len(pending))
        seen.rows = model.rows.row_count
        return next_logits(model, first_row, pending, lengths)

    monkeypatch.setattr(RowModel, "next_logits", watched)
    return seen


async def test_a_seed_gives_a_slot_the_same_lines_whatever_runs_beside_it(opened: Open, vocabulary: Vocabulary) -> None:
    many, few, others = [
        [[line.ids for line in lines] for lines in await sessions(opened(seed), vocabulary, count)]
        for seed, count in ((1, 9), (1, 2), (2, 2))
    ]
    assert many[:2] == few
    assert few != others
    assert few[0] != few[1]


def test_a_prompt_that_sequences_share_is_read_once(checkpoint: Path, vocabulary: Vocabulary, passes: Passes) -> None:
    def grown(prompts: list[list[int]], steps: int) -> list[list[int]]:
        """The ids of greedy sequences after so many steps side by side."""
        batch = RowBatch(RowModel(str(checkpoint), "float32"), vocabulary, len(prompts), len(prompts))
        passes.fed.clear()
        sequences = [RowSequence(Random(0), 100) for _ in prompts]
        for sequence, ids in zip(sequences, prompts, strict=True):
            batch.add(sequence, list(ids), 50, GREEDY)
        for _ in range(steps):
            assert list(batch.step()) == []
        return [sequence.ids for sequence in sequences]

    shared = list(vocabulary.encode_prompt(">>> # one and the same problem for the whole group\n>>>"))
    other = prompt(vocabulary, 1)
    prompts = [shared, shared, [*shared, 5, 6, 7], other, shared]
    alone = [grown([ids], steps=3)[0] for ids in prompts]
    together = grown(prompts, steps=4)
    assert passes.fed == [len(other), len(shared), *[1, 1, 1, 1, 3], *[1] * 10]
    assert [ids[: len(own)] for ids, own in zip(together, alone, strict=True)] == alone


async def test_every_token_is_fed_once(opened: Open, vocabulary: Vocabulary, passes: Passes) -> None:
    engine, ids = opened(), prompt(vocabulary, 1)
    passes.fed.clear()  # what it was tried with
    await session(engine, ids, turns=5)
    assert sum(passes.fed) == len(ids) - 1 - 4  # neither the last sampled token nor the output after it
    assert sorted(passes.fed)[:-5] == [1] * (len(passes.fed) - 5)


async def test_lines_run_in_as_many_places_as_there_are_and_slots_give_their_rows_back(
    opened: Open, vocabulary: Vocabulary, passes: Passes
) -> None:
    engine = opened(places=3)
    assert engine.admission.rooms[0].capacity == 2**30 // BYTES_PER_TOKEN
    assert len(await sessions(engine, vocabulary, 10)) == 10
    assert passes.widest == 3
    rows = passes.rows
    assert len(await sessions(engine, vocabulary, 10)) == 10
    assert (passes.rows, engine.admission.taken) == (rows, 0)
    engine.admission.rooms[0].capacity = 2 * CONTEXT_TOKENS
    assert len(await sessions(engine, vocabulary, 6, turns=1)) == 6


async def test_a_sub_call_borrows_the_row_of_the_trajectory_that_waits_for_it(
    opened: Open, vocabulary: Vocabulary, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one row only; what the trajectory types afterwards is what it would have typed anyway."""
    monkeypatch.setattr("repl_rl.engine.transformers.engine._GIB", CONTEXT_TOKENS * BYTES_PER_TOKEN)
    engine = opened()

    async def sub_call(length: int) -> None:
        async with engine.slot(100, True) as slot:
            line = await slot.sample_line(prompt(vocabulary, 2), length, GREEDY)
            assert 0 < len(line.ids) <= length

    async def typed(asks: bool) -> list[int]:
        ids = prompt(vocabulary, 1)
        async with engine.slot(100) as root:
            for _ in range(3):
                ids += (await root.sample_line(ids, 6, GREEDY)).ids
                if asks:
                    await asyncio.gather(*(sub_call(length) for length in (3, 5)))
        return ids

    assert await typed(asks=True) == await typed(asks=False)
    assert (passes.rows, engine.admission.taken) == (1, 0)


def test_a_cache_or_a_model_too_small_for_the_context_is_refused(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"context_tokens 1025 is more than the 1024 positions.*take vLLM"):
        opened(context_tokens=1025)
    monkeypatch.setattr("repl_rl.engine.transformers.engine._GIB", 2**19)
    with pytest.raises(ConfigError, match=r"kv_cache_gib 1 leaves room for 512 tokens of 1024 bytes.* is 600"):
        opened(context_tokens=600)


async def test_broken_weights_are_heard_by_all_who_wait_and_all_who_come(opened: Open, vocabulary: Vocabulary) -> None:
    engine = opened(places=2)
    with pytest.raises(EngineError, match="there is none of that name"):
        engine.load_weights([("other", torch.zeros(1))])
    assert (await session(engine, prompt(vocabulary, 1), turns=1))[0].finish in set(Finish)
    engine.load_weights([("model.norm.weight", torch.full((128,), torch.nan))])
    for _ in range(2):
        work = (session(engine, prompt(vocabulary, n)) for n in range(5))
        for failure in await asyncio.gather(*work, return_exceptions=True):
            assert isinstance(failure, EngineError)
            assert "the weights are broken" in str(failure)
    with pytest.raises(EngineError, match="the weights are broken"):
        engine.load_weights([])


@pytest.mark.parametrize(("pending", "spans"), FED_TOGETHER)
def test_rows_are_fed_together_where_little_is_padding(pending: list[int], spans: list[list[int]]) -> None:
    assert list(map(list, fed_together(pending, most_tokens=120))) == spans
