"""The server engine against servers that are wrong, ill or gone. What a healthy one does: `test_server_engine.py`."""

import asyncio
import pickle
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from aiohttp import web
from fake_vllm import LINE, LOGPROB, FakeVLLM, failing, hang, say_line, saying, tokens_answer
from safetensors.torch import load_file
from waiting import until_async as until

from repl_rl import errors
from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.engine.server.client import ServerRefused, ServerTimeouts, ServerUnreachable, read_answer
from repl_rl.engine.server.fleet import Locate
from repl_rl.engine.server.transfer import ServerGroup
from repl_rl.engine.server.weights import Weights
from repl_rl.errors import ConfigError, EngineError
from repl_rl.models.nano import NANO_PATH

TIMEOUTS = ServerTimeouts(
    connect_s=30, health_s=30, request_s=60, between_checks_s=0.1, no_server_s=1.0, backoff_s=0.01, weights_s=60
)
IDS = [1, 2, 3]
SAMPLING = SamplingConfig(temperature=0.7, top_p=0.9, top_k=40)
WRONG = yaml.safe_load(Path(__file__).with_name("wrong_servers.yaml").read_text(encoding="utf-8"))
UNUSUAL = yaml.safe_load(Path(__file__).with_name("unusual_servers.yaml").read_text(encoding="utf-8"))
GIVEN_WEIGHTS = ["/pause", "repl_rl_load_weights", "repl_rl_require_loaded", "/reset_prefix_cache", "/resume"]


class Fakes(list[FakeVLLM]):
    """Two servers, and the engines that were opened over them."""

    def __init__(self, vocabulary: Vocabulary, folder: Path) -> None:
        super().__init__([FakeVLLM(vocabulary), FakeVLLM(vocabulary)])
        self.folder = folder
        self._vocabulary = vocabulary
        self._engines: list[VLLMServerEngine] = []

    def open(
        self,
        *fakes: FakeVLLM,
        places: int = 64,
        line_seeds: bool = True,
        follows: Weights | None = None,
        locate: Locate | None = None,
        **timeouts: float,
    ) -> VLLMServerEngine:
        """An engine over some servers, all by default; `timeouts` are those that differ from `TIMEOUTS`."""
        urls = tuple(fake.url for fake in fakes or self)
        engine = VLLMServerEngine(
            str(NANO_PATH),
            self._vocabulary,
            ModelConfig(path="nano"),
            EngineConfig(
                context_tokens=512,
                servers=urls,
                places=places,
                line_seeds=line_seeds,
                weights_folder=str(self.folder),
            ),
            timeouts=replace(TIMEOUTS, **timeouts),
            follows=follows,
            locate=locate,
        )
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        for each in (*self._engines, *self):
            each.close()

    @property
    def requests(self) -> list[int]:
        """How many each got."""
        return [len(fake.requests) for fake in self]


@pytest.fixture
def fakes(vocabulary: Vocabulary, tmp_path: Path) -> Iterator[Fakes]:
    fakes = Fakes(vocabulary, tmp_path / "weights")
    yield fakes
    fakes.close()


async def sample(engine: VLLMServerEngine) -> SampledLine:
    async with engine.slot(300) as slot:
        return await slot.sample_line(IDS, 40, SAMPLING)


def sampling(engine: VLLMServerEngine) -> asyncio.Task[SampledLine]:
    return asyncio.create_task(sample(engine))


def new_weights() -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.ones(2)), ("b", torch.zeros(3))]


def up(engine: VLLMServerEngine) -> list[bool]:
    return [server.up for server in engine.servers]


# What is asked, and what an answer means.


