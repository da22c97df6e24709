"""Sub-calls: a session asks a language model, and goes on with the answers. Their tokens are not in its trajectory.

`SubCalls` belongs to one trajectory: it keeps the budgets and records what was asked. Who answers is a `TextModel`:
the policy itself, whose engine samples the answers among the lines of all trajectories (`PolicyModel`), or a server
with OpenAI's API (`ServedModel`). No question can end a run: where there is no answer, a text in brackets says why.

A sub-call ends with the line that asked, and `close` waits until none is under way. So once a batch of trajectories has
ended, the engine holds nothing of theirs, and weights may change. Weights that change while a trajectory is under way
(`train.asynchronous`) change for its sub-calls as they do for its lines.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from repl_rl.config import SamplingConfig, SeededSampling, SubcallsConfig
from repl_rl.engine import Engine, Finish, Vocabulary
from repl_rl.errors import ModelError
from repl_rl.trajectory import SubCall
from repl_rl.utils.text import cut_middle

_RECORDED_CHARS = 4000
_MOST_CHARS_PER_TOKEN = 16
"""On average, of any text worth asking. A prompt with more than fits by this measure is refused without encoding it,
which for a whole context would hold up all trajectories."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer, and how many tokens it took."""

    text: str
    prompt_tokens: int
    tokens: int


