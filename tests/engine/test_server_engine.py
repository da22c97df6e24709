"""The server engine against a real `vllm serve` on the CPU. Servers that are ill: `test_server_faults.py`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from exactness import RecordingEngine, assert_exact
from real_rollouts import TEMPERATURE, assert_logprobs, line_difference, metric, opened, roll_out, sample
from serving import CONTEXT_TOKENS, RunningServer, servers
from small import small_trainer

# What every engine promises, collected here for this one.
from test_engine_contract import (  # noqa: F401
    test_a_cancelled_line_leaves_the_batch_and_its_slot_goes_on,
    test_a_line_depends_on_its_ids_and_not_on_what_the_slot_was_asked_before,
    test_a_line_ends_with_the_first_token_that_holds_a_newline_or_ends_the_text_or_at_its_length,
    test_a_line_that_ends_with_its_last_allowed_token_has_ended,
    test_many_slots_side_by_side_sample_what_each_samples_alone,
    test_what_is_too_long_for_the_context_is_refused_and_the_engine_goes_on,
)
from transformers import AutoModelForCausalLM
from waiting import until_async as until

from repl_rl.engine import Vocabulary
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.models.nano import NANO_PATH

PROMPT = ">>> # What is 17 * 23?\n>>>"
LINE_END = "repl_rl.engine.server.engine.line_end"
pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with servers(tmp_path_factory.mktemp("server"), 1) as (running,):
        yield running


@pytest.fixture
def engine(server: RunningServer, vocabulary: Vocabulary) -> Iterator[VLLMServerEngine]:
    with opened([server], vocabulary) as engine:
        yield engine


def nano() -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()
    return model


def test_64_rollouts_over_http_are_exact_to_the_token(engine: VLLMServerEngine, vocabulary: Vocabulary) -> None:
    recorded = RecordingEngine(engine)
    [trajectories] = roll_out(recorded, vocabulary)
    assert_exact(trajectories, recorded, vocabulary)
    assert_logprobs(trajectories, NANO_PATH, TEMPERATURE)


async def test_a_list_of_ids_gives_the_same_line_as_the_servers_own_table_of_ends(
    engine: VLLMServerEngine, server: RunningServer, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without our scheduler is asked by a list."""
    ids = vocabulary.encode_prompt(PROMPT)
    by_table = await sample(engine, ids, 48, 0.0)
    listed = {"stop_token_ids": sorted(vocabulary.stop_ids | vocabulary.eos_ids)}
    monkeypatch.setattr(LINE_END, lambda facts, vocabulary: listed)
    with opened([server], vocabulary) as other:
        by_list = await sample(other, ids, 48, 0.0)
    assert (by_table.ids, by_table.finish) == (by_list.ids, by_list.finish)


async def test_cancelling_a_line_aborts_it_on_the_server(
    server: RunningServer, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = "vllm:num_requests_running"
    monkeypatch.setattr(LINE_END, lambda facts, vocabulary: {})  # a line that goes on to the end of the context
    with opened([server], vocabulary) as engine:
        finished = metric(server, "vllm:request_success_total")
        lines = [asyncio.create_task(sample(engine, [5], CONTEXT_TOKENS - 1, 2.0)) for _ in range(32)]
        await until(lambda: metric(server, running) > 0)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        await until(lambda: metric(server, running) == 0)
        assert metric(server, "vllm:request_success_total") - finished < 32


async def test_new_weights_are_what_the_server_samples_with_and_the_next_engine_finds_the_checkpoint(
    server: RunningServer, vocabulary: Vocabulary
) -> None:
    model, ids = nano(), vocabulary.encode_prompt(PROMPT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    with opened([server], vocabulary) as engine:
        engine.load_weights((name, parameter.data) for name, parameter in model.named_parameters())
        assert engine.version == 1
        after = await sample(engine, ids, 48, 1.0)
        assert line_difference(model, ids, after) < 1e-4
        assert line_difference(nano(), ids, after) > 1e-2
    with opened([server], vocabulary) as engine:
        assert engine.version == 0
        assert line_difference(nano(), ids, await sample(engine, ids, 48, 1.0)) < 1e-4


def test_training_samples_with_the_weights_that_it_trains(
    server: RunningServer, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    engine = {"context_tokens": CONTEXT_TOKENS, "servers": [server.url]}
    with small_trainer(tmp_path, max_steps=3, engine=engine) as trainer:
        trainer.train()
        assert trainer.engine.version == 3
        steps = [row for row in trainer.state.log_history if "drift/logprob_max" in row]
        assert len(steps) == 3
        assert all(row["drift/logprob_max"] < 1e-3 for row in steps)
        trainer.sync_weights()
        ids = vocabulary.encode_prompt(PROMPT)
        line = asyncio.run(sample(trainer.engine, ids, 48, 1.0))
        own = line_difference(trainer.model, ids, line)
        assert own < 1e-3
        assert line_difference(nano(), ids, line) > 5 * own