@pytest.mark.parametrize("has_our_scheduler", [False, True])
async def test_a_line_is_asked_for_with_its_ids_and_comes_back_with_logprobs(
    fakes: Fakes, vocabulary: Vocabulary, has_our_scheduler: bool
) -> None:
    ends: dict[str, Any] = {"stop_token_ids": sorted(vocabulary.newline_ids | vocabulary.eos_ids)}
    if has_our_scheduler:
        fakes[0].stop_digest = vocabulary.digest
        ends = {"extra_args": {"repl_rl_line": ["\n", vocabulary.digest]}}
    line = await sample(fakes.open(fakes[0]))
    ids = vocabulary.encode_output(LINE)
    assert line == SampledLine(ids, (LOGPROB,) * len(ids), Finish.NEWLINE, versions=((0, 0),))
    parameters = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "repetition_penalty": 1.0}
    parameters |= {"max_tokens": 40, "logprobs": 0, "detokenize": False}
    seed = fakes[0].requests[0]["sampling_params"].pop("seed")
    assert 0 <= seed < 2**63
    assert fakes[0].requests == [{"token_ids": IDS, "cache_salt": "default", "sampling_params": parameters | ends}]


async def test_lines_may_be_asked_for_without_seeds(fakes: Fakes) -> None:
    await sample(fakes.open(fakes[0], line_seeds=False))
    assert "seed" not in fakes[0].requests[0]["sampling_params"]


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("last", ["\n", "x", "<|endoftext|>"])
def test_the_last_token_says_how_a_line_ended(vocabulary: Vocabulary, last: str, reason: str) -> None:
    ids = vocabulary.encode_prompt(last)
    answer = tokens_answer(list(ids), [LOGPROB] * len(ids), "default", reason)
    without_mark = Finish.LENGTH if reason == "length" else Finish.EOS
    finish = {"\n": Finish.NEWLINE, "<|endoftext|>": Finish.EOS}.get(last, without_mark)
    assert read_answer("http://s", answer, vocabulary)[0].finish is finish


def test_errors_pickle() -> None:
    error = pickle.loads(pickle.dumps(ServerRefused("no", 404)))
    assert (str(error), error.status) == ("no", 404)


# At the start.


@pytest.mark.parametrize("case", WRONG, ids=[case["says"] for case in WRONG])
def test_a_server_that_is_not_what_it_has_to_be_is_refused(
    fakes: Fakes, vocabulary: Vocabulary, case: dict[str, Any]
) -> None:
    good, bad = fakes
    for name, value in case["server"].items():
        setattr(bad, name, vocabulary.digest if value == "OURS" else value)
    if bad.health == 0:
        bad.stop()
    says = case["says"].replace("URL", bad.url).replace("GOOD", good.url).replace("NANO", str(NANO_PATH))
    with pytest.raises(getattr(errors, case["error"]), match=says):
        fakes.open()
    assert fakes.requests == [0, 0]


@pytest.mark.parametrize("url", ["node1:8000", "ftp://node1", "http://", "http://node1/?a=1"])
def test_what_is_not_a_base_url_is_refused(vocabulary: Vocabulary, url: str) -> None:
    config = EngineConfig(context_tokens=512, servers=(url,))
    with pytest.raises(ConfigError, match="is not a base URL; write it as http://host:8000"):
        VLLMServerEngine("nano", vocabulary, ModelConfig(), config)


@pytest.mark.parametrize(("unusual", "events", "warning"), UNUSUAL["usable"].values(), ids=UNUSUAL["usable"])
async def test_a_server_that_is_unusual_can_be_used(
    fakes: Fakes, caplog: pytest.LogCaptureFixture, unusual: dict[str, Any], events: list[str], warning: str
) -> None:
    for name, value in unusual.items():
        setattr(fakes[0], name, value)
    assert (await sample(fakes.open(fakes[0]))).finish is Finish.NEWLINE
    assert (fakes[0].events, fakes[0].label) == (events, "default")
    assert warning in caplog.text


def test_the_api_key_of_the_environment_is_sent(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "open-sesame")
    fakes.open(fakes[0])
    assert fakes[0].authorizations == {"Bearer open-sesame"}


# Lines.


async def end_elsewhere(fake: FakeVLLM, body: dict[str, Any]) -> web.Response:
    """As a server that was started again with another vocabulary."""
    answer = tokens_answer([5], [LOGPROB], fake.label)
    answer["choices"][0]["stop_reason"] = "another digest"
    return web.json_response(answer)


