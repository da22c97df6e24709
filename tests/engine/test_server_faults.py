"""The server engine against servers that are wrong, ill or gone. What a healthy one does: `test_server_engine.py`."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from fake_vllm import LINE, LOGPROB, FakeVLLM, failing, hang, say_line, saying, tokens_answer
from safetensors.torch import load_file

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.engine.server.client import ServerRefused, ServerTimeouts, ServerUnreachable, read_answer
from repl_rl.engine.server.fleet import Locate, Weights
from repl_rl.errors import ConfigError, EngineError, ModelError
from repl_rl.models.nano import NANO_PATH

PATIENCE = ServerTimeouts(
    connect_s=2, health_s=2, request_s=5, between_checks_s=0.1, no_server_s=1.0, backoff_s=0.01, weights_s=5
)
IDS = [1, 2, 3]
SAMPLING = SamplingConfig(temperature=0.7, top_p=0.9, top_k=40)
OpenEngine = Callable[..., VLLMServerEngine]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(NANO_PATH))


@pytest.fixture
def fakes(vocabulary: Vocabulary) -> Iterator[list[FakeVLLM]]:
    made = [FakeVLLM(vocabulary), FakeVLLM(vocabulary)]
    yield made
    for fake in made:
        fake.close()


@pytest.fixture
def open_engine(vocabulary: Vocabulary, tmp_path: Path) -> Iterator[OpenEngine]:
    opened: list[VLLMServerEngine] = []

    def make(
        *fakes: FakeVLLM,
        timeouts: ServerTimeouts = PATIENCE,
        places: int = 64,
        follows: Weights | None = None,
        locate: Locate | None = None,
    ) -> VLLMServerEngine:
        urls = tuple(fake.url for fake in fakes)
        config = EngineConfig(context_tokens=512, servers=urls, places=places, weights_folder=str(tmp_path / "weights"))
        model = ModelConfig(path="nano")
        opened.append(
            VLLMServerEngine(
                str(NANO_PATH), vocabulary, model, config, timeouts=timeouts, follows=follows, locate=locate
            )
        )
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


async def sample(engine: VLLMServerEngine) -> SampledLine:
    async with engine.slot(300) as slot:
        return await slot.sample_line(IDS, 40, SAMPLING)


def new_weights() -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.ones(2)), ("b", torch.zeros(3))]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_line_is_asked_for_with_its_ids_and_comes_back_with_logprobs(
    fakes: list[FakeVLLM], open_engine: OpenEngine, vocabulary: Vocabulary
) -> None:
    line = asyncio.run(sample(open_engine(fakes[0])))
    ids = vocabulary.encode_output(LINE)
    assert line == SampledLine(ids, (LOGPROB,) * len(ids), Finish.NEWLINE, versions=((0, 0),))
    parameters = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 40, "logprobs": 0, "detokenize": False}
    stops = {"stop_token_ids": sorted(vocabulary.newline_ids | vocabulary.eos_ids)}
    assert fakes[0].requests == [
        {"token_ids": IDS, "cache_salt": "default", "sampling_params": parameters | stops},
    ]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"version": "0.31.2"}, EngineError, r"URL runs vLLM 0\.31\.2, and .* speaks with <0\.33,>=0\.32"),
        ({"missing": {"/version"}}, EngineError, "URL is not a vLLM server"),
        ({"model": "other/model"}, ModelError, "URL serves 'other/model', and the model is .*--served-model-name"),
        ({"tokenize": lambda text: [1, 2]}, ModelError, "URL has another tokenizer than"),
        ({"max_model_len": 256}, ConfigError, r"URL takes 256 tokens, and engine\.context_tokens is 512.*--max-model-"),
        ({"dtype": "torch.bfloat16"}, ConfigError, "URL computes in bfloat16, and model.dtype is float32.*--dtype fl"),
        ({"probe_logprob": -1.5}, EngineError, "URL gives .* before temperature.*--logprobs-mode processed_logprobs"),
        ({"stop_digest": "none: no file"}, ModelError, r"URL ends lines and texts at other tokens than .*none: no fil"),
        ({"missing": {"/inference/v1/generate"}}, EngineError, "URL does not take tokens in.*--enable-scale-out"),
        ({"refused": {"/v1/models": 401}}, EngineError, "URL/v1/models wants an API key; set VLLM_API_KEY"),
        ({"cards": []}, EngineError, "URL answers in a form that vLLM 0.32 does not have"),
        ({"health": 503}, EngineError, "URL/health: HTTP 503(.|\n)*VLLM_SERVER_DEV_MODE=1 vllm serve"),
    ],
)
def test_a_server_that_is_not_what_it_has_to_be_is_refused_at_the_start(
    fakes: list[FakeVLLM], open_engine: OpenEngine, wrong: dict[str, Any], kind: type[Exception], says: str
) -> None:
    good, bad = fakes
    for name, value in wrong.items():
        setattr(bad, name, value)
    with pytest.raises(kind, match=says.replace("URL", bad.url)):
        open_engine(good, bad)
    assert good.requests == bad.requests == []


def test_a_server_that_is_not_there_is_named_with_the_command_that_starts_one(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    fakes[1].stop()
    with pytest.raises(EngineError, match=rf"{fakes[1].url}/health: (.|\n)*vllm serve {NANO_PATH} --dtype float32"):
        open_engine(*fakes)


def test_a_server_may_have_the_model_under_another_name_too(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[0].model, fakes[0].aliases = "/elsewhere/nano", ["nano"]
    assert asyncio.run(sample(open_engine(fakes[0]))).finish is Finish.NEWLINE


def test_the_api_key_of_the_environment_is_sent(
    fakes: list[FakeVLLM], open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "open-sesame")
    open_engine(fakes[0])
    assert fakes[0].authorizations == {"Bearer open-sesame"}


@pytest.mark.parametrize(
    ("last", "reason", "finish"),
    [
        ("\n", "length", Finish.NEWLINE),
        ("\n", "stop", Finish.NEWLINE),
        ("x", "length", Finish.LENGTH),
        ("<|endoftext|>", "length", Finish.EOS),
        ("<|endoftext|>", "stop", Finish.EOS),
        ("x", "stop", Finish.EOS),
    ],
)
def test_the_last_token_says_how_a_line_ended(vocabulary: Vocabulary, last: str, reason: str, finish: Finish) -> None:
    ids = vocabulary.encode_prompt(last)
    answer = tokens_answer(list(ids), [LOGPROB] * len(ids), "default", reason)
    assert read_answer("http://s", answer, vocabulary)[0].finish is finish


def test_a_server_with_our_scheduler_is_sent_the_name_of_its_table_instead_of_a_list(
    fakes: list[FakeVLLM], open_engine: OpenEngine, vocabulary: Vocabulary
) -> None:
    fakes[0].stop_digest = vocabulary.digest
    asyncio.run(sample(open_engine(fakes[0])))
    sampling = fakes[0].requests[0]["sampling_params"]
    assert sampling["extra_args"] == {"repl_rl_line": ["\n", vocabulary.digest]}
    assert "stop_token_ids" not in sampling


def test_a_server_that_ends_lines_elsewhere_all_of_a_sudden_is_not_believed(
    fakes: list[FakeVLLM], open_engine: OpenEngine, vocabulary: Vocabulary
) -> None:
    async def stop_at_once(fake: FakeVLLM, body: dict[str, Any]) -> web.Response:
        answer = tokens_answer([5], [LOGPROB], fake.label)
        answer["choices"][0]["stop_reason"] = "another digest"
        return web.json_response(answer)

    for fake in fakes:
        fake.stop_digest = vocabulary.digest
    fakes[0].respond = stop_at_once
    line = asyncio.run(sample(open_engine(*fakes)))
    assert line.ids == vocabulary.encode_output(LINE)


def test_servers_with_and_without_our_scheduler_are_refused(
    fakes: list[FakeVLLM], open_engine: OpenEngine, vocabulary: Vocabulary
) -> None:
    fakes[1].stop_digest = vocabulary.digest
    with pytest.raises(EngineError, match=rf"differ in stop digest: {fakes[0].url} has None"):
        open_engine(*fakes)


def test_servers_that_differ_are_refused(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[1].version = "0.32.1"
    with pytest.raises(EngineError, match=rf"{fakes[0].url} has '0.32.0' and {fakes[1].url} has '0.32.1'"):
        open_engine(*fakes)


@pytest.mark.parametrize("url", ["node1:8000", "ftp://node1", "http://", "http://node1/?a=1"])
def test_a_url_that_is_none_is_refused(vocabulary: Vocabulary, url: str) -> None:
    config = EngineConfig(context_tokens=512, servers=(url,))
    with pytest.raises(ConfigError, match="is not a base URL; write it as http://host:8000"):
        VLLMServerEngine("nano", vocabulary, ModelConfig(), config)


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), None, -9999.0])
def test_a_log_probability_that_is_none_stops_the_run(
    fakes: list[FakeVLLM], open_engine: OpenEngine, logprob: Any
) -> None:
    fakes[0].respond = saying(logprob)
    with pytest.raises(EngineError, match=rf"{fakes[0].url} sampled .* the weights are broken"):
        asyncio.run(sample(open_engine(fakes[0])))
    assert len(fakes[0].requests) == 1


def test_a_server_error_is_tried_again_on_the_same_server(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    for fake in fakes:
        fake.respond = failing(500, times=1)
    line = asyncio.run(sample(open_engine(*fakes)))
    assert line.finish is Finish.NEWLINE
    assert sorted(len(fake.requests) for fake in fakes) == [0, 2]


def test_a_server_that_goes_on_failing_is_left(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[0].respond = failing(500)
    asyncio.run(sample(open_engine(*fakes)))
    assert [len(fake.requests) for fake in fakes] == [2, 1]
    assert fakes[0].requests[0] == fakes[1].requests[0]


def test_tries_are_bounded_and_the_troubles_are_told(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    for fake in fakes:
        fake.respond = failing(500)
    with pytest.raises(EngineError, match=rf"after 6 tries:(.|\n)*{fakes[0].url}.*HTTP 500: so it is"):
        asyncio.run(sample(open_engine(*fakes)))
    assert sum(len(fake.requests) for fake in fakes) == 6


def test_a_request_that_is_refused_is_not_tried_again(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[0].respond = failing(400)
    with pytest.raises(EngineError, match="HTTP 400: so it is"):
        asyncio.run(sample(open_engine(fakes[0])))
    assert len(fakes[0].requests) == 1


def test_a_request_that_gets_no_answer_goes_elsewhere(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[0].respond = hang
    timeouts = ServerTimeouts(request_s=0.2, between_checks_s=0.1, backoff_s=0.01)
    assert asyncio.run(sample(open_engine(*fakes, timeouts=timeouts))).finish is Finish.NEWLINE
    assert [len(fake.requests) for fake in fakes] == [2, 1]


def test_trajectories_are_spread_and_stay_where_they_are(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(*fakes)

    async def four_trajectories() -> None:
        async with AsyncExitStack() as stack:
            slots = [await stack.enter_async_context(engine.slot(300)) for _ in range(4)]
            for turn in range(3):
                await asyncio.gather(*(slot.sample_line([turn, n], 9, SAMPLING) for n, slot in enumerate(slots)))

    asyncio.run(four_trajectories())
    of_server = [{body["token_ids"][1] for body in fake.requests} for fake in fakes]
    assert [len(fake.requests) for fake in fakes] == [6, 6]
    assert of_server[0] | of_server[1] == {0, 1, 2, 3}
    assert not of_server[0] & of_server[1]


def test_a_server_is_sent_no_more_requests_at_a_time_than_it_has_places(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(fakes[0], places=3)
    under_way: list[int] = [0]
    seen: list[int] = []

    async def counted(server: FakeVLLM, body: dict[str, Any]) -> Any:
        under_way[0] += 1
        seen.append(under_way[0])
        await asyncio.sleep(0.02)
        under_way[0] -= 1
        return await say_line(server, body)

    async def many() -> None:
        await asyncio.gather(*(sample(engine) for _ in range(10)))

    fakes[0].respond = counted
    asyncio.run(many())
    assert (len(seen), max(seen)) == (10, 3)


def test_a_dead_servers_trajectory_goes_on_elsewhere_and_the_server_is_used_again_when_it_is_back(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(*fakes)

    async def two_lines() -> None:
        async with engine.slot(300) as slot:
            await slot.sample_line([1], 9, SAMPLING)
            await asyncio.to_thread(fakes[0].stop)
            await slot.sample_line([1, 2], 9, SAMPLING)

    asyncio.run(two_lines())
    assert [[body["token_ids"] for body in fake.requests] for fake in fakes] == [[[1]], [[1, 2]]]
    fakes[0].start()
    until(lambda: len(engine._fleet.up) == 2)
    asyncio.run(sample(engine))
    assert len(fakes[0].requests) == 2


def test_a_server_that_comes_back_as_another_model_is_not_used(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(*fakes)
    fakes[0].stop()
    until(lambda: len(engine._fleet.up) == 1)
    fakes[0].model = "other/model"
    fakes[0].start()
    until(lambda: "serves 'other/model'" in engine._fleet.servers[0].trouble)
    asyncio.run(sample(engine))
    assert [len(fake.requests) for fake in fakes] == [0, 1]


def test_a_server_that_comes_back_with_another_vllm_is_not_used(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(*fakes)
    fakes[1].stop()
    until(lambda: len(engine._fleet.up) == 1)
    fakes[1].version = "0.32.1"
    fakes[1].start()
    until(lambda: "differ in version" in engine._fleet.servers[1].trouble)
    assert [server.up for server in engine._fleet.servers] == [True, False]


def test_a_server_that_was_left_paused_goes_on(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[0].paused = True
    assert asyncio.run(sample(open_engine(fakes[0]))).finish is Finish.NEWLINE
    assert fakes[0].events == ["/resume"]


def test_if_all_servers_are_down_they_are_named_with_what_they_suffered_from(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(*fakes)
    fakes[0].health = 503
    fakes[1].stop()
    until(lambda: not engine._fleet.up)
    started = time.monotonic()
    with pytest.raises(EngineError) as caught:
        asyncio.run(sample(engine))
    assert 0.9 < time.monotonic() - started < 60
    message = str(caught.value)
    assert f"{fakes[0].url}: {fakes[0].url}/health: HTTP 503" in message
    assert f"{fakes[1].url}: {fakes[1].url}/health: Cannot connect" in message


def test_a_line_under_way_leaves_a_server_that_falls_ill(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(*fakes)
    fakes[0].respond = hang
    with ThreadPoolExecutor() as threads:
        sampling = threads.submit(lambda: asyncio.run(sample(engine)))
        until(lambda: "asked" in fakes[0].events)
        fakes[0].health = 503
        assert sampling.result(timeout=600).finish is Finish.NEWLINE
    assert [len(fake.requests) for fake in fakes] == [1, 1]


def test_a_busy_server_may_miss_a_health_check(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(fakes[0], timeouts=ServerTimeouts(health_s=0.5, between_checks_s=60))
    (server,) = engine._fleet.servers
    fakes[0].health = 0
    ups = []
    for _ in range(3):
        engine._loop.run(engine._fleet.check(server))
        ups.append(server.up)
    assert ups == [True, True, False]


def test_cancelling_closes_the_connection(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(fakes[0])
    fakes[0].respond = hang

    async def give_up() -> None:
        sampling = asyncio.create_task(sample(engine))
        await asyncio.to_thread(until, lambda: fakes[0].events == ["asked"])
        sampling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sampling

    asyncio.run(give_up())
    until(lambda: fakes[0].events == ["asked", "client went away"])
    assert len(fakes[0].requests) == 1


def test_closing_ends_a_line_under_way(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(fakes[0])
    fakes[0].respond = hang
    with ThreadPoolExecutor() as threads:
        sampling = threads.submit(lambda: asyncio.run(sample(engine)))
        until(lambda: fakes[0].events == ["asked"])
        engine.close()
        with pytest.raises(EngineError, match="the engine was closed"):
            sampling.result(timeout=600)
    with pytest.raises(EngineError, match="the engine is closed"):
        asyncio.run(sample(engine))
    until(lambda: fakes[0].events == ["asked", "client went away"])


def test_new_weights_are_loaded_by_all_servers(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(*fakes)
    engine.load_weights(new_weights())
    assert engine.version == 1
    for fake in fakes:
        assert fake.events == [
            "/pause",
            "repl_rl_load_weights",
            "repl_rl_require_loaded",
            "/reset_prefix_cache",
            "/resume",
        ]
        assert fake.label == engine.weights.label
    asyncio.run(sample(engine))
    assert [fake.requests[0]["cache_salt"] for fake in fakes if fake.requests] == [engine.weights.label]


def test_only_the_latest_weights_stay_on_disk(fakes: list[FakeVLLM], open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine(fakes[0])
    for _ in range(3):
        engine.load_weights(new_weights())
    assert [str(path) for path in (tmp_path / "weights").iterdir()] == list(engine.weights.files)
    assert engine.version == 3


def test_a_folder_that_can_not_be_written_to_is_named_and_the_weights_are_read_to_the_end(
    fakes: list[FakeVLLM], open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine(fakes[0])
    (tmp_path / "weights").write_text("a file, no folder")
    weights = iter(new_weights())
    with pytest.raises(ConfigError, match=r"can't be written to '.*/weights'.*engine\.weights_folder"):
        engine.load_weights(weights)
    assert list(weights) == []
    assert engine.version == 0


def test_large_weights_are_written_in_several_files(
    fakes: list[FakeVLLM], open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repl_rl.engine.server.fleet._FILE_BYTES", 9)
    engine = open_engine(fakes[0])
    engine.load_weights([*new_weights(), ("c", torch.full((1,), 7.0))])
    written = [load_file(path) for path in engine.weights.files]
    assert [sorted(tensors) for tensors in written] == [["a", "b"], ["c"]]
    assert torch.equal(written[0]["a"], torch.ones(2))
    assert torch.equal(written[1]["c"], torch.full((1,), 7.0))


def test_new_weights_wait_for_lines_under_way(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(fakes[0])

    async def slowly(server: FakeVLLM, body: dict[str, Any]) -> Any:
        server.events.append("asked")
        await asyncio.sleep(0.3)
        server.events.append("answered")
        return await say_line(server, body)

    fakes[0].respond = slowly
    with ThreadPoolExecutor() as threads:
        sampling = threads.submit(lambda: asyncio.run(sample(engine)))
        until(lambda: fakes[0].events == ["asked"])
        engine.load_weights(new_weights())
        sampling.result(timeout=600)
    assert fakes[0].events[:3] == ["asked", "answered", "/pause"]


def test_a_server_that_refuses_new_weights_leaves_all_at_the_old_ones(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(*fakes)
    fakes[1].load = lambda body: {"error": "shapes differ"} if "load" in body["method"] else {"loaded": 1}
    with pytest.raises(EngineError, match=rf"{fakes[1].url} can't load .*: shapes differ; .*engine\.weights_folder"):
        engine.load_weights(new_weights())
    assert engine.version == 0
    assert [fake.label for fake in fakes] == ["default", "default"]
    assert all("repl_rl_restore_checkpoint" in fake.events for fake in fakes)
    asyncio.run(sample(engine))


def test_a_server_of_which_one_rank_has_not_loaded_its_weights_is_left_out(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(*fakes)
    fakes[1].has_unloaded_rank = True
    engine.load_weights(new_weights())
    assert [server.up for server in engine._fleet.servers] == [True, False]
    assert fakes[1].label != engine.weights.label
    asyncio.run(sample(engine))
    assert [len(fake.requests) for fake in fakes] == [1, 0]
    fakes[1].has_unloaded_rank = False
    until(lambda: len(engine._fleet.up) == 2)
    assert fakes[1].label == engine.weights.label


def test_quantised_weights_can_be_sampled_from_and_not_replaced(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    fakes[0].quantization = "fp8"
    engine = open_engine(fakes[0])
    asyncio.run(sample(engine))
    with pytest.raises(ConfigError, match=r"quantised \(fp8\), and new ones can't be loaded"):
        engine.require_weight_updates()


def test_keys_and_values_of_another_type_are_warned_about(
    fakes: list[FakeVLLM], open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    fakes[0].cache_dtype = "fp8"
    open_engine(fakes[0])
    assert "the servers keep keys and values in fp8" in caplog.text


def test_a_server_that_is_away_during_an_update_gets_the_weights_when_it_is_back(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(*fakes)
    fakes[0].stop()
    engine.load_weights(new_weights())
    assert engine.version == 1
    assert [fake.label for fake in fakes] == ["default", engine.weights.label]
    fakes[0].start()
    until(lambda: len(engine._fleet.up) == 2)
    assert fakes[0].label == engine.weights.label


def test_a_server_that_was_restarted_unseen_is_given_the_weights_before_its_tokens_count(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    engine = open_engine(fakes[0], timeouts=ServerTimeouts(between_checks_s=60, backoff_s=0.01))
    engine.load_weights(new_weights())
    fakes[0].label = "default"
    asyncio.run(sample(engine))
    assert fakes[0].label == engine.weights.label
    assert len(fakes[0].requests) == 2


def test_weights_that_an_earlier_run_left_are_undone_at_the_start(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    fakes[0].label = "repl-rl-12345678-40"
    open_engine(fakes[0])
    assert fakes[0].events == [
        "/pause",
        "repl_rl_restore_checkpoint",
        "repl_rl_require_loaded",
        "/reset_prefix_cache",
        "/resume",
    ]
    assert fakes[0].label == "default"


def test_servers_without_our_worker_extension_can_sample_but_take_no_weights(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    fakes[0].missing = {"/server_info", "/weight_info"}
    engine = open_engine(fakes[0])
    assert asyncio.run(sample(engine)).finish is Finish.NEWLINE
    with pytest.raises(ConfigError, match=r"can't be given new weights(.|\n)*--worker-extension-cls repl_rl\."):
        engine.load_weights(new_weights())


def test_another_process_goes_on_with_weights_that_the_first_has_given(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    first, second = open_engine(fakes[0]), open_engine(fakes[0])
    first.load_weights(new_weights())
    second.adopt(first.weights)
    assert second.version == 1
    asyncio.run(sample(second))
    assert len(fakes[0].requests) == 1


def test_an_engine_that_follows_goes_on_with_later_weights(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    leader = open_engine(fakes[0])
    follower = open_engine(fakes[0], follows=leader.weights)
    assert asyncio.run(sample(follower)).versions == ((0, 0),)
    for version in (1, 2):
        leader.load_weights(new_weights())
        assert asyncio.run(sample(follower)).versions == ((0, version),)
        assert follower.version == version
    follower.adopt(leader.weights)
    given = fakes[0].events.count("/collective_rpc")
    with pytest.raises(EngineError, match="follows the weights of another one"):
        follower.load_weights(new_weights())
    assert fakes[0].events.count("/collective_rpc") == given


def test_an_engine_that_follows_gives_no_weights_and_waits_for_its_leader(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    leader = open_engine(fakes[0])
    leader.load_weights(new_weights())
    follower = open_engine(fakes[0], follows=leader.weights)
    fakes[0].label = "default"  # as after a restart
    given = fakes[0].events.count("/collective_rpc")
    with ThreadPoolExecutor(1) as thread:
        line = thread.submit(lambda: asyncio.run(sample(follower)))
        until(lambda: "until the trainer has given it its own" in follower._fleet.servers[0].trouble)
        assert not follower._fleet.up
        assert fakes[0].events.count("/collective_rpc") == given
        fakes[0].label = leader.weights.label
        assert line.result(60).versions == ((0, 1),)


@pytest.mark.parametrize("label", ["default", "repl-rl-00000000-7", "repl-rl-7", "on the way to it"])
def test_labels_of_other_trainers_are_not_followed(label: str) -> None:
    weights = Weights(3, "repl-rl-abcdef01-3", run="repl-rl-abcdef01")
    assert weights.later(label) is None
    assert weights.later("repl-rl-abcdef01-2") is None
    assert weights.later("repl-rl-abcdef01-12") == Weights(12, "repl-rl-abcdef01-12", run="repl-rl-abcdef01")


class Directory:
    """Where servers are now, by where they began. One without an entry is nowhere."""

    def __init__(self, *fakes: FakeVLLM) -> None:
        self.urls = {fake.url: fake.url for fake in fakes}
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.asked = 0

    async def locate(self, url: str) -> str:
        self.asked += 1
        await self.is_open.wait()
        if url not in self.urls:
            raise ServerUnreachable(f"{url} is gone, and no machine has room")
        return self.urls[url]


def test_a_server_whose_machine_is_lost_is_used_where_another_takes_its_place(
    fakes: list[FakeVLLM], open_engine: OpenEngine, vocabulary: Vocabulary
) -> None:
    """With the current weights, given by the engine that leads; the one that follows waits for that."""
    lost, other = fakes
    directory = Directory(lost, other)
    leader = open_engine(lost, other, locate=directory.locate)
    follower = open_engine(lost, other, locate=directory.locate, follows=leader.weights)
    leader.load_weights(new_weights())
    begun_at = lost.url
    del directory.urls[begun_at]
    lost.stop()
    until(lambda: leader._fleet.servers[0].trouble == follower._fleet.servers[0].trouble != "not asked yet")
    until(lambda: leader._fleet.servers[0].trouble == f"{begun_at} is gone, and no machine has room")
    elsewhere = FakeVLLM(vocabulary)
    try:
        directory.urls[begun_at] = elsewhere.url
        for engine in (leader, follower):
            until(lambda engine=engine: len(engine._fleet.up) == 2)  # type: ignore[misc]
            assert [server.url for server in engine._fleet.servers] == [elsewhere.url, other.url]
        assert elsewhere.events.count("repl_rl_load_weights") == 1
        assert elsewhere.label == leader.weights.label
        other.stop()
        assert asyncio.run(sample(follower)).versions == ((0, 1),)
        assert len(elsewhere.requests) == 1
    finally:
        elsewhere.close()


def test_lines_wait_for_the_only_server_to_take_another_machine(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    lost, elsewhere = fakes
    directory = Directory(lost)
    engine = open_engine(lost, locate=directory.locate, timeouts=replace(PATIENCE, no_server_s=300))
    lost.respond = hang
    with ThreadPoolExecutor() as threads:
        lines = [threads.submit(lambda: asyncio.run(sample(engine))) for _ in range(4)]
        until(lambda: lost.events.count("asked") == 4)
        directory.urls[lost.url] = elsewhere.url
        lost.stop()
        assert [line.result(60).finish for line in lines] == [Finish.NEWLINE] * 4
    assert len(elsewhere.requests) == 4


def test_many_lines_on_a_lost_server_ask_for_it_once(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    """A machine that is gone answers late or never: lines must not wait for that one after another."""
    lost, other = fakes
    directory = Directory(lost, other)
    engine = open_engine(*fakes, locate=directory.locate, timeouts=replace(PATIENCE, between_checks_s=60))
    server, asked = engine._fleet.servers[0], directory.asked
    lost.stop()
    directory.is_open.clear()

    async def check_at_once() -> None:
        await engine._fleet.mark_down(server, "gone")
        checks = [asyncio.create_task(engine._fleet.check(server)) for _ in range(50)]
        await asyncio.sleep(0)
        directory.is_open.set()
        await asyncio.gather(*checks)

    engine._loop.run(check_at_once())
    assert directory.asked == asked + 1


def test_an_engine_that_follows_opens_without_a_server_that_is_away(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    """As the engine of a worker that is started again after its machine was lost, a server's as well."""
    directory = Directory(*fakes)
    leader = open_engine(*fakes, locate=directory.locate)
    del directory.urls[fakes[0].url]
    fakes[0].stop()
    follower = open_engine(*fakes, locate=directory.locate, follows=leader.weights)
    assert [server.up for server in follower._fleet.servers] == [False, True]
    assert asyncio.run(sample(follower)).finish is Finish.NEWLINE
    with pytest.raises(EngineError, match=r"is gone, and no machine has room(.|\n)*has to be up at the start"):
        open_engine(*fakes, locate=directory.locate)
    fakes[1].stop()
    with pytest.raises(EngineError, match="has to be up at the start"):
        open_engine(*fakes, follows=leader.weights)


