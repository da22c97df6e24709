"""Sub-calls: a session asks a language model, and goes on with the answers. Their tokens are not in its trajectory.

`SubCalls` belongs to one session: it keeps the budgets and records what was asked. A `TextModel` answers a question:
the policy itself, whose engine samples the answers beside the lines of all trajectories (`PolicyModel`), or a server
with OpenAI's API (`ServedModel`). Or else the policy types a session about the question, in an interpreter of its own
(`Sessions`). That session has a `SubCalls` of its own, for questions one level deeper. All sessions that come of one
trajectory share its budgets. No question can end a run: where there is no answer, a text in brackets says why.

A sub-call ends with the line that asked, and `close` waits until none is under way. So once a batch of trajectories has
ended, the engine holds nothing of theirs, and weights may change. If weights change while a trajectory is under way
(`train.asynchronous`), they change for its sub-calls as they do for its lines.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from repl_rl.config import SamplingConfig, SeededSampling, SubcallsConfig
from repl_rl.engine import Engine, Finish, Vocabulary
from repl_rl.errors import ModelError
from repl_rl.rollout.state import Transcript
from repl_rl.trajectory import Line, LineKind, StopReason, SubCall, Task, Trajectory
from repl_rl.utils.text import cut_middle, string_of, whole

_RECORDED_CHARS = 4000
_MOST_AT_ONCE = 1_000
"""Questions in one call, unless the budget has more."""
_MOST_REFUSED = 100
"""Questions beyond its budgets of which a trajectory keeps a record."""
MOST_CHARS_PER_TOKEN = 16
"""More characters than a token has on average in any sensible text. A prompt that is too long even by this measure is
refused without being encoded, because encoding a whole context would hold up all trajectories."""


class Question(NamedTuple):
    """What is asked. With `is_session`, a session answers it, which has `context` as a variable."""

    prompt: str
    context: Any = None
    is_session: bool = False


class NoAnswerError(Exception):
    """A question that gets no answer. The session is told why; `kind` is for the record."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class TextModel(Protocol):
    """Answers sub-calls, several at a time."""

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> SubCall:
        """The prompt, its answer of at most `max_tokens` tokens, and how many both have; the trajectory too, if the
        policy sampled it. Raises NoAnswerError."""


Sessions = Callable[[Task, int, "SubCalls", SamplingConfig], Coroutine[Any, Any, Trajectory]]
"""Types a session about a question, of at most so many tokens (`Rollout.asked`). Raises NoAnswerError."""


class PolicyModel:
    """The model in `engine`, which gets each prompt as a user's message and answers up to its end of turn.

    A model without a chat template continues the prompt up to the end of the line.
    """

    def __init__(self, engine: Engine, vocabulary: Vocabulary, context_tokens: int, chat: bool | None = None) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._is_chat = vocabulary.has_chat_template if chat is None else chat

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> SubCall:
        began_s = time.monotonic()
        room = self._context_tokens - max_tokens
        if len(prompt) > MOST_CHARS_PER_TOKEN * max(room, 0):
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
        async with self._engine.slot(prompt_tokens + max_tokens, depth) as slot:
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

    async def complete(self, prompt: str, max_tokens: int, depth: int, sampling: SamplingConfig) -> SubCall:
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


@dataclass(slots=True)
class _Budget:
    """What is left of a trajectory's budgets, which its sub-calls share, and how many batches have been asked."""

    calls: int
    tokens: int
    refused: int = _MOST_REFUSED
    batches: int = 0