async def error_page(fake: FakeVLLM, body: Any) -> web.Response:
    """As a proxy that says UTF-8, and writes another encoding."""
    page = "<h1>nicht verfügbar</h1>".encode("latin-1")
    return web.Response(status=503, body=page, content_type="text/html", charset="utf-8")


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        (failing(500, times=1), say_line, [2, 0]),
        (failing(500), say_line, [2, 1]),
        (error_page, say_line, [2, 1]),
        (hang, say_line, [2, 1]),
        (end_elsewhere, say_line, [2, 1]),
    ],
    ids=["one error", "errors", "error pages", "no answer", "another table of ends"],
)
async def test_a_line_is_asked_for_again_at_the_same_server_and_then_at_another(
    fakes: Fakes, first: Any, second: Any, asked: list[int]
) -> None:
    fakes[0].respond, fakes[1].respond = first, second
    line = await sample(fakes.open(request_s=1.0 if first is hang else 60))
    assert line.finish is Finish.NEWLINE
    assert fakes.requests == asked
    assert all(body == fakes[0].requests[0] for fake in fakes for body in fake.requests)


@pytest.mark.parametrize(
    ("respond", "says", "asked"),
    [
        (failing(500), r"after 6 tries:(.|\n)*URL.*HTTP 500: so it is", 6),
        (failing(400), "HTTP 400: so it is", 1),
        *((saying(value), "URL sampled .* the weights are broken", 1) for value in (float("nan"), None, -9999.0)),
    ],
)
async def test_a_line_that_cannot_be_had_is_an_error(fakes: Fakes, respond: Any, says: str, asked: int) -> None:
    fakes[0].respond = fakes[1].respond = respond
    with pytest.raises(EngineError, match=says.replace("URL", fakes[0].url)):
        await sample(fakes.open())
    assert sum(fakes.requests) == asked


async def test_trajectories_are_spread_and_stay_at_one_engine_of_a_data_parallel_server_too(fakes: Fakes) -> None:
    fakes[0].ranks = 2
    engine = fakes.open()
    async with AsyncExitStack() as stack:
        slots = [await stack.enter_async_context(engine.slot(300)) for _ in range(6)]
        for _ in range(3):
            for number, slot in enumerate(slots):
                await slot.sample_line([number], 40, SAMPLING)
    typed = [(fake.asked_ranks[1:], [body["token_ids"][0] for body in fake.requests]) for fake in fakes]  # no probes
    (ranks, first), (no_ranks, second) = typed
    assert (ranks, first) == (ranks[:4] * 3, first[:4] * 3)
    assert (no_ranks, second) == ([None] * 6, second[:2] * 3)
    assert (set(ranks), {*first, *second}) == ({"0", "1"}, set(range(6)))


async def test_a_branch_goes_to_the_server_that_its_root_is_on(fakes: Fakes) -> None:
    """Wherever there is more room: that server has its beginning in the prefix cache. Prompts are spread evenly."""
    engine = fakes.open()

    async def typed(slot: Any, ids: list[int]) -> list[int]:
        return [*ids, *(await slot.sample_line(ids, 40, SAMPLING)).ids, 7]

    async with AsyncExitStack() as stack:
        roots = [await stack.enter_async_context(engine.slot(300)) for _ in range(2)]
        texts = [await typed(root, [1, number]) for number, root in enumerate(roots)]
        assert fakes.requests == [1, 1]
        await typed(roots[0], texts[0])
        for _ in range(4):
            await typed(await stack.enter_async_context(engine.slot(300)), texts[0])
    assert sorted(fakes.requests) == [1, 6]


@pytest.mark.parametrize(("own", "ranks", "most"), [(None, 1, 3), (2, 2, 4)])
async def test_a_server_is_sent_no_more_requests_at_a_time_than_it_takes(
    fakes: Fakes, own: int | None, ranks: int, most: int
) -> None:
    fakes[0].max_num_seqs, fakes[0].ranks = own, ranks
    under_way, seen = [0], []

    async def counted(server: FakeVLLM, body: dict[str, Any]) -> Any:
        under_way[0] += 1
        seen.append(under_way[0])
        await asyncio.sleep(0.02)
        under_way[0] -= 1
        return await say_line(server, body)

    fakes[0].respond = counted
    engine = fakes.open(fakes[0], places=3)
    await asyncio.gather(*(sample(engine) for _ in range(10)))
    assert (len(seen), max(seen)) == (10, most)


