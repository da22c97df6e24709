"""Sub-calls: a session asks a language model, and goes on with the answers. Their tokens are not in its trajectory.

`SubCalls` belongs to one session: it keeps the budgets and records what was asked. A `TextModel` answers a question:
the policy itself, whose engine samples the answers beside the lines of all trajectories (`PolicyModel`), or a server
with OpenAI's API (`ServedModel`). An answer is text and asks nothing in turn. No question can end a run: where there is
no answer, a text in brackets says why.

A sub-call ends with the line that asked, and `close` waits until none is under way. So once a batch of trajectories has
ended, the engine holds nothing of theirs, and weights may change. If weights change while a trajectory is under way
(`train.asynchronous`), they change for its sub-calls as they do for its lines.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from repl_rl.config import SamplingConfig, SeededSampling, SubcallsConfig
from repl_rl.engine import Engine, Finish, Vocabulary, slot_of
from repl_rl.errors import ModelError
from repl_rl.rollout.state import Transcript
from repl_rl.trajectory import Line, LineKind, StopReason, SubCall, Trajectory
from repl_rl.utils.text import cut_middle, whole

_RECORDED_CHARS = 4000
_MOST_AT_ONCE = 1_000
"""Questions in one call, unless the budget has more."""
_MOST_REFUSED = 100
"""Questions beyond its budgets of which a trajectory keeps a record."""
_MOST_CHARS_PER_TOKEN = 16
"""More characters than a token has on average in any sensible text. A prompt that is too long even by this measure is
refused without being encoded, because encoding a whole context would hold up all trajectories."""


class NoAnswerError(Exception):
    """A question that gets no answer. The session is told why; `kind` is for the record."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class TextModel(Protocol):
    """Answers sub-calls, several at a time."""

    async def complete(self, prompt: str, max_tokens: int, sampling: SamplingConfig) -> SubCall:
        """The prompt, its answer of at most `max_tokens` tokens, and how many both have; the trajectory too, if the
        policy sampled it. Raises NoAnswerError."""


class PolicyModel:
    """The model in `engine`, which gets each prompt as a user's message and answers up to its end of turn.

    A model without a chat template continues the prompt up to the end of the line.
    """

    def __init__(self, engine: Engine, vocabulary: Vocabulary, context_tokens: int, chat: bool | None = None) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._is_chat = vocabulary.has_chat_template if chat is None else chat

    async def complete(self, prompt: str, max_tokens: int, sampling: SamplingConfig) -> SubCall:
        began_s = time.monotonic()
        room = self._context_tokens - max_tokens
        if len(prompt) > _MOST_CHARS_PER_TOKEN * max(room, 0):
            raise NoAnswerError("length", f"the prompt has {len(prompt):,} characters, and {room:,} tokens fit")
        try:
            vocabulary = self._vocabulary
            text = vocabulary.held_as_text(prompt)
            if self._is_chat:
                prompt_ids = vocabulary.encode_chat([{"role": "user", "content": text}], "")
            else:
                prompt_ids = vocabulary.encode_prompt(text)
        except ModelError as error:
            raise NoAnswerError("template", str(error)) from error
        prompt_tokens = len(prompt_ids)
        if not 0 < prompt_tokens <= room:
            raise NoAnswerError("length", f"the prompt has {prompt_tokens:,} tokens, and {room:,} fit")
        transcript = Transcript(prompt_ids, self._engine.version)
        lines: list[Line] = []
        finish = Finish.LENGTH
        is_subcall = True
        async with slot_of(self._engine, prompt_tokens + max_tokens, is_subcall) as slot:
            while len(transcript.completion_ids) < max_tokens:
                tokens_left = max_tokens - len(transcript.completion_ids)
                sampled = await slot.sample_line(transcript.ids, tokens_left, sampling)
                start, end = transcript.append_sampled(sampled.ids, sampled.logprobs, sampled.versions)
                finish = sampled.finish
                kind = LineKind.OVERLONG if finish is Finish.LENGTH else LineKind.ANSWER
                lines.append(Line(start, end, self._decode(sampled.ids), kind, cells=()))
                if finish is Finish.EOS or not self._is_chat:
                    break
        answer = self._decode(transcript.completion_ids).strip()
        is_whole = finish is Finish.EOS or (finish is Finish.NEWLINE and not self._is_chat)
        trajectory = Trajectory(
            task_id="",
            prompt=self._vocabulary.decode(prompt_ids) if self._is_chat else prompt,
            prompt_ids=prompt_ids,
            completion_ids=tuple(transcript.completion_ids),
            sampled_mask=tuple(transcript.sampled_mask),
            logprobs=tuple(transcript.logprobs),
            stop_reason=StopReason.ANSWER if is_whole else StopReason.MAX_TOKENS,
            lines=tuple(lines),
            answer=(answer,),
            version=transcript.version,
            updates=tuple(transcript.updates),
            duration_s=time.monotonic() - began_s,
        )
        return SubCall(prompt, answer, prompt_tokens, len(transcript.completion_ids), trajectory=trajectory)

    def _decode(self, ids: Sequence[int]) -> str:
        """The text without end-of-text tokens."""
        return self._vocabulary.decode([index for index in ids if index not in self._vocabulary.eos_ids])


