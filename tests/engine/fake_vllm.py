"""The routes of `vllm serve` that the server engine uses, for faults that a real one can't be brought to."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from repl_rl.engine import Vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.utils.processes import free_port
from repl_rl.utils.threads import BackgroundLoop

LOGPROB = -0.25
LINE = " x = 1\n"
_TRANSFER_PATHS = (
    "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
)
_TURNS = 10
"""Of the event loop: more than asyncio takes from accepting a connection to telling of it."""

Respond = Callable[["FakeVLLM", dict[str, Any]], Awaitable[web.Response]]


class FakeVLLM:
    """One server. Its attributes are what it says of itself; `respond` is how it answers a request for tokens.

    `requests` keeps the bodies of these requests, `events` what happened, in order.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.port = free_port("127.0.0.1")
        self.version = "0.32.0"
        self.model = str(NANO_PATH)
        self.max_model_len = 512
        self.dtype = "torch.float32"
        self.quantization: str | None = None
        self.cache_dtype = "auto"
        self.extension = "repl_rl.engine.server.worker.WeightsFromFiles"
        self.label = "default"
        self.health = 200
        """0: no answer."""
        self.probe_logprob = 0.0
        self.stop_digest: str | None = None
        """None: it has vLLM's own scheduler."""
        self.tokens: list[int] | None = None
        """What each text is in its vocabulary; None: what it is in `vocabulary`."""
        self.respond: Respond = say_line
        self.load: Callable[[dict[str, Any]], Any] = lambda body: {"loaded": 38}
        self.workers = 1
        self.ranks = 1
        self.asked_ranks: list[str | None] = []
        self.transfer: str | None = None
        self.on_transfer: Callable[[str, Any], None] = lambda path, body: None
        self.max_num_seqs: int | None = None
        self.adapters: list[str] | None = None
        """The names of those that it serves; None: it was started without LoRA."""
        self.has_unloaded_rank = False
        """One of its data-parallel engines has failed to load weights, of which `load` says nothing."""
        self.refused: dict[str, int] = {}
        """The status of the answer, by path."""
        self.paused = False
        self.cards: list[Any] | None = None
        self.aliases: list[str] = []
        self.authorizations: set[str | None] = set()
        self.requests: list[dict[str, Any]] = []
        self.events: list[str] = []
        self._loop = BackgroundLoop()
        self._runner: web.AppRunner | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port each time."""
        self._loop.run(self._start())

    def stop(self) -> None:
        """Drop every connection and listen no more."""
        if self._runner is not None:
            self._loop.run(self._stop(self._runner))
            self._runner = None

    def close(self) -> None:
        self.stop()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._route)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._runner.server, "127.0.0.1", self.port, reuse_address=True)

    async def _stop(self, runner: web.AppRunner) -> None:
        """Accept no more, let those in whom asyncio has accepted, and drop them all. A server that is closed in between
        would leave them open for ever."""
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._server.close()
        await runner.cleanup()

    async def _route(self, request: web.Request) -> web.Response:
        self.authorizations.add(request.headers.get("Authorization"))
        if request.path in self.refused:
            return web.json_response({"detail": "no"}, status=self.refused[request.path])
        body = json.loads(await request.text() or "null")
        if request.path == "/inference/v1/generate":
            self.asked_ranks.append(request.headers.get("X-data-parallel-rank"))
            return await self._generate(body)
        if request.path == "/health":
            if not self.health:
                await asyncio.sleep(60)
            return web.Response(status=self.health)
        if request.path in ("/pause", "/resume", "/reset_prefix_cache"):
            self.events.append(request.path)
            self.paused = {"/pause": True, "/resume": False}.get(request.path, self.paused)
            return web.json_response({})
        return web.json_response(self._answer(request.path, body))

    def _answer(self, path: str, body: Any) -> Any:
        if path == "/collective_rpc":
            self.events.append(body["method"])
            if body["method"] == "repl_rl_require_loaded" and self.has_unloaded_rank:
                raise web.HTTPInternalServerError(text="a worker has not loaded its weights")
            return {"results": [None if body["method"] == "repl_rl_require_loaded" else self.load(body)]}
        if path in _TRANSFER_PATHS:
            self.on_transfer(path, body)
        if path.endswith("_lora_adapter") and self.adapters is not None:
            change = self.adapters.append if "/load" in path else self.adapters.remove
            if "/load" in path or body["lora_name"] in self.adapters:
                change(body["lora_name"])
            return "done"
        if path == "/update_weight_version":
            self.label = body["new_version"]
        names = [self.model, *self.aliases]
        cards = [{"id": name, "root": self.model, "max_model_len": self.max_model_len} for name in names]
        config = {
            "model_config": {"dtype": self.dtype, "quantization": self.quantization},
            "cache_config": {"cache_dtype": self.cache_dtype},
            "parallel_config": {"worker_extension_cls": self.extension, "data_parallel_size": self.ranks},
            "weight_transfer_config": None if self.transfer is None else {"backend": self.transfer},
            "scheduler_config": {"max_num_seqs": self.max_num_seqs},
            "lora_config": None if self.adapters is None else {},
        }
        return {
            "/version": {"version": self.version},
            "/v1/models": {"data": cards if self.cards is None else self.cards},
            "/tokenize": {"tokens": self.tokens or self.vocabulary.encode_output((body or {}).get("prompt", ""))},
            "/server_info": {"vllm_config": config},
            "/weight_info": {"weight_version": self.label},
            "/update_weight_version": {},
            "/is_paused": {"is_paused": self.paused},
            "/get_world_size": {"world_size": self.workers},
            **{path: {} for path in _TRANSFER_PATHS},
        }[path]

    async def _generate(self, body: dict[str, Any]) -> web.Response:
        if body["sampling_params"]["top_k"] == 1:
            answer = tokens_answer([5], [self.probe_logprob], self.label, "length")
            answer["choices"][0]["stop_reason"] = self.stop_digest
            return web.json_response(answer)
        self.requests.append(body)
        return await self.respond(self, body)


def tokens_answer(ids: list[int], logprobs: list[Any], label: str, reason: str = "stop") -> dict[str, Any]:
    content = [{"token_id": index, "logprob": value} for index, value in zip(ids, logprobs, strict=True)]
    span = {"version": label, "start": 0, "end": len(ids)}
    choice = {"finish_reason": reason, "token_ids": ids, "logprobs": {"content": content}, "weight_versions": [span]}
    return {"choices": [choice]}


def saying(last_logprob: Any) -> Respond:
    """A line whose last token has this log-probability."""

    async def respond(server: FakeVLLM, body: dict[str, Any]) -> web.Response:
        ids = list(server.vocabulary.encode_output(LINE))
        return web.json_response(tokens_answer(ids, [LOGPROB] * (len(ids) - 1) + [last_logprob], server.label))

    return respond


say_line = saying(LOGPROB)


def failing(status: int, times: int = 1_000_000) -> Respond:
    """An error, `times` times; then lines."""
    left = [times]

    async def respond(server: FakeVLLM, body: dict[str, Any]) -> web.Response:
        if left[0] == 0:
            return await say_line(server, body)
        left[0] -= 1
        return web.json_response({"error": {"message": "so it is"}}, status=status)

    return respond


async def hang(server: FakeVLLM, body: dict[str, Any]) -> web.Response:
    """No answer, until the client goes away."""
    server.events.append("asked")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        server.events.append("client went away")
        raise
    raise AssertionError("nobody came")