async def test_cancelling_a_line_and_closing_the_engine_close_the_connection(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0])
    fakes[0].respond = hang
    line = sampling(engine)
    await until(lambda: fakes[0].events == ["asked"])
    line.cancel()
    with pytest.raises(asyncio.CancelledError):
        await line
    await until(lambda: fakes[0].events == ["asked", "client went away"])
    line = sampling(engine)
    await until(lambda: len(fakes[0].events) == 3)
    engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        await line
    with pytest.raises(EngineError, match="the engine is closed"):
        await sample(engine)
    await until(lambda: fakes[0].events == ["asked", "client went away"] * 2)


# Servers that go and come.


async def test_a_dead_servers_trajectory_goes_on_elsewhere_and_the_server_is_used_again_when_it_is_back(
    fakes: Fakes,
) -> None:
    engine = fakes.open()
    async with engine.slot(300) as slot:
        await slot.sample_line([1], 9, SAMPLING)
        fakes[0].stop()
        await slot.sample_line([1, 2], 9, SAMPLING)
    assert [[body["token_ids"] for body in fake.requests] for fake in fakes] == [[[1]], [[1, 2]]]
    fakes[0].start()
    await until(lambda: up(engine) == [True, True])
    await sample(engine)
    assert fakes.requests == [2, 1]


@pytest.mark.parametrize(
    ("name", "value", "trouble"),
    [("model", "other/model", "serves 'other/model'"), ("version", "0.32.1", "differ in version")],
)
async def test_a_server_that_comes_back_as_another_one_is_not_used(
    fakes: Fakes, name: str, value: str, trouble: str
) -> None:
    engine = fakes.open()
    fakes[0].stop()
    await until(lambda: up(engine) == [False, True])
    setattr(fakes[0], name, value)
    fakes[0].start()
    await until(lambda: trouble in str(engine.servers[0].trouble))
    await sample(engine)
    assert fakes.requests == [0, 1]


async def test_if_all_servers_are_down_they_are_named_with_what_they_suffered_from(fakes: Fakes) -> None:
    engine = fakes.open()
    fakes[0].health = 503
    fakes[1].stop()
    await until(lambda: up(engine) == [False, False])
    with pytest.raises(EngineError, match=r"no vLLM server came back within 1 s:\n") as caught:
        await sample(engine)
    message = str(caught.value)
    assert f"{fakes[0].url}: {fakes[0].url}/health: HTTP 503" in message
    assert f"{fakes[1].url}: {fakes[1].url}/health: Cannot connect" in message


async def test_a_line_under_way_leaves_a_server_that_falls_ill(fakes: Fakes) -> None:
    engine = fakes.open()
    fakes[0].respond = hang
    line = sampling(engine)
    await until(lambda: "asked" in fakes[0].events)
    fakes[0].health = 503
    assert (await line).finish is Finish.NEWLINE
    assert fakes.requests == [1, 1]


@pytest.mark.more
async def test_a_busy_server_may_miss_two_health_checks(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0], health_s=1.0)
    fakes[0].health = 0
    seen: list[tuple[bool, int]] = []
    await until(lambda: seen.append((engine.servers[0].up, engine.servers[0].silences)) or not seen[-1][0])
    assert {silences for is_up, silences in seen if not is_up} == {3}


class Directory:
    """Where servers are now, by where they began. One without an entry is nowhere."""

    def __init__(self, *fakes: FakeVLLM) -> None:
        self.urls = {fake.url: fake.url for fake in fakes}
        self.is_open = threading.Event()
        self.is_open.set()
        self.asked = 0

    async def locate(self, url: str) -> str:
        self.asked += 1
        await until(self.is_open.is_set)
        if url not in self.urls:
            raise ServerUnreachable(f"{url} is gone, and no machine has room")
        return self.urls[url]