class SubCalls:
    """The sub-calls of one session: an environment's `model`. Belongs to one event loop.

    `name` is the session's, and begins the names of what it asks. `parent` belongs to the session that asked for it.
    """

    def __init__(
        self,
        model: TextModel,
        config: SubcallsConfig,
        sampling: SamplingConfig,
        name: str = "",
        sessions: Sessions | None = None,
        parent: SubCalls | None = None,
    ) -> None:
        self.depth: int = 1 if parent is None else parent.depth + 1
        """The depth of its questions: 1 for those of the trajectory itself."""
        self.running_s: Callable[[], float] = lambda: 0.0
        """How much of `budget.seconds` the session has used."""
        self._model = model
        self._config = config
        self._sampling = sampling
        self._name = name
        self._sessions = sessions
        self._budget: _Budget = _Budget(config.calls, config.tokens) if parent is None else parent._budget
        self._calls = 0
        self._permits = asyncio.Semaphore(config.at_once)
        self._asking: set[asyncio.Task[Any]] = set()
        self._recorded: dict[int, tuple[SubCall, ...]] = {}
        """The calls since the last `take`, by number, in the order in which they were asked. Each is followed by the
        calls that its session made."""
        self._taken: list[SubCall] = []
        self._is_closed = False

    @property
    def has_sessions(self) -> bool:
        """Whether `ask_sessions` begins sessions, at this depth or at one above."""
        return self._sessions is not None and self._config.depth > 1

    async def ask(self, prompts: Sequence[str]) -> list[str]:
        """The answers, in the order of the prompts. They are sampled together, `subcalls.at_once` at a time.

        The tokens for each answer are set aside in that order before the first is asked, so that the budgets end at
        the same prompt whatever is answered first. Raises EngineError if the policy's engine can't go on, and
        ValueError for more prompts than anybody needs at once.
        """
        return await self._ask_all(len(prompts), map(Question, prompts))

    async def ask_sessions(self, prompts: Sequence[str], contexts: Sequence[Any] | None = None) -> list[str]:
        """As `ask`, but a session answers each prompt. Its variable `context` holds the prompt's context, or else the
        prompt.

        At the greatest depth, `subcalls.depth`, no session begins: prompt and context are asked as by `ask`. Raises
        what `ask` raises, and ValueError unless there is a context for each prompt.
        """
        if contexts is None:
            contexts = [None] * len(prompts)
        if len(contexts) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts and {len(contexts)} contexts; give each prompt one, or None")
        return await self._ask_all(len(prompts), self._session_questions(prompts, contexts))

    def _session_questions(self, prompts: Sequence[str], contexts: Sequence[Any]) -> Iterator[Question]:
        """One at a time: what is beyond the budgets is not written out."""
        begins_sessions = self.has_sessions and self.depth < self._config.depth
        for prompt, context in zip(prompts, contexts, strict=True):
            if begins_sessions:
                yield Question(prompt, prompt if context is None else context, is_session=True)
            elif context is None:
                yield Question(prompt)
            else:
                yield Question(f"{prompt}\n\n{context}")

    async def take(self) -> tuple[SubCall, ...]:
        """The calls since the last time, in order. Texts that are too long for a record are cut. The calls of a session
        follow the one that asked for it.

        Calls that are still under way are ended: the line that asked is over, and nothing waits for them.
        """
        await self._end()
        return self._flush()

    async def close(self) -> None:
        """End the calls under way, and wait until they have ended. From now on, questions get no answer."""
        self._is_closed = True
        await self._end()

    async def _ask_all(self, count: int, questions: Iterator[Question]) -> list[str]:
        """`count` questions are there. Once one is beyond the budgets, so are those after it, which cost nothing."""
        most = max(_MOST_AT_ONCE, self._config.calls)
        if count > most:
            raise ValueError(f"{count} questions at once, and {most} are the most; ask fewer at a time")
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        batch = self._budget.batches
        self._budget.batches += 1
        refusal = ""
        try:
            async with asyncio.TaskGroup() as group:
                calls = []
                for question in questions:
                    tokens = self._set_aside(question)
                    if isinstance(tokens, NoAnswerError):
                        refusal = f"[no answer: {tokens}]"
                        rest = [question, *islice(questions, self._budget.refused)]
                        self._record_refused(rest, tokens, batch)
                        break
                    calls.append(group.create_task(self._call(question, tokens, batch, self._calls)))
                    self._calls += 1
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._asking.discard(task)
        return [call.result() for call in calls] + [refusal] * (count - len(calls))

    def _record_refused(self, questions: Sequence[Question], why: NoAnswerError, batch: int) -> None:
        for question in questions[: self._budget.refused]:
            self._budget.refused -= 1
            call = SubCall(_cut(whole(question.prompt)), f"[no answer: {why}]", batch=batch, depth=self.depth)
            self._recorded[self._calls] = (replace(call, error_name=why.kind),)
            self._calls += 1

    async def _end(self) -> None:
        under_way = list(self._asking)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _flush(self) -> tuple[SubCall, ...]:
        """The calls recorded since the last time, in the order in which they were asked."""
        calls: list[SubCall] = []
        for number in sorted(self._recorded):
            calls += self._recorded[number]
        self._recorded = {}
        self._taken += calls
        return tuple(calls)

    def _set_aside(self, question: Question) -> int | NoAnswerError:
        """How many tokens the next answer may have, or why there is none."""
        config = self._config
        budget = self._budget
        if self._is_closed:
            return NoAnswerError("closed", "the session is over")
        if not budget.calls:
            return NoAnswerError("calls", f"the budget of {config.calls} questions is used up")
        if not budget.tokens:
            return NoAnswerError("tokens", f"the budget of {config.tokens} tokens for answers is used up")
        most_tokens = config.session_tokens if question.is_session else config.call_tokens
        tokens = min(most_tokens, budget.tokens)
        budget.calls -= 1
        budget.tokens -= tokens
        return tokens

    async def _call(self, question: Question, tokens: int, batch: int, number: int) -> str:
        """Ask one question, of at most so many tokens that were set aside for it, and record it."""
        sampling = self._sampling
        if isinstance(sampling, SeededSampling):
            sampling = sampling.model_copy(update={"seed": f"{sampling.seed}/sub-call {number}"})
        prompt = whole(question.prompt)
        name = f"{self._name}/{number}"
        spent_tokens = 0
        began_s = time.monotonic()
        call = SubCall(prompt, "", error_name="cancelled")  # until there is an answer
        inner = SubCalls(self._model, self._config, sampling, name, self._sessions, self)
        try:
            async with self._permits:
                began_s = time.monotonic()
                if question.is_session:
                    assert self._sessions is not None
                    inner.running_s = self.running_s
                    task = Task(name, prompt, "", metadata={"context": question.context})
                    call = _call_of(prompt, await self._sessions(task, tokens, inner, sampling))
                else:
                    call = await self._model.complete(prompt, tokens, self.depth, sampling)
            spent_tokens = call.tokens
        except NoAnswerError as error:
            call = SubCall(prompt, f"[no answer: {error}]", error_name=error.kind)
        finally:
            self._budget.tokens += max(0, tokens - spent_tokens)
            inner._flush()
            trajectory = None  # a record holds it only where sub-calls are trained on
            if call.trajectory is not None and self._config.train:
                trajectory = replace(call.trajectory, task_id=name)
            record = replace(
                call,
                prompt=_cut(prompt),
                text=_cut(call.text),
                batch=batch,
                depth=self.depth,
                duration_s=time.monotonic() - began_s,
                trajectory=trajectory,
            )
            self._recorded[number] = (record, *inner._taken)
        return call.text


def _call_of(prompt: str, session: Trajectory) -> SubCall:
    """The sub-call that a session answered. Its own calls are recorded beside it, so its lines are stored without."""
    lines = [replace(line, subcalls=()) for line in session.lines]
    without_calls = replace(session, lines=tuple(lines))
    error_name = None
    if session.answer is not None:
        values = []
        for value in session.answer:
            string = string_of(value)  # None if it was cut, or is another value than a string, or prose
            values.append(value if string is None else string)
        text = ", ".join(values)
    else:
        reason = session.error or f"the session ended without one, {session.stop_reason}"
        text = f"[no answer: {reason}]"
        error_name = session.stop_reason.value
    call = SubCall(prompt, text, len(session.prompt_ids), session.sampled_tokens, lines=len(session.lines))
    return replace(call, error_name=error_name, trajectory=without_calls)


def _cut(text: str) -> str:
    return cut_middle(text, _RECORDED_CHARS, " ... {} characters left out ... ")
