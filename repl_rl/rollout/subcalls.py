"""Sub-calls: a session asks a language model, and goes on with the answers. Their tokens are not in its trajectory.

`SubCalls` belongs to one trajectory: it keeps the budgets, and records what was asked. Who answers is a `TextModel`:
the policy itself, whose engine samples the answers among the lines of all trajectories (`PolicyModel`), or a server
with OpenAI's API (`ServedModel`). No question can end a run: what can't be answered is answered with a text in brackets
that says why.

Not covered: with other weights, the answers under way go on, as lines do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repl_rl.config import SamplingConfig, SeededSampling, SubcallsConfig
from repl_rl.engine import Engine, Finish, Vocabulary
from repl_rl.errors import EngineError, ModelError
from repl_rl.trajectory import SubCall
from repl_rl.utils.text import cut_middle

_RECORDED_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer, and how many tokens it took."""

    text: str
    prompt_tokens: int
    tokens: int


class RefusedCallError(Exception):
    """A model that does not answer, and why. The session is told, and nothing else comes of it."""


class TextModel(Protocol):
    """What answers sub-calls. Many calls may be under way."""

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> Completion:
        """Answer with at most `max_tokens` tokens. Raises RefusedCallError."""


class PolicyModel:
    """The model in `engine`, which gets each prompt as a user's message and answers up to its end of turn.

    A model without a chat template continues the prompt up to the end of the line.
    """

    def __init__(self, engine: Engine, vocabulary: Vocabulary, context_tokens: int, chat: bool | None = None) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._is_chat = vocabulary.has_chat_template if chat is None else chat

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> Completion:
        if self._is_chat:
            try:
                ids = list(self._vocabulary.encode_chat([{"role": "user", "content": prompt}], ""))
            except ModelError as error:
                raise RefusedCallError(str(error)) from error
        else:
            ids = list(self._vocabulary.encode_prompt(prompt))
        prompt_tokens = len(ids)
        room = self._context_tokens - max_tokens
        if not 0 < prompt_tokens <= room:
            raise RefusedCallError(f"the prompt has {prompt_tokens:,} tokens, and {room:,} fit beside an answer")
        typed: list[int] = []
        async with self._engine.slot(prompt_tokens + max_tokens, depth) as slot:
            while len(typed) < max_tokens:
                line = await slot.sample_line(ids, max_tokens - len(typed), sampling)
                ids += line.ids
                typed += line.ids
                if line.finish is Finish.EOS or not self._is_chat:
                    break
        tokens = len(typed)
        if typed[-1] in self._vocabulary.eos_ids:
            del typed[-1]
        return Completion(self._vocabulary.decode(typed).strip("\n"), prompt_tokens, tokens)


class ServedModel:
    """A model behind OpenAI's API at a URL. The environment variable OPENAI_API_KEY is sent along if it is set."""

    def __init__(self, url: str, name: str | None = None, wait_s: float = 120.0) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._name = name
        self._wait_s = wait_s

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> Completion:
        name = self._name or await self._first_name()
        body = {
            "model": name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        answer = await self._call("POST", "/v1/chat/completions", body)
        try:
            text, usage = answer["choices"][0]["message"]["content"], answer.get("usage") or {}
            return Completion(
                str(text or ""), int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RefusedCallError(f"{self._url} answered in another form than OpenAI's API") from error

    async def _first_name(self) -> str:
        listed = await self._call("GET", "/v1/models", None)
        try:
            self._name = str(listed["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise RefusedCallError(f"{self._url} lists no model") from error
        return self._name

    async def _call(self, method: str, path: str, body: Any) -> Any:
        import aiohttp

        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=self._wait_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.request(method, self._url + path, json=body) as response,
            ):
                if response.status >= 400:
                    raise RefusedCallError(f"{self._url} answered with HTTP {response.status}")
                return await response.json(content_type=None)
        except TimeoutError as error:
            raise RefusedCallError(f"{self._url} did not answer within {self._wait_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RefusedCallError(f"{self._url} can't be reached ({type(error).__name__})") from error


def make_text_model(
    config: SubcallsConfig, engine: Engine, vocabulary: Vocabulary, context_tokens: int, chat: bool | None
) -> TextModel:
    """The model that a config names."""
    if config.model == "policy":
        return PolicyModel(engine, vocabulary, context_tokens, chat)
    return ServedModel(config.model, config.served_name, config.seconds)


class SubCalls:
    """The sub-calls of one trajectory: an environment's `model`."""

    def __init__(self, model: TextModel, config: SubcallsConfig, sampling: SamplingConfig, depth: int = 1) -> None:
        self._model = model
        self._config = config
        self._sampling = sampling
        self._depth = depth
        self._calls_left = config.calls
        self._tokens_left = config.tokens
        self._batches = 0
        self._calls = 0
        self._permits = asyncio.Semaphore(config.at_once)
        self._recorded: list[SubCall] = []

    async def ask(self, prompts: Sequence[str]) -> list[str]:
        """The answers to prompts, in their order; they are sampled together, `subcalls.at_once` at a time.

        What each may take is set aside before the first is asked, in order, so that the budgets end at the same prompt
        whatever is answered first. Raises EngineError if the policy's engine can't go on.
        """
        allowed: list[int] = []
        for _ in prompts:
            tokens = min(self._config.call_tokens, self._tokens_left) if self._calls_left else 0
            if tokens:
                self._calls_left -= 1
                self._tokens_left -= tokens
            allowed.append(tokens)
        batch, first = self._batches, self._calls
        self._batches += 1
        self._calls += len(prompts)
        calls = await _all(
            self._call(prompt, tokens, batch, first + place)
            for place, (prompt, tokens) in enumerate(zip(prompts, allowed, strict=True))
        )
        self._tokens_left += sum(tokens - call.tokens for tokens, call in zip(allowed, calls, strict=True))
        self._recorded += calls
        return [call.text for call in calls]

    def take(self) -> tuple[SubCall, ...]:
        """What was asked since the last time, with texts that are too long for a record cut."""
        taken, self._recorded = tuple(map(_cut, self._recorded)), []
        return taken

    async def _call(self, prompt: str, tokens: int, batch: int, number: int) -> SubCall:
        began_s, error_name, completion = time.monotonic(), None, Completion("", 0, 0)
        try:
            if not tokens:
                config, spent = self._config, not self._calls_left
                raise RefusedCallError(
                    f"the budget of {config.calls} questions is used up"
                    if spent
                    else f"the budget of {config.tokens} tokens for answers is used up"
                )
            sampling = self._sampling
            if isinstance(sampling, SeededSampling):
                sampling = sampling.model_copy(update={"seed": f"{sampling.seed}/sub-call {number}"})
            async with self._permits:
                completion = await self._model.complete(prompt, tokens, self._depth, sampling)
            text = completion.text
        except RefusedCallError as refused:
            text, error_name = f"[no answer: {refused}]", type(refused).__name__
        return SubCall(
            prompt, text, completion.prompt_tokens, completion.tokens, batch, self._depth, time.monotonic() - began_s,
            error_name,
        )  # fmt: skip


async def _all(calls: Any) -> list[SubCall]:
    """The results of all calls. If one fails, or this is cancelled, none is under way any more."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except* EngineError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _cut(call: SubCall) -> SubCall:
    prompt, text = (
        cut_middle(each, _RECORDED_CHARS, " ... {} characters left out ... ") for each in (call.prompt, call.text)
    )
    return SubCall(
        prompt, text, call.prompt_tokens, call.tokens, call.batch, call.depth, call.duration_s, call.error_name
    )