async def test_a_server_whose_machine_is_lost_is_used_where_another_takes_its_place(
    fakes: Fakes, vocabulary: Vocabulary
) -> None:
    """With the current weights, given by the engine that leads; the one that follows waits for that."""
    lost, other = fakes
    directory = Directory(lost, other)
    leader = fakes.open(locate=directory.locate)
    follower = fakes.open(locate=directory.locate, follows=leader.weights)
    leader.load_weights(new_weights())
    begun_at = lost.url
    del directory.urls[begun_at]
    lost.stop()
    for engine in (leader, follower):
        await until(
            lambda engine=engine: str(engine.servers[0].trouble) == f"{begun_at} is gone, and no machine has room"
        )
    elsewhere = FakeVLLM(vocabulary)
    try:
        directory.urls[begun_at] = elsewhere.url
        for engine in (leader, follower):
            await until(lambda engine=engine: up(engine) == [True, True])
            assert [server.url for server in engine.servers] == [elsewhere.url, other.url]
        assert elsewhere.events.count("repl_rl_load_weights") == 1
        assert elsewhere.label == leader.weights.label
        other.stop()
        assert (await sample(follower)).versions == ((0, 1),)
        assert len(elsewhere.requests) == 1
    finally:
        elsewhere.close()


async def test_lines_wait_for_the_only_server_to_take_another_machine_and_look_for_it_once(fakes: Fakes) -> None:
    """A machine that is gone answers late or never: lines must not wait for that one after another."""
    lost, elsewhere = fakes
    directory = Directory(lost)
    engine = fakes.open(lost, locate=directory.locate, no_server_s=300)
    lost.respond = hang
    lines = [sampling(engine) for _ in range(40)]
    await until(lambda: lost.events.count("asked") == 40)
    asked = directory.asked
    directory.urls[lost.url] = elsewhere.url
    directory.is_open.clear()
    lost.stop()
    await until(lambda: directory.asked > asked)
    directory.is_open.set()
    assert {(await line).finish for line in lines} == {Finish.NEWLINE}
    assert len(elsewhere.requests) == 40
    assert directory.asked == asked + 1


# New weights.


async def test_new_weights_are_loaded_by_all_servers_and_only_the_latest_stay_on_disk(fakes: Fakes) -> None:
    engine, other_process = fakes.open(), fakes.open()
    for version in (1, 2, 3):
        engine.load_weights(new_weights())
        assert engine.version == version
        for fake in fakes:
            assert fake.events == GIVEN_WEIGHTS * version
            assert fake.label == engine.weights.label
    assert [str(path) for path in fakes.folder.rglob("*.safetensors")] == list(engine.weights.files)
    await sample(engine)
    other_process.adopt(engine.weights)
    assert other_process.version == 3
    await sample(other_process)
    assert [body["cache_salt"] for fake in fakes for body in fake.requests] == [engine.weights.label] * 2


def test_a_folder_that_can_not_be_written_to_is_named_and_the_weights_are_read_to_the_end(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0])
    fakes.folder.write_text("a file, no folder")
    weights = iter(new_weights())
    with pytest.raises(ConfigError, match=r"can't be written to '.*/weights'.*engine\.weights_folder"):
        engine.load_weights(weights)
    assert list(weights) == []
    assert engine.version == 0


def test_large_weights_are_written_in_several_files(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl_rl.engine.server.weights._FILE_BYTES", 9)
    engine = fakes.open(fakes[0])
    engine.load_weights([*new_weights(), ("c", torch.full((1,), 7.0))])
    written = [load_file(path) for path in engine.weights.files]
    assert [sorted(tensors) for tensors in written] == [["a", "b"], ["c"]]
    assert torch.equal(written[0]["a"], torch.ones(2))
    assert torch.equal(written[1]["c"], torch.full((1,), 7.0))


async def test_new_weights_wait_for_lines_under_way(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0])

    async def slowly(server: FakeVLLM, body: dict[str, Any]) -> Any:
        server.events.append("asked")
        await asyncio.sleep(0.3)
        server.events.append("answered")
        return await say_line(server, body)

    fakes[0].respond = slowly
    line = sampling(engine)
    await until(lambda: fakes[0].events == ["asked"])
    engine.load_weights(new_weights())
    await line
    assert fakes[0].events[:3] == ["asked", "answered", "/pause"]


