"""What a server is, and whether it can stand in for the model that the trainer has. `inspect` asks, `check` judges.

A server of which one thing is wrong would go on to give plausible tokens: each of these is therefore an error before
anything is sampled, with the URL, the value and the way out.

Not covered: a server without `VLLM_SERVER_DEV_MODE=1` does not tell its number type, and no server tells whether a
checkpoint of the same name and tokenizer holds the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from repl_rl.engine.server.client import ServerClient, ServerRefused
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError, EngineError, ModelError

SUPPORTED = SpecifierSet(">=0.32,<0.33")
PROBE = "def f(x):\n    return [x, '\\t', 3.14e-10, 1234567]\n\n\nprint(f('naïve 漢字 🙂'))  # ok?\n"
"""Code, blank lines, digits and characters beyond ASCII: what tokenizers split in different ways."""
CHECKPOINT = "default"
"""vLLM's name for the weights that a server was started with."""

WORKER_EXTENSION = "repl_rl.engine.server.worker.WeightsFromFiles"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a server has to be."""

    names: tuple[str, ...]
    """The model's: path or hub id, as the config and as the file system have it."""
    dtype: str
    context_tokens: int
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself. None: it doesn't say."""

    version: str
    names: tuple[str, ...]
    max_model_tokens: int
    probe_ids: tuple[int, ...]
    probe_logprob: float
    """Of the one token that a sampler with `top_k` 1 can choose: 0 if it is taken after the sampler's settings."""
    label: str | None = None
    """Of its weights."""
    dtype: str | None = None
    worker_extension: str | None = None


def serve_command(wanted: Wanted) -> str:
    """The command that starts a server as it is wanted here."""
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {wanted.names[0]} --dtype {wanted.dtype} "
        f"--max-model-len {wanted.context_tokens} --enable-scale-out --logprobs-mode processed_logprobs "
        f"--worker-extension-cls {WORKER_EXTENSION}   # see docs/servers.md"
    )


async def inspect(client: ServerClient, wanted: Wanted) -> ServerFacts:
    """Ask a server what it is. Raises ServerUnreachable, or EngineError or ModelError where an answer settles it.

    A server that was left paused, by a trainer that died while it loaded weights, is let go on.
    """
    try:
        return await _inspect(client, wanted)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(f"{client.url} answers in a form that vLLM 0.32 does not have: {error!r}") from error


async def _inspect(client: ServerClient, wanted: Wanted) -> ServerFacts:
    await client.get("/health")
    wait_s = client.patience.handshake_s
    version = await _version(client)
    cards = (await client.get("/v1/models", wait_s))["data"]
    probe_ids = (await client.post("/tokenize", {"prompt": PROBE, "add_special_tokens": False}, wait_s))["tokens"]
    config = await _dev_answer(client, "/server_info?config_format=json")
    weights = await _dev_answer(client, "/weight_info")
    if (await _dev_answer(client, "/is_paused")).get("is_paused"):
        await client.post("/resume")
    model_config = config.get("vllm_config", {}).get("model_config", {})
    return ServerFacts(
        version=version,
        names=tuple(dict.fromkeys(str(card.get(key) or card["id"]) for card in cards for key in ("id", "root"))),
        max_model_tokens=int(cards[0]["max_model_len"]),
        probe_ids=tuple(probe_ids),
        probe_logprob=await _probe_logprob(client, wanted),
        label=weights.get("weight_version"),
        dtype=str(model_config["dtype"]).removeprefix("torch.") if "dtype" in model_config else None,
        worker_extension=config.get("vllm_config", {}).get("parallel_config", {}).get("worker_extension_cls"),
    )


def check(url: str, facts: ServerFacts, wanted: Wanted) -> None:
    """Raises EngineError, ModelError or ConfigError for the first thing that is wrong."""
    if not any(_same_model(name, ours) for name in facts.names for ours in wanted.names):
        raise ModelError(
            f"{url} serves {' alias '.join(map(repr, facts.names))}, and the model is {wanted.names[0]!r}; start it "
            f"with that model, or, if it is the same one at another path, with --served-model-name {wanted.names[0]}"
        )
    if facts.probe_ids != wanted.vocabulary.encode_output(PROBE):
        raise ModelError(
            f"{url} has another tokenizer than {wanted.names[0]!r}: they give a probe text different ids; "
            "start the server with the checkpoint that the config names"
        )
    if facts.max_model_tokens < wanted.context_tokens:
        raise ConfigError(
            f"{url} takes {facts.max_model_tokens} tokens, and engine.context_tokens is {wanted.context_tokens}; "
            f"start it with --max-model-len {wanted.context_tokens}, or lower engine.context_tokens"
        )
    if facts.dtype is not None and facts.dtype != wanted.dtype:
        raise ConfigError(
            f"{url} computes in {facts.dtype}, and model.dtype is {wanted.dtype}: sampler and trainer would drift "
            f"apart; start it with --dtype {wanted.dtype}, or change model.dtype"
        )
    if facts.probe_logprob != 0.0:
        raise EngineError(
            f"{url} gives log-probabilities from before temperature, top_p and top_k; start it with "
            "--logprobs-mode processed_logprobs"
        )


def agree(facts: Sequence[tuple[str, ServerFacts]]) -> None:
    """Raises EngineError if servers differ in what may change a sample."""
    (first_url, first), *others = facts
    for url, other in others:
        for name in ("version", "dtype", "worker_extension"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs:
                raise EngineError(
                    f"the servers differ in {name.replace('_', ' ')}: {first_url} has {ours!r} and {url} has "
                    f"{theirs!r}; start them all with the same vLLM and the same flags"
                )


async def _version(client: ServerClient) -> str:
    try:
        version = str((await client.get("/version"))["version"])
        supported = Version(version).base_version in SUPPORTED
    except (ServerRefused, KeyError, TypeError, InvalidVersion) as error:
        raise EngineError(f"{client.url} is no vLLM server: /version does not tell one") from error
    if not supported:
        raise EngineError(
            f"{client.url} runs vLLM {version}, and this version of repl_rl speaks with {SUPPORTED}; "
            "install one of these there"
        )
    return version


async def _probe_logprob(client: ServerClient, wanted: Wanted) -> float:
    """The log-probability of the only token that `top_k` 1 leaves. The prompt is our last token with a newline."""
    last = max(wanted.vocabulary.stop_ids)
    sampling = {"temperature": 1.0, "top_k": 1, "max_tokens": 1, "logprobs": 0, "detokenize": False}
    try:
        answer = await client.generate({"token_ids": [last], "sampling_params": sampling}, client.patience.handshake_s)
        return float(answer["choices"][0]["logprobs"]["content"][0]["logprob"])
    except ServerRefused as error:
        if error.status in (403, 404):
            raise EngineError(
                f"{client.url} does not take tokens in and give tokens out; start it with --enable-scale-out"
            ) from error
        if "out of vocabulary" in str(error):
            raise ModelError(
                f"{client.url} does not know token {last} of {wanted.names[0]!r}: its vocabulary is smaller; start "
                "the server with the checkpoint that the config names"
            ) from error
        raise


async def _dev_answer(client: ServerClient, path: str) -> dict[str, Any]:
    """The answer of a route that vLLM has in its development mode only; empty without."""
    try:
        answer = await client.get(path, client.patience.handshake_s)
    except ServerRefused as error:
        if error.status in (404, 405):
            return {}
        raise
    return answer if isinstance(answer, dict) else {}


def _same_model(theirs: str, ours: str) -> bool:
    return theirs == ours or os.path.realpath(theirs) == os.path.realpath(ours)