class ServedModel:
    """A model behind OpenAI's API at a URL. The environment variable OPENAI_API_KEY is sent along if it is set."""

    def __init__(self, url: str, name: str | None = None, wait_s: float = 120.0) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self._url)
        self._public_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        """Without user and password: the model reads it, and rollouts hold it."""
        self._name = name
        self._wait_s = wait_s

    async def complete(self, prompt: str, max_tokens: int, sampling: SamplingConfig) -> SubCall:
        if self._name is None:
            models = await self._request("GET", "/v1/models", None)
            try:
                self._name = str(models["data"][0]["id"])
            except (LookupError, TypeError) as error:
                raise NoAnswerError("server", f"{self._public_url} lists no model") from error
        body = {
            "model": self._name,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        reply = await self._request("POST", "/v1/chat/completions", body)
        try:
            content = reply["choices"][0]["message"]["content"]
            usage = reply.get("usage") or {}
            prompt_tokens = int(usage.get("prompt_tokens", 0))
            answer_tokens = int(usage.get("completion_tokens", 0))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise NoAnswerError("server", f"{self._public_url} answered in another form than OpenAI's API") from error
        text = "" if content is None else str(content)
        return SubCall(prompt, text, prompt_tokens, answer_tokens)

    async def _request(self, method: str, path: str, body: Any) -> Any:
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
                    text = await response.text(errors="replace")
                    reason = cut_middle(text.strip(), 300, " ... ")
                    raise NoAnswerError("server", f"{self._public_url} answered with HTTP {response.status}: {reason}")
                return await response.json(content_type=None)
        except TimeoutError as error:
            raise NoAnswerError("late", f"{self._public_url} did not answer within {self._wait_s:g} s") from error
        except ValueError as error:
            raise NoAnswerError("server", f"{self._public_url} answered with something that is not JSON") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswerError("server", f"{self._public_url} can't be reached ({type(error).__name__})") from error


class SubCalls:
    """The sub-calls of one session: an environment's `model`. Belongs to one event loop.

    `name` is the session's, and begins the names of what it asks.
    """

    def __init__(self, model: TextModel, config: SubcallsConfig, sampling: SamplingConfig, name: str = "") -> None:
        self._model = model
        self._config = config
        self._sampling = sampling
        self._name = name
        self._calls_left = config.calls
        self._tokens_left = config.tokens
        self._refused_left = _MOST_REFUSED
        """How many more questions beyond the budgets are recorded."""
        self._batches = 0
        self._calls = 0
        self._permits = asyncio.Semaphore(config.at_once)
        self._asking: set[asyncio.Task[Any]] = set()
        self._recorded: dict[int, SubCall] = {}
        """The calls since the last `take`, by number, in the order in which they were asked."""
        self._is_closed = False

    async def ask(self, prompts: Sequence[str]) -> list[str]:
        """The answers, in the order of the prompts. They are sampled together, `subcalls.at_once` at a time.

        The tokens for each answer are set aside in that order before the first is asked, so that the budgets end at
        the same prompt whatever is answered first. Once a prompt is beyond the budgets, so are those after it, which
        cost nothing. Raises EngineError if the policy's engine can't go on, and ValueError for more prompts than
        anybody needs at once.
        """
        most = max(_MOST_AT_ONCE, self._config.calls)
        if len(prompts) > most:
            raise ValueError(f"{len(prompts)} questions at once, and {most} are the most; ask fewer at a time")
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        batch = self._batches
        self._batches += 1
        refusal = ""
        try:
            async with asyncio.TaskGroup() as group:
                calls: list[asyncio.Task[str]] = []
                for prompt in prompts:
                    tokens = self._set_aside()
                    if isinstance(tokens, NoAnswerError):
                        refusal = f"[no answer: {tokens}]"
                        self._record_refused(list(prompts)[len(calls) :], tokens, batch)
                        break
                    calls.append(group.create_task(self._call(prompt, tokens, batch, self._calls)))
                    self._calls += 1
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._asking.discard(task)
        return [call.result() for call in calls] + [refusal] * (len(prompts) - len(calls))

    async def take(self) -> tuple[SubCall, ...]:
        """The calls since the last time, in the order in which they were asked. Texts that are too long for a record
        are cut.

        Calls that are still under way are ended: the line that asked is over, and nothing waits for them.
        """
        await self._end()
        calls = [self._recorded[number] for number in sorted(self._recorded)]
        self._recorded = {}
        return tuple(calls)

    async def close(self) -> None:
        """End the calls under way, and wait until they have ended. From now on, questions get no answer."""
        self._is_closed = True
        await self._end()

    def _record_refused(self, prompts: Sequence[str], why: NoAnswerError, batch: int) -> None:
        for prompt in prompts[: self._refused_left]:
            self._refused_left -= 1
            text = f"[no answer: {why}]"
            self._recorded[self._calls] = SubCall(_cut(whole(prompt)), text, batch=batch, error_name=why.kind)
            self._calls += 1

    async def _end(self) -> None:
        under_way = list(self._asking)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _set_aside(self) -> int | NoAnswerError:
        """How many tokens the next answer may have, or why there is none."""
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

    async def _call(self, prompt: str, tokens: int, batch: int, number: int) -> str:
        """Ask one question, of at most so many tokens that were set aside for it, and record it."""
        sampling = self._sampling
        if isinstance(sampling, SeededSampling):
            sampling = sampling.model_copy(update={"seed": f"{sampling.seed}/sub-call {number}"})
        prompt = whole(prompt)
        began_s = time.monotonic()
        call = SubCall(prompt, "", error_name="cancelled")  # until there is an answer
        try:
            async with self._permits:
                began_s = time.monotonic()
                call = await self._model.complete(prompt, tokens, sampling)
        except NoAnswerError as error:
            call = SubCall(prompt, f"[no answer: {error}]", error_name=error.kind)
        finally:
            self._tokens_left += max(0, tokens - call.tokens)
            trajectory = None  # a record holds it only where sub-calls are trained on
            if call.trajectory is not None and self._config.train:
                trajectory = replace(call.trajectory, task_id=f"{self._name}/{number}")
            self._recorded[number] = replace(
                call,
                prompt=_cut(prompt),
                text=_cut(call.text),
                batch=batch,
                duration_s=time.monotonic() - began_s,
                trajectory=trajectory,
            )
        return call.text


def _cut(text: str) -> str:
    return cut_middle(text, _RECORDED_CHARS, " ... {} characters left out ... ")