async def test_a_server_that_refuses_new_weights_leaves_all_at_the_old_ones(fakes: Fakes) -> None:
    engine = fakes.open()
    fakes[1].load = lambda body: {"error": "shapes differ"} if "load" in body["method"] else {"loaded": 1}
    with pytest.raises(EngineError, match=rf"{fakes[1].url} can't load .*: shapes differ; .*engine\.weights_folder"):
        engine.load_weights(new_weights())
    assert engine.version == 0
    assert [fake.label for fake in fakes] == ["default", "default"]
    assert all("repl_rl_restore_checkpoint" in fake.events for fake in fakes)
    await sample(engine)


def save_adapter(folder: Path) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").touch()


async def test_adapters_are_asked_for_by_name_and_a_server_that_refuses_one_leaves_all_at_the_old_one(
    fakes: Fakes,
) -> None:
    for fake in fakes:
        fake.adapters = []
    engine, follower = fakes.open(), fakes.open(follows=Weights("repl-rl-0", are_adapters=True))
    await sample(engine)
    for _ in range(2):
        engine.load_adapter(save_adapter)
    second = engine.weights.label
    for status, says in ((500, "able to read the folder"), (404, "VLLM_ALLOW_RUNTIME_LORA_UPDATING")):
        fakes[1].refused["/v1/load_lora_adapter"] = status
        with pytest.raises(EngineError, match=rf"{fakes[1].url}.*{says}"):
            engine.load_adapter(save_adapter)
        fakes[1].refused.clear()
        await until(lambda: up(engine) == [True, True])
    assert engine.weights.label == second
    assert [path.parent.name for path in fakes.folder.glob("*/*/*")] == [second]
    assert all(fake.adapters and fake.adapters[-1] == second for fake in fakes)
    await sample(engine)
    follower.adopt(engine.weights)
    await sample(follower)
    asked = [request.get("model") for fake in fakes for request in fake.requests]
    assert sorted(map(str, asked)) == sorted(["None", second, second])


async def test_a_server_of_which_one_rank_has_not_loaded_its_weights_is_left_out(fakes: Fakes) -> None:
    engine = fakes.open()
    fakes[1].has_unloaded_rank = True
    engine.load_weights(new_weights())
    assert up(engine) == [True, False]
    assert fakes[1].label != engine.weights.label
    await sample(engine)
    assert fakes.requests == [1, 0]
    fakes[1].has_unloaded_rank = False
    await until(lambda: up(engine) == [True, True])
    assert fakes[1].label == engine.weights.label


@pytest.mark.parametrize(("unlike", "says"), UNUSUAL["for sampling only"].values())
async def test_some_servers_can_be_sampled_from_and_take_no_weights(
    fakes: Fakes, unlike: dict[str, Any], says: str
) -> None:
    for name, value in unlike.items():
        setattr(fakes[0], name, value)
    engine = fakes.open(fakes[0])
    assert (await sample(engine)).finish is Finish.NEWLINE
    with pytest.raises(ConfigError, match=says):
        engine.load_weights(new_weights())


async def test_a_server_that_was_restarted_unseen_is_given_the_weights_before_its_tokens_count(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0], between_checks_s=600)
    engine.load_weights(new_weights())
    fakes[0].label = "default"
    await sample(engine)
    assert fakes[0].label == engine.weights.label
    assert fakes.requests == [2, 0]


@pytest.mark.more
async def test_a_machine_that_is_lost_while_it_loads_weights_is_given_up(fakes: Fakes) -> None:
    """No connection to it is closed, and loading may take half an hour."""
    engine = fakes.open(health_s=1.0, weights_s=1800)
    back = threading.Event()

    def load(body: dict[str, Any]) -> dict[str, int]:
        back.wait(300)
        return {"loaded": 1}

    fakes[0].load = load
    try:
        engine.load_weights(new_weights())
        assert up(engine) == [False, True]
        assert "/health: no answer in time" in str(engine.servers[0].trouble)
        assert fakes[1].label == engine.weights.label != fakes[0].label
    finally:
        back.set()
    await until(lambda: up(engine) == [True, True])
    assert fakes[0].label == engine.weights.label


