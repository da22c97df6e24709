"""A client of one vLLM server: HTTP calls, checks of what the server is, and requests for lines.

There are two kinds of failure: `ServerUnreachable` may pass (no connection, no answer in time, a 5xx); `ServerRefused`
will not (a 4xx, or an answer that is not vLLM's). Nothing is retried here. Cancelling a call closes its connection, and
vLLM then aborts the request.

`inspect` asks a server what it is, and whether it serves the trainer's model. A server with a wrong model or setting
would still give plausible tokens. Each mismatch is therefore an error before anything is sampled, with the URL, the
value and the remedy.

Lines are requested from vLLM's `/inference/v1/generate` rather than `/v1/completions`, because it takes the sampling
parameters as they are (no defaults from the checkpoint's generation config), its logprobs carry integer ids, and it
names the weight version that sampled each token.

Not covered: a server without `VLLM_SERVER_DEV_MODE=1` does not tell its dtype, and no server tells whether a checkpoint
of the same name and tokenizer holds the same weights.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SAMPLING, Finish, SampledLine
from repl_rl.engine.vocabulary import LINE_KEY, Vocabulary
from repl_rl.errors import ConfigError, EngineError, ModelError

_RETRIABLE = frozenset({408, 425, 429})
"""Statuses below 500 that may pass: request timeout, too early, too many requests."""
SUPPORTED = SpecifierSet(">=0.32,<0.33")
PROBE = "def f(x):\n    return [x, '\\t', 3.14e-10, 1234567]\n\n\nprint(f('naïve 漢字 🙂'))  # ok?\n"
"""Code, blank lines, digits and characters beyond ASCII: what tokenizers split in different ways."""
CHECKPOINT = "default"
"""vLLM's name for the weights that a server was started with."""

WORKER_EXTENSION = "repl_rl.engine.server.worker.WeightsFromFiles"
SCHEDULER = "repl_rl.engine.vllm.scheduler.ServerLineScheduler"
GENERATE = "/inference/v1/generate"
"""vLLM's route that takes token ids and returns token ids."""
CLAMPED = -9999.0
"""What vLLM's front end sends for a log-probability that is not a number, or minus infinity."""


class ServerUnreachable(EngineError):
    """No answer, or one that says that the server has failed."""


class ServerSilent(ServerUnreachable):
    """No answer in time: it may be busy."""


class ServerRefused(EngineError):
    """An answer that a retry would not change."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """How long the engine waits, in seconds."""

    connect_s: float = 5.0
    """For a connection."""
    health_s: float = 5.0
    """For the answer to a small request, such as a health check."""
    handshake_s: float = 60.0
    """For an answer about what the server is; the first one may be slow."""
    request_s: float = 300.0
    """For one line, including the time in the server's queue."""
    weights_s: float = 1800.0
    """For one server to load new weights."""
    between_checks_s: float = 2.0
    """From one health check of a server to the next."""
    no_server_s: float = 300.0
    """For any server to come back, once all are down."""
    backoff_s: float = 0.2
    """Before a failed request is sent again; doubled each time."""