def test_a_machine_that_is_lost_while_it_loads_weights_is_given_up(
    fakes: list[FakeVLLM], open_engine: OpenEngine
) -> None:
    """No connection to it is closed, and loading may take half an hour."""
    engine = open_engine(*fakes, timeouts=replace(PATIENCE, health_s=0.2, weights_s=1800))
    back = threading.Event()

    def load(body: dict[str, Any]) -> dict[str, int]:
        back.wait(300)
        return {"loaded": 1}

    fakes[0].load = load
    try:
        engine.load_weights(new_weights())
        assert [server.up for server in engine._fleet.servers] == [False, True]
        assert "/health: no answer in time" in engine._fleet.servers[0].trouble
        assert fakes[1].label == engine.weights.label != fakes[0].label
    finally:
        back.set()
    until(lambda: len(engine._fleet.up) == 2)
    assert fakes[0].label == engine.weights.label


def test_new_weights_wait_for_a_server_to_be_back(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    engine = open_engine(fakes[0], timeouts=replace(PATIENCE, no_server_s=300))
    fakes[0].stop()
    until(lambda: not engine._fleet.up)
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(engine.load_weights, new_weights())
        until(lambda: engine._fleet._is_shut)
        fakes[0].start()
        loading.result(60)
    assert engine.version == 1
    assert fakes[0].label == engine.weights.label


def test_without_a_server_new_weights_are_an_error_and_leave_no_file(
    fakes: list[FakeVLLM], open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine(fakes[0])
    fakes[0].stop()
    with pytest.raises(EngineError, match=rf"no vLLM server came back within 1 s:\n  {fakes[0].url}: .*Cannot connect"):
        engine.load_weights(new_weights())
    assert engine.version == 0
    assert list((tmp_path / "weights").iterdir()) == []


def test_errors_pickle() -> None:
    error = pickle.loads(pickle.dumps(ServerRefused("no", 404)))
    assert (str(error), error.status) == ("no", 404)


def test_a_branch_goes_to_the_server_that_its_root_is_on(fakes: list[FakeVLLM], open_engine: OpenEngine) -> None:
    """Wherever there is more room: that server has its beginning in the prefix cache. Prompts are spread evenly."""

    async def use(engine: VLLMServerEngine) -> list[int]:
        counts = []
        async with AsyncExitStack() as stack:

            async def typed(slot: Any, ids: list[int]) -> list[int]:
                return [*ids, *(await slot.sample_line(ids, 40, SAMPLING)).ids, 7]

            roots = [await stack.enter_async_context(engine.slot(300)) for _ in range(2)]
            texts = [await typed(root, [1, number]) for number, root in enumerate(roots)]
            counts += [len(fake.requests) for fake in fakes]
            await typed(roots[0], texts[0])
            for _ in range(4):
                await typed(await stack.enter_async_context(engine.slot(300)), texts[0])
            counts += [len(fake.requests) for fake in fakes]
        return counts

    counts = asyncio.run(use(open_engine(*fakes)))
    assert counts[:2] == [1, 1]
    assert sorted(counts[2:]) == [1, 6]
