"""The server engine against a real `vllm serve` on the CPU. Servers that are ill: `test_server_faults.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import RecordingEngine
from server_rollouts import assert_exact, metric, nano, opened, roll_out, sample, until
from serving import CONTEXT_TOKENS, RunningServer, servers

# What every engine promises, collected here for this one.
from test_engine_contract import (  # noqa: F401
    test_a_cancelled_line_leaves_the_batch_and_its_slot_goes_on,
    test_a_line_depends_on_its_ids_and_not_on_what_the_slot_was_asked_before,
    test_a_line_that_ends_with_its_last_allowed_token_has_ended,
    test_many_slots_side_by_side_sample_what_each_samples_alone,
    test_what_is_too_long_for_the_context_is_refused_and_the_engine_goes_on,
)

from repl_rl import ReplGRPOConfig, ReplGRPOTrainer
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks

PROMPT = ">>> # What is 17 * 23?\n>>>"


pytestmark = pytest.mark.slow  # a server takes most of a minute to start


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(NANO_PATH))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with servers(tmp_path_factory.mktemp("server"), 1) as (running,):
        yield running


@pytest.fixture
def engine(server: RunningServer, vocabulary: Vocabulary) -> Iterator[VLLMServerEngine]:
    with opened([server], vocabulary) as engine:
        yield engine


def test_64_rollouts_over_http_are_exact_to_the_token(engine: VLLMServerEngine, vocabulary: Vocabulary) -> None:
    recorded = RecordingEngine(engine)
    assert_exact(roll_out(recorded, vocabulary), recorded, vocabulary)


def test_a_line_ends_with_the_first_token_that_ends_it_or_at_its_length(
    engine: VLLMServerEngine, vocabulary: Vocabulary
) -> None:
    ids = vocabulary.encode_prompt(PROMPT)

    async def many() -> list[SampledLine]:
        return await asyncio.gather(*(sample(engine, ids, 12, 2.0) for _ in range(128)))

    lines = asyncio.run(many())
    ends = dict.fromkeys(vocabulary.newline_ids, Finish.NEWLINE) | dict.fromkeys(vocabulary.eos_ids, Finish.EOS)
    for line in lines:
        assert not ends.keys() & set(line.ids[:-1])
        assert line.finish is ends.get(line.ids[-1], Finish.LENGTH)
        assert len(line.ids) == 12 or line.finish is not Finish.LENGTH
    assert {line.finish for line in lines} >= {Finish.NEWLINE, Finish.LENGTH}


def test_a_request_names_the_servers_own_table_of_ends(engine: VLLMServerEngine, vocabulary: Vocabulary) -> None:
    """And not a list of ids, which vLLM would search for each token."""
    assert engine._facts.stop_digest == vocabulary.digest
    assert engine._end_of_line == {"extra_args": {"repl_rl_line": ["\n", vocabulary.digest]}}


def test_a_list_of_ids_gives_the_same_line(
    engine: VLLMServerEngine, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server without our scheduler is asked."""
    ids = vocabulary.encode_prompt(PROMPT)
    by_table = asyncio.run(sample(engine, ids, 48, 0.0))
    listed = {"stop_token_ids": sorted(vocabulary.stop_ids | vocabulary.eos_ids)}
    monkeypatch.setattr(engine, "_end_of_line", listed)
    by_list = asyncio.run(sample(engine, ids, 48, 0.0))
    assert (by_table.ids, by_table.finish) == (by_list.ids, by_list.finish)


def test_cancelling_a_line_aborts_it_on_the_server(
    engine: VLLMServerEngine, server: RunningServer, vocabulary: Vocabulary
) -> None:
    running = "vllm:num_requests_running"
    engine._end_of_line = {}  # a line that goes on to the end of the context

    async def give_up() -> None:
        sampling = [asyncio.create_task(sample(engine, [5], CONTEXT_TOKENS - 1, 2.0)) for _ in range(32)]
        await asyncio.to_thread(until, lambda: metric(server, running) > 0)
        for task in sampling:
            task.cancel()
        await asyncio.gather(*sampling, return_exceptions=True)

    finished = metric(server, "vllm:request_success_total")
    asyncio.run(give_up())
    until(lambda: metric(server, running) == 0)
    assert metric(server, "vllm:request_success_total") - finished < 32


def test_new_weights_are_what_the_server_samples_with(engine: VLLMServerEngine, vocabulary: Vocabulary) -> None:
    model = nano()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    ids = vocabulary.encode_prompt(PROMPT)
    engine.load_weights((name, parameter.data) for name, parameter in model.named_parameters())
    assert engine.version == 1
    after = asyncio.run(sample(engine, ids, 48, 1.0))
    assert forward_difference(model, ids, after) < 1e-4
    assert forward_difference(nano(), ids, after) > 1e-2


def test_training_samples_with_the_weights_that_it_trains(
    server: RunningServer, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    args = ReplGRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        num_generations=4,
        max_steps=3,
        learning_rate=1e-3,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        kernel={"size": 8},
        engine={"context_tokens": CONTEXT_TOKENS, "servers": [server.url]},
        budget={"lines": 4, "tokens": 96, "line_tokens": 32},
    )
    trainer = ReplGRPOTrainer(str(NANO_PATH), args, make_tasks(["product", "gcd"], 16, seed=1, split="train"))
    try:
        trainer.train()
        assert trainer.engine.version == 3
        steps = [row for row in trainer.state.log_history if "drift/logprob_max" in row]
        assert len(steps) == 3
        assert all(row["drift/logprob_max"] < 1e-3 for row in steps)
        trainer.sync_weights()
        ids = vocabulary.encode_prompt(PROMPT)
        line = asyncio.run(sample(trainer.engine, ids, 48, 1.0))
        assert forward_difference(trainer.model, ids, line) < 1e-3
        assert forward_difference(nano(), ids, line) > 5e-3
    finally:
        trainer.close()


def test_the_next_engine_finds_the_checkpoint_again(engine: VLLMServerEngine, vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode_prompt(PROMPT)
    line = asyncio.run(sample(engine, ids, 48, 1.0))
    assert engine.version == 0
    assert forward_difference(nano(), ids, line) < 1e-4


def forward_difference(model: Any, ids: Sequence[int], line: SampledLine) -> float:
    """|sampler - forward pass| over a line at temperature 1, at most."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids, *line.ids]])).logits[0]  # (P + T, V)
    logps = torch.log_softmax(logits.float(), dim=-1)
    pairs = zip(line.ids, line.logprobs, strict=True)
    return max(abs(logps[len(ids) + n - 1, token].item() - value) for n, (token, value) in enumerate(pairs))
