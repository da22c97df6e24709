"""A sub-model behind OpenAI's API: a real server that answers, is slow, is wrong, or is not there."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from scripted import AskedEngine, rollout_of
from vocabularies import nano
from waiting import until_async

from repl_rl.config import SamplingConfig, SubcallsConfig
from repl_rl.kernel import KernelPool
from repl_rl.rollout.subcalls import NoAnswerError, ServedModel, SubCalls
from repl_rl.trajectory import Task, Trajectory

pytestmark = pytest.mark.more


class Server:
    """What OpenAI's API looks like to a client. `answer` makes the answer to a prompt, or the whole response."""

    def __init__(self, answer: Callable[[str], Any] = "about {}".format) -> None:
        self.answer = answer
        self.bodies: list[Any] = []
        self.keys: list[str | None] = []
        self.under_way = self.most = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """The server's URL."""
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/chat/completions", self._complete)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "small"}, {"id": "large"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            made = self.answer(body["messages"][0]["content"])
            if asyncio.iscoroutine(made):
                made = await made
        finally:
            self.under_way -= 1
        if isinstance(made, web.StreamResponse):
            return made
        message = {"role": "assistant", "content": made}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return web.json_response({"choices": [{"index": 0, "message": message}], "usage": usage})


async def played(typed: list[str], pool: KernelPool, subcalls: dict[str, Any], **setup: Any) -> Trajectory:
    given: dict[str, Any] = {"context_tokens": 8192, "budget": {"line_tokens": 400, "tokens": 6000}, **setup}
    rollout = rollout_of(AskedEngine(nano(), typed), pool, subcalls=subcalls, environment="rlm", **given)
    [made] = await rollout.many([Task("t", "What?", "", metadata={"context": "x"})])
    return made


async def test_a_session_asks_a_server(pool: KernelPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    server = Server()
    async with server.open() as url:
        sampling, typed = SamplingConfig(temperature=0.7, top_p=0.9), ["FINAL(llm_query_batched(list('abc')))\n"]
        made = await played(typed, pool, {"model": url, "call_tokens": 9}, sampling=sampling)
    assert made.answer == ("['about a', 'about b', 'about c']",)
    assert [(call.prompt_tokens, call.tokens) for call in made.lines[0].subcalls] == [(3, 2)] * 3
    first = next(body for body in server.bodies if body["messages"] == [{"role": "user", "content": "a"}])
    assert first == {
        "model": "small",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    assert server.keys == ["Bearer key"] * 3


def said_by(answer: Callable[[str], Any], wait_s: float = 60.0, name: str | None = "small") -> tuple[str, str | None]:
    """What the session reads, with the server's address taken out, and the name of the error."""

    async def go() -> tuple[str, str | None]:
        async with Server(answer).open() as url:
            calls = SubCalls(ServedModel(f"{url}/v1/", name, wait_s), SubcallsConfig(), SamplingConfig())
            [text] = await calls.ask(["what?"])
            [call] = await calls.take()
        return text.replace(url, "URL"), call.error_name

    return asyncio.run(go())


async def never(prompt: str) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda prompt: web.Response(status=404, text="no model gpt-7"), "with HTTP 404: no model gpt-7"),
        (lambda prompt: web.Response(text="busy"), "with something that is not JSON"),
        (lambda prompt: web.json_response({"choices": []}), "in another form than OpenAI's API"),
        (lambda prompt: web.json_response([1]), "in another form than OpenAI's API"),
    ],
)
def test_a_server_that_answers_something_else(answer: Callable[[str], Any], said: str) -> None:
    assert said_by(answer) == (f"[no answer: URL answered {said}]", "server")


def test_a_server_that_is_slow_or_has_nothing_to_say() -> None:
    assert said_by(never, wait_s=0.3) == ("[no answer: URL did not answer within 0.3 s]", "late")
    assert said_by(lambda prompt: web.json_response({"choices": [{"message": {"content": None}}]})) == ("", None)


async def test_a_server_that_is_down_costs_the_question_and_not_the_run(pool: KernelPool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    made = await played(["llm_query('a')\n", "FINAL(2)\n"], pool, {"model": url})
    assert made.lines[0].shown == f'"[no answer: {url} can\'t be reached (ClientConnectorError)]"\n'
    assert made.answer == ("2",)


async def test_calls_to_a_server_end_when_they_are_given_up() -> None:
    server = Server(never)
    async with server.open() as url:
        calls = SubCalls(ServedModel(url), SubcallsConfig(at_once=4), SamplingConfig())
        asking = asyncio.ensure_future(calls.ask(list("abcdef")))
        await until_async(lambda: server.under_way == 4)
        await calls.close()
        assert asking.cancelled()
        assert server.most == 4


async def test_a_name_is_asked_for_once_and_may_be_given() -> None:
    server = Server()
    async with server.open() as url:
        model = ServedModel(url, "large")
        await model.complete("a", 5, SamplingConfig())
    assert [body["model"] for body in server.bodies] == ["large"]
    with pytest.raises(NoAnswerError, match="can't be reached"):
        await model.complete("a", 5, SamplingConfig())