class ServerClient:
    """HTTP calls to one server. Raises ConfigError for an invalid base URL."""

    def __init__(self, url: str, session: aiohttp.ClientSession, timeouts: ServerTimeouts) -> None:
        self.url = base_url(url)
        self._session = session
        self.timeouts = timeouts

    def at(self, url: str) -> ServerClient:
        """A client of the server at another URL."""
        return ServerClient(url, self._session, self.timeouts)

    async def get(self, path: str, wait_s: float | None = None) -> Any:
        return await self._call("GET", path, None, wait_s)

    async def post(self, path: str, body: Any = None, wait_s: float | None = None, **options: Any) -> Any:
        """`options` are `headers`, and a function to `read` an answer that is not JSON."""
        return await self._call("POST", path, body, wait_s, **options)

    async def worker_call(self, method: str, **arguments: Any) -> list[Any]:
        """Run a method of the worker extension in each of the server's workers (`repl_rl.engine.server.worker`)."""
        body = {"method": method, "kwargs": arguments, "timeout": self.timeouts.weights_s}
        answer = await self.post("/collective_rpc", body, self.timeouts.weights_s)
        return list((answer or {}).get("results", ()))

    async def load_adapter(self, name: str, folder: str) -> None:
        """Serve PEFT's adapter in `folder` under a name. Raises ServerRefused with vLLM's reason if it can't."""
        body = {"lora_name": name, "lora_path": folder}
        try:
            await self.post("/v1/load_lora_adapter", body, self.timeouts.weights_s, read=str)
        except ServerSilent:
            raise
        except ServerUnreachable as error:
            await self.get("/health")  # if it still answers, the adapter was the reason
            raise ServerRefused(
                f"{error}; the server has to be able to read the folder, and to take the rank"
            ) from error
        except ServerRefused as error:
            if error.status != 404:
                raise
            raise ServerRefused(
                f"{self.url} was started with --enable-lora and takes no adapters; start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment as well"
            ) from error

    async def unload_adapter(self, name: str) -> None:
        """Stop serving an adapter, if it is served."""
        with suppress(ServerRefused):
            await self.post("/v1/unload_lora_adapter", {"lora_name": name}, self.timeouts.handshake_s, read=str)

    async def _call(
        self,
        method: str,
        path: str,
        body: Any,
        wait_s: float | None,
        headers: Mapping[str, str] | None = None,
        read: Callable[[str], Any] = json.loads,
    ) -> Any:
        route, _, _ = path.partition("?")
        where = f"{self.url}{route}"
        if wait_s is None:
            wait_s = self.timeouts.health_s
        timeout = aiohttp.ClientTimeout(total=wait_s, connect=self.timeouts.connect_s)
        try:
            request = self._session.request(method, self.url + path, json=body, timeout=timeout, headers=headers)
            async with request as response:
                status = response.status
                text = await response.text(errors="replace")
        except TimeoutError as error:
            raise ServerSilent(f"{where}: no answer in time ({wait_s:g} s)") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(f"{where}: {error or type(error).__name__}") from error
        if status >= 500 or status in _RETRIABLE:
            raise ServerUnreachable(f"{where}: HTTP {status}: {_message(text)}")
        if status == 401:
            raise ServerRefused(f"{where} wants an API key; set VLLM_API_KEY to the one it was started with", status)
        if status >= 400:
            raise ServerRefused(f"{where}: HTTP {status}: {_message(text)}", status)
        try:
            return read(text) if text else None
        except ValueError as error:
            raise ServerRefused(
                f"{where} does not answer in JSON, so it is not a vLLM server: {text[:80]!r}"
            ) from error


def base_url(url: str) -> str:
    """`url` without a final slash or `/v1`. Raises ConfigError if it is not a base URL."""
    parts = urlsplit(url)
    has_host = parts.scheme in ("http", "https") and parts.netloc
    if not has_host or parts.query or parts.fragment:
        raise ConfigError(f"engine.servers: {url!r} is not a base URL; write it as http://host:8000")
    return url.rstrip("/").removesuffix("/v1")