async def test_new_weights_wait_for_a_server_to_be_back(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0], no_server_s=300)
    fakes[0].stop()
    await until(lambda: up(engine) == [False])
    loading = asyncio.create_task(asyncio.to_thread(engine.load_weights, new_weights()))
    await asyncio.sleep(0.3)
    assert not loading.done()
    fakes[0].start()
    await loading
    assert engine.version == 1
    assert fakes[0].label == engine.weights.label


def test_without_a_server_new_weights_are_an_error_and_leave_no_file(fakes: Fakes) -> None:
    engine = fakes.open(fakes[0])
    fakes[0].stop()
    with pytest.raises(EngineError, match=rf"no vLLM server came back within 1 s:\n  {fakes[0].url}: .*Cannot connect"):
        engine.load_weights(new_weights())
    assert engine.version == 0
    assert list(fakes.folder.rglob("*.safetensors*")) == []


def test_each_server_has_ranks_of_its_own_in_a_transfer(fakes: Fakes) -> None:
    bodies: list[tuple[str, Any]] = []
    ended: list[bool] = []
    for fake, size in zip(fakes, (4, 2), strict=True):
        fake.workers = size
        fake.on_transfer = lambda path, body: bodies.append((path, body))
    engine = fakes.open()
    clients = [server.client for server in engine.servers]
    group = ServerGroup(clients, engine._loop.run, lambda: ended.append(True))
    group.init_weight_transfer_engine({"port": 5})
    group.update_weights({"names": []})
    begun = [body["init_info"] for path, body in bodies if path == "/init_weight_transfer_engine"]
    assert sorted(info["rank_offset"] for info in begun) == [1, 5]
    assert {info["port"] for info in begun} == {5}
    fakes[1].refused["/update_weights"] = 500
    with pytest.raises(EngineError, match="HTTP 500"):
        group.update_weights({"names": []})
    assert ended == [True]


# Engines that follow the weights of another process.


async def test_an_engine_that_follows_goes_on_with_later_weights_and_gives_none(fakes: Fakes) -> None:
    leader = fakes.open(fakes[0])
    follower = fakes.open(fakes[0], follows=leader.weights, no_server_s=300)
    assert (await sample(follower)).versions == ((0, 0),)
    for version in (1, 2):
        leader.load_weights(new_weights())
        assert (await sample(follower)).versions == ((0, version),)
        assert follower.version == version
    follower.adopt(leader.weights)
    given = len(fakes[0].events)
    with pytest.raises(EngineError, match="follows the weights of another one"):
        follower.load_weights(new_weights())
    leader.close()
    fakes[0].label = "default"  # as after a restart
    line = sampling(follower)
    await until(lambda: "until the trainer has given it its own" in str(follower.servers[0].trouble))
    assert up(follower) == [False]
    fakes[0].label = leader.weights.label
    assert (await line).versions == ((0, 2),)
    assert len(fakes[0].events) == given


@pytest.mark.parametrize("label", ["default", "repl-rl-00000000-7", "repl-rl-7", "on the way to it"])
def test_labels_of_other_trainers_are_not_followed(label: str) -> None:
    weights = Weights("repl-rl-abcdef01", 3)
    assert weights.later(label) is None
    assert weights.later("repl-rl-abcdef01-2") is None
    assert weights.later("repl-rl-abcdef01-12") == Weights("repl-rl-abcdef01", 12)


async def test_an_engine_that_follows_opens_without_a_server_that_is_away(fakes: Fakes) -> None:
    """As the engine of a worker that is started again after its machine was lost, a server's as well."""
    directory = Directory(*fakes)
    leader = fakes.open(locate=directory.locate)
    del directory.urls[fakes[0].url]
    fakes[0].stop()
    follower = fakes.open(locate=directory.locate, follows=leader.weights)
    assert up(follower) == [False, True]
    assert (await sample(follower)).finish is Finish.NEWLINE
    with pytest.raises(EngineError, match=r"is gone, and no machine has room(.|\n)*has to be up at the start"):
        fakes.open(locate=directory.locate)
    fakes[1].stop()
    with pytest.raises(EngineError, match="has to be up at the start"):
        fakes.open(follows=leader.weights)