class NoAnswerError(Exception):
    """A question that gets no answer. The session is told why; `kind` is for the record."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class TextModel(Protocol):
    """What answers sub-calls. Many calls may be under way."""

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> Completion:
        """Answer with at most `max_tokens` tokens. Raises NoAnswerError."""


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
        room = self._context_tokens - max_tokens
        if len(prompt) > _MOST_CHARS_PER_TOKEN * max(room, 0):
            raise NoAnswerError("length", f"the prompt has {len(prompt):,} characters, and {room:,} tokens fit")
        try:
            ids = list(self._encoded(prompt))
        except ModelError as error:
            raise NoAnswerError("template", str(error)) from error
        prompt_tokens = len(ids)
        if not 0 < prompt_tokens <= room:
            raise NoAnswerError("length", f"the prompt has {prompt_tokens:,} tokens, and {room:,} fit")
        typed: list[int] = []
        async with self._engine.slot(prompt_tokens + max_tokens, depth) as slot:
            while len(typed) < max_tokens:
                line = await slot.sample_line(ids, max_tokens - len(typed), sampling)
                ids += line.ids
                typed += line.ids
                if line.finish is Finish.EOS or not self._is_chat:
                    break
        text = self._vocabulary.decode([index for index in typed if index not in self._vocabulary.eos_ids])
        return Completion(text.strip(), prompt_tokens, len(typed))

    def _encoded(self, prompt: str) -> tuple[int, ...]:
        if self._is_chat:
            return self._vocabulary.encode_chat([{"role": "user", "content": prompt}], "")
        return self._vocabulary.encode_prompt(prompt)


class ServedModel:
    """A model behind OpenAI's API at a URL. The environment variable OPENAI_API_KEY is sent along if it is set."""

    def __init__(self, url: str, name: str | None = None, wait_s: float = 120.0) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._name = name
        self._wait_s = wait_s

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> Completion:
        if self._name is None:
            listed = await self._call("GET", "/v1/models", None)
            try:
                self._name = str(listed["data"][0]["id"])
            except (LookupError, TypeError) as error:
                raise NoAnswerError("server", f"{self._url} lists no model") from error
        body = {
            "model": self._name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        answer = await self._call("POST", "/v1/chat/completions", body)
        try:
            text, usage = answer["choices"][0]["message"]["content"], answer.get("usage") or {}
            used = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise NoAnswerError("server", f"{self._url} answered in another form than OpenAI's API") from error
        return Completion("" if text is None else str(text), *used)

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
                    said = cut_middle((await response.text(errors="replace")).strip(), 300, " ... ")
                    raise NoAnswerError("server", f"{self._url} answered with HTTP {response.status}: {said}")
                return await response.json(content_type=None)
        except TimeoutError as error:
            raise NoAnswerError("late", f"{self._url} did not answer within {self._wait_s:g} s") from error
        except ValueError as error:
            raise NoAnswerError("server", f"{self._url} answered with something that is not JSON") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError("server", f"{self._url} can't be reached ({type(error).__name__})") from error


def make_text_model(
    config: SubcallsConfig, engine: Engine, vocabulary: Vocabulary, context_tokens: int, chat: bool | None
) -> TextModel:
    """The model that a config names."""
    if config.model == "policy":
        return PolicyModel(engine, vocabulary, context_tokens, chat)
    return ServedModel(config.model, config.served_name, config.seconds)


class SubCalls:
    """The sub-calls of one trajectory: an environment's `model`. Belongs to one event loop."""

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
        self._asking: set[asyncio.Task[Any]] = set()
        self._recorded: dict[int, SubCall] = {}
        """By number, which is the order in which they were asked."""
        self._is_closed = False

    async def ask(self, prompts: Sequence[str]) -> list[str]:
        """The answers to prompts, in their order; they are sampled together, `subcalls.at_once` at a time.

        What each may take is set aside before the first is asked, in order, so that the budgets end at the same prompt
        whatever is answered first. Raises EngineError if the policy's engine can't go on.
        """
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        batch, self._batches = self._batches, self._batches + 1
        try:
            async with asyncio.TaskGroup() as group:
                asked = []
                for prompt in prompts:
                    asked.append(group.create_task(self._call(prompt, self._set_aside(), batch, self._calls)))
                    self._calls += 1
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._asking.discard(task)
        return [each.result() for each in asked]

    async def take(self) -> tuple[SubCall, ...]:
        """What was asked since the last time, in order, with texts that are too long for a record cut.

        Calls still under way are ended: the line that asked is over, and nothing waits for them.
        """
        await self._end()
        taken, self._recorded = self._recorded, {}
        return tuple(call for _, call in sorted(taken.items()))

    async def close(self) -> None:
        """End the calls under way, and wait for their end. From now on, questions get no answer."""
        self._is_closed = True
        await self._end()

    async def _end(self) -> None:
        for task in (under_way := list(self._asking)):
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _set_aside(self) -> int | NoAnswerError:
        """Tokens for the next answer, or why there is none."""
        config = self._config
        if self._is_closed:
            return NoAnswerError("closed", "the session is over")
        if not self._calls_left:
            return NoAnswerError("calls", f"the budget of {config.calls} questions is used up")
        if not self._tokens_left:
            return NoAnswerError("tokens", f"the budget of {config.tokens} tokens for answers is used up")
        tokens = min(config.call_tokens, self._tokens_left)
        self._calls_left -= 1
        self._tokens_left -= tokens
        return tokens

    async def _call(self, prompt: str, tokens: int | NoAnswerError, batch: int, number: int) -> str:
        sampling, spent, began_s = self._sampling, 0, time.monotonic()
        if isinstance(sampling, SeededSampling):
            sampling = sampling.model_copy(update={"seed": f"{sampling.seed}/sub-call {number}"})
        prompt = prompt.encode("utf-8", "replace").decode()  # what a session sends may hold halves of characters
        call = SubCall(_cut(prompt), "", batch=batch, depth=self._depth, error_name="cancelled")
        try:
            if isinstance(tokens, NoAnswerError):
                raise tokens
            async with self._permits:
                began_s = time.monotonic()
                made = await self._model.complete(prompt, tokens, self._depth, sampling)
            text, spent = made.text, made.tokens
            call = replace(call, text=_cut(text), prompt_tokens=made.prompt_tokens, tokens=made.tokens, error_name=None)
        except NoAnswerError as error:
            text = f"[no answer: {error}]"
            call = replace(call, text=_cut(text), error_name=error.kind)
        finally:
            if isinstance(tokens, int):
                self._tokens_left += max(0, tokens - spent)
            self._recorded[number] = replace(call, duration_s=time.monotonic() - began_s)
        return text


def _cut(text: str) -> str:
    return cut_middle(text, _RECORDED_CHARS, " ... {} characters left out ... ")