def _message(text: str) -> str:
    """The message in an error response of vLLM's, or the response's first characters."""
    try:
        answer = json.loads(text)
        return str(answer["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].strip() or "no reason given"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a server has to be."""

    names: tuple[str, ...]
    """Names of the model: its path or hub id, as resolved and as the config has it."""
    dtype: str
    context_tokens: int
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server tells about itself. None: it does not tell."""

    version: str
    label: str | None = None
    """The label of its weights."""
    dtype: str | None = None
    worker_extension: str | None = None
    quantization: str | None = None
    cache_dtype: str | None = None
    """Of its keys and values; `auto` is the weights' own."""
    transfer: str | None = None
    """The backend of vLLM's weight transfer that it was started with."""
    device: str | None = None
    """`cpu`, `cuda`, ..."""
    stop_digest: str | None = None
    """`Vocabulary.digest` of the table by which it ends lines; None without our scheduler."""
    ranks: int = 1
    """The number of engines behind its URL, among which requests may choose; 1 if it does not tell."""
    most_requests: int | None = None
    """How many it holds in the batches of all its engines together."""
    takes_adapters: bool = False
    """Whether it was started with `--enable-lora`."""


def takes_seeds(facts: ServerFacts) -> bool:
    """Whether requests may have seeds. On a CPU, vLLM without our extension fails at a seeded one with a long prompt,
    which it computes in parts."""
    return facts.device != "cpu" or facts.worker_extension == WORKER_EXTENSION


def serve_flags(dtype: str, context_tokens: int) -> list[str]:
    """The flags of `vllm serve` that every server needs (docs/engines.md)."""
    flags = f"--dtype {dtype} --max-model-len {context_tokens} --enable-scale-out --logprobs-mode processed_logprobs"
    return f"{flags} --worker-extension-cls {WORKER_EXTENSION} --scheduler-cls {SCHEDULER}".split()


def serve_command(wanted: Wanted) -> str:
    """The command that starts a server as wanted."""
    flags = " ".join(serve_flags(wanted.dtype, wanted.context_tokens))
    return f"VLLM_SERVER_DEV_MODE=1 vllm serve {wanted.names[0]} {flags}   # see docs/engines.md"


async def inspect(client: ServerClient, wanted: Wanted) -> ServerFacts:
    """Ask a server what it is. Raises ServerUnreachable, or EngineError, ModelError or ConfigError for what is wrong.

    A server that was left paused, because a trainer died while it loaded weights, is resumed.
    """
    try:
        await client.get("/health")
        wait_s = client.timeouts.handshake_s
        version = await _version(client)
        models = await client.get("/v1/models", wait_s)
        cards = models["data"]
        probe = await client.post("/tokenize", {"prompt": PROBE, "add_special_tokens": False}, wait_s)
        probe_ids = tuple(probe["tokens"])
        server_info = await _dev_answer(client, "/server_info?config_format=json")
        weight_info = await _dev_answer(client, "/weight_info")
        pause_info = await _dev_answer(client, "/is_paused")
        if pause_info.get("is_paused"):
            await client.post("/resume")

        config = server_info.get("vllm_config", {})
        model = config.get("model_config", {})
        parallel = config.get("parallel_config", {})
        dtype = model.get("dtype")
        if dtype is not None:
            dtype = str(dtype).removeprefix("torch.")
        _check(client.url, cards, probe_ids, dtype, wanted)

        ranks = int(parallel.get("data_parallel_size", 1))
        if parallel.get("data_parallel_external_lb") or parallel.get("data_parallel_hybrid_lb"):
            ranks = 1  # each engine has a URL of its own
        most_requests = config.get("scheduler_config", {}).get("max_num_seqs")
        if most_requests is not None:
            most_requests = int(most_requests) * ranks
        stop_digest = await _stop_digest(client, wanted)
        return ServerFacts(
            version=version,
            stop_digest=stop_digest,
            label=weight_info.get("weight_version"),
            dtype=dtype,
            worker_extension=parallel.get("worker_extension_cls"),
            quantization=model.get("quantization"),
            cache_dtype=config.get("cache_config", {}).get("cache_dtype"),
            transfer=(config.get("weight_transfer_config") or {}).get("backend"),
            device=config.get("device_config", {}).get("device"),
            ranks=ranks,
            most_requests=most_requests,
            takes_adapters=config.get("lora_config") is not None,
        )
    except ConfigError:  # it is a ValueError, and says already what is wrong
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{client.url} answers in a form that vLLM 0.32 does not have: {error!r}") from error


def _check(url: str, cards: Any, probe_ids: tuple[int, ...], dtype: str | None, wanted: Wanted) -> None:
    """Raises ModelError or ConfigError for the first thing that is wrong."""
    names: list[str] = []
    for card in cards:
        for key in ("id", "root"):
            name = str(card.get(key) or card["id"])
            if name not in names:
                names.append(name)
    most_tokens = int(cards[0]["max_model_len"])
    # A name may be a path, and different paths may lead to one folder.
    served_paths = {os.path.realpath(name) for name in names}
    wanted_paths = {os.path.realpath(name) for name in wanted.names}
    if served_paths.isdisjoint(wanted_paths):
        raise ModelError(
            f"{url} serves {' alias '.join(map(repr, names))}, and the model is {wanted.names[0]!r}; start it "
            f"with that model, or, if it is the same one at another path, with --served-model-name {wanted.names[0]}"
        )
    if probe_ids != wanted.vocabulary.encode_output(PROBE):
        raise ModelError(
            f"{url} has another tokenizer than {wanted.names[0]!r}: they give a probe text different ids; "
            "start the server with the checkpoint that the config names"
        )
    if most_tokens < wanted.context_tokens:
        raise ConfigError(
            f"{url} takes {most_tokens} tokens, and engine.context_tokens is {wanted.context_tokens}; "
            f"start it with --max-model-len {wanted.context_tokens}, or lower engine.context_tokens"
        )
    if dtype not in (None, wanted.dtype):
        raise ConfigError(
            f"{url} computes in {dtype}, and model.dtype is {wanted.dtype}: sampler and trainer would drift "
            f"apart; start it with --dtype {wanted.dtype}, or change model.dtype"
        )


def agree(first: tuple[str, ServerFacts], url: str, facts: ServerFacts) -> None:
    """Raises EngineError if a server differs from the first one in what may change a sample."""
    first_url, first_facts = first
    names = "version dtype quantization cache_dtype worker_extension transfer stop_digest takes_adapters"
    for name in names.split():
        first_value = getattr(first_facts, name)
        value = getattr(facts, name)
        if value != first_value:
            raise EngineError(
                f"the servers differ in {name.replace('_', ' ')}: {first_url} has {first_value!r} and {url} has "
                f"{value!r}; start them all with the same vLLM and the same flags"
            )


async def _version(client: ServerClient) -> str:
    try:
        answer = await client.get("/version")
        version = str(answer["version"])
        supported = Version(version).base_version in SUPPORTED
    except (ServerRefused, KeyError, TypeError, InvalidVersion) as error:
        raise EngineError(f"{client.url} is not a vLLM server: /version does not tell its version") from error
    if not supported:
        raise EngineError(
            f"{client.url} runs vLLM {version}, and this version of repl_rl speaks with {SUPPORTED}; "
            "install one of these there"
        )
    return version


async def _stop_digest(client: ServerClient, wanted: Wanted) -> str | None:
    """The digest of the server's stop table, which has to be ours; None without our scheduler.

    One request tells three things. Its prompt is our highest token with a newline: a server with a smaller vocabulary
    refuses it. It asks for a table with an empty digest, which no table has, so our scheduler gives the digest of its
    own table as the reason to stop. And `top_k` 1 leaves a single token, whose log-probability is 0 if the server
    computes it after the sampling settings.
    """
    highest_id = max(wanted.vocabulary.stop_ids)
    end = {"extra_args": {LINE_KEY: [wanted.vocabulary.stops.decode(), ""]}}
    sampling = SamplingConfig(temperature=1.0, top_k=1)
    request = line_request([highest_id], 1, sampling, end, label="probe")
    try:
        answer = await client.post(GENERATE, request, client.timeouts.handshake_s)
        choice = answer["choices"][0]
    except ServerRefused as error:
        if error.status in (403, 404):
            raise EngineError(
                f"{client.url} does not take tokens in and give tokens out; start it with --enable-scale-out"
            ) from error
        if "out of vocabulary" in str(error):
            raise ModelError(
                f"{client.url} does not know token {highest_id} of {wanted.names[0]!r}: its vocabulary is smaller; "
                "start the server with the checkpoint that the config names"
            ) from error
        raise
    if float(choice["logprobs"]["content"][0]["logprob"]) != 0.0:
        raise EngineError(
            f"{client.url} gives log-probabilities from before temperature, top_p and top_k; start it with "
            "--logprobs-mode processed_logprobs"
        )
    digest = choice.get("stop_reason")
    if not isinstance(digest, str):
        return None
    if digest != wanted.vocabulary.digest:
        raise ModelError(
            f"{client.url} ends lines and texts at other tokens than {wanted.names[0]!r} ({digest}); start it with "
            "the checkpoint that the config names, and the same version of repl_rl"
        )
    return digest


async def _dev_answer(client: ServerClient, path: str) -> dict[str, Any]:
    """The answer of a route that vLLM has only in development mode; empty without that mode."""
    try:
        answer = await client.get(path, client.timeouts.handshake_s)
    except ServerRefused as error:
        if error.status in (404, 405):
            return {}
        raise
    return answer if isinstance(answer, dict) else {}


def line_end(facts: ServerFacts, vocabulary: Vocabulary) -> dict[str, Any]:
    """The sampling parameters that end a request with its line: a name for the server's table, or a list of ids."""
    if facts.stop_digest is not None:
        return {"extra_args": {LINE_KEY: [vocabulary.stops.decode(), vocabulary.digest]}}
    return {"stop_token_ids": sorted(vocabulary.stop_ids | vocabulary.eos_ids)}


def line_request(
    ids: Sequence[int],
    max_tokens: int,
    sampling: SamplingConfig,
    end: Mapping[str, Any],
    label: str,
    seed: int | None = None,
    adapter: str | None = None,
) -> dict[str, Any]:
    """The request body for one line.

    `label` names the weights; what was cached with other weights is not reused. `adapter` is the name of the adapter to
    sample with. Without a `seed`, servers that were started alike answer alike: they all begin with the same random
    numbers.
    """
    sampling_params = {name: getattr(sampling, name) for name in SAMPLING}
    sampling_params["max_tokens"] = max_tokens
    sampling_params["logprobs"] = 0  # of the sampled token alone
    sampling_params["detokenize"] = False
    if seed is not None:
        sampling_params["seed"] = seed
    sampling_params.update(end)
    body = {"token_ids": list(ids), "cache_salt": label, "sampling_params": sampling_params}
    if adapter is not None:
        body["model"] = adapter
    return body


def read_answer(url: str, answer: Any, vocabulary: Vocabulary) -> tuple[SampledLine, frozenset[str]]:
    """The line in an answer, and the weight versions that its tokens were sampled with.

    Raises EngineError for a log-probability that is not finite, ServerUnreachable for a request that the server
    aborted, and ServerRefused for an answer of another form.
    """
    try:
        choice = answer["choices"][0]
        reason = str(choice["finish_reason"])
        if isinstance(choice.get("stop_reason"), str):
            raise ServerUnreachable(f"{url} has another table of ends than at first: {choice['stop_reason']}")
        if reason == "abort" or not choice["token_ids"]:
            raise ServerUnreachable(f"{url} gave up a request (finish reason {reason!r})")
        ids = tuple(int(index) for index in choice["token_ids"])
        entries = choice["logprobs"]["content"]
        entry_ids = tuple(int(entry["token_id"]) for entry in entries)
        logprobs = tuple(_logprob(entry) for entry in entries)
        labels = frozenset(str(span["version"]) for span in choice["weight_versions"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ServerRefused(f"{url} answered a request for tokens in a form that vLLM 0.32 does not have") from error
    if entry_ids != ids:
        raise EngineError(f"{url} answered with log-probabilities of {entry_ids} for the tokens {ids}")
    if not all(math.isfinite(logprob) and logprob > CLAMPED for logprob in logprobs):
        raise EngineError(f"{url} sampled tokens with log-probabilities {logprobs}: the weights are broken")
    last = ids[-1]
    if last in vocabulary.stop_ids:
        finish = Finish.NEWLINE
    elif reason == "length" and last not in vocabulary.eos_ids:
        finish = Finish.LENGTH
    else:
        finish = Finish.EOS
    return SampledLine(ids, logprobs, finish), labels


def _logprob(entry: Mapping[str, Any]) -> float:
    return math.nan if entry["logprob"] is None else float(entry["logprob"])
