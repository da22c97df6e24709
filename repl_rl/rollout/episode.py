"""What surrounds one trajectory: its prompt and dialect, the tools in its session, the environment that it acts on.

Each prompt is encoded once. Without an environment every trajectory has the same tools, and everything else here is
shared too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any

from repl_rl.config import Config, SamplingConfig
from repl_rl.dialect import Dialect
from repl_rl.engine import Engine, Vocabulary
from repl_rl.errors import ConfigError, EnvironmentFailure
from repl_rl.models import resolve_model
from repl_rl.rollout.session import Episode
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.state import Prompt
from repl_rl.rollout.subcalls import PolicyModel, ServedModel, SubCalls, TextModel
from repl_rl.tools import Toolbox
from repl_rl.tools.environments import EnvironmentSession
from repl_rl.trajectory import Message, Task
from repl_rl.utils.user_code import Seam, boundary

_REMEMBERED_DIALECTS = 256
_REMEMBERED_PROMPTS = 256
_LINE_FRAME_TOKENS = 8
"""An upper bound on the tokens that frame each line of a question."""


class EpisodeMaker:
    """Makes the episode of each trajectory."""

    def __init__(self, setup: RolloutSetup, engine: Engine) -> None:
        self._setup = setup
        subcalls = setup.subcalls
        self._model: TextModel
        if subcalls.model == "policy":
            self._model = PolicyModel(engine, setup.vocabulary, setup.context_tokens, setup.chat)
        else:
            self._model = ServedModel(subcalls.model, subcalls.served_name, subcalls.seconds)

        @lru_cache(_REMEMBERED_PROMPTS)
        def cached_prompt(dialect: Dialect, question: str, history: tuple[Message, ...]) -> Prompt:
            return make_prompt(dialect, setup.vocabulary, question, setup.chat, history)

        self._cached_prompt: Any = cached_prompt
        self._dialects: dict[tuple[tuple[str, str, str], ...], Dialect] = {}
        self.dialect = self._dialect(setup.extensions.toolbox)
        """Offers the tools that every trajectory has."""

    def bare(self, task: Task) -> Episode:
        """The episode of a session that can't begin: it has a prompt, and nothing else."""
        return Episode(self.prompt(task), self.dialect, Toolbox())

    async def make(self, task: Task, sampling: SamplingConfig, stack: AsyncExitStack) -> Episode:
        """Make the episode of a task and open its environment, which closes with `stack`. Raises EnvironmentFailure."""
        toolbox = self._setup.extensions.toolbox
        factory = self._setup.extensions.environment
        if factory is None:
            return Episode(self.prompt(task), self.dialect, toolbox)
        subcalls = SubCalls(self._model, self._setup.subcalls, sampling, task.id)
        environment = EnvironmentSession(factory, model=subcalls)
        stack.push_async_callback(environment.close)
        stack.push_async_callback(subcalls.close)
        environment_tools, observation = await environment.open(task)
        shown_task = replace(task, question=f"{task.question}{observation}")
        try:  # its tools or text may be too long for this one trajectory, or clash with the shared tools
            toolbox = toolbox.joined(environment_tools)
            dialect = self._dialect(toolbox)
            return Episode(self.prompt(shown_task, dialect), dialect, toolbox, environment, subcalls)
        except ConfigError as error:
            raise EnvironmentFailure(f"with tools and first observation of the environment, {error}") from error

    def prompt(self, task: Task, dialect: Dialect | None = None) -> Prompt:
        """The prompt of a task. Raises ConfigError if it leaves no room for a line."""
        prompt: Prompt = self._cached_prompt(dialect or self.dialect, task.question, task.history)
        if len(prompt.ids) >= self._setup.context_tokens:
            raise ConfigError(
                f"the prompt of task {task.id!r} has {len(prompt.ids)} tokens and engine.context_tokens is "
                f"{self._setup.context_tokens}; raise it, or shorten the prompt"
            )
        return prompt

    def refuse(self, tasks: Sequence[Task]) -> None:
        """Raises ConfigError if a prompt leaves no room for a line, or the environment can't take a task.

        Encodes only prompts that may be too long: as a rule, a token stands for at least one byte of the question.
        """
        frame_tokens = len(self._cached_prompt(self.dialect, "", ()).ids)
        prompts = {(task.question, task.history): task for task in tasks}
        for task in prompts.values():
            most_tokens = frame_tokens + len(task.history) * _LINE_FRAME_TOKENS
            for text in [task.question, *(message.content for message in task.history)]:
                most_tokens += len(text.encode("utf-8", "replace"))
                most_tokens += len(text.splitlines()) * _LINE_FRAME_TOKENS
            if most_tokens >= self._setup.context_tokens:
                self.prompt(task)
        check = getattr(self._setup.extensions.environment, "check", None)
        if callable(check):
            by_id = {task.id: task for task in tasks}
            for task in by_id.values():
                with boundary(Seam.ENVIRONMENT_CHECK, check, where=f"on task {task.id!r}"):
                    check(task)

    def _dialect(self, toolbox: Toolbox) -> Dialect:
        """The dialect for a set of tools. They are cached: most environments have the same tools every time."""
        key = tuple((tool.name, tool.signature, tool.doc) for tool in toolbox.tools)
        if key not in self._dialects:
            if len(self._dialects) >= _REMEMBERED_DIALECTS:
                self._dialects.clear()
            self._dialects[key] = self._setup.dialect_with(toolbox.tools)
        return self._dialects[key]


def make_prompt(
    dialect: Dialect, vocabulary: Vocabulary, question: str, chat: bool | None = None, history: Sequence[Message] = ()
) -> Prompt:
    """A question as the model reads it, in its chat template or as the beginning of a session.

    With `chat=None` the template is used if the model has one. A dialect that needs the template always uses it. Names
    of special tokens in the question and in earlier messages of the user's stay text.
    """
    question = vocabulary.held_as_text(question)
    messages = []
    for message in history:
        if message.role == "user":
            message = replace(message, content=vocabulary.held_as_text(message.content))
        messages.append(message)
    in_chat = vocabulary.has_chat_template if chat is None else chat
    if dialect.needs_chat or in_chat:
        with boundary(Seam.DIALECT, dialect, "chat_prompt"):
            prompt = dialect.chat_prompt(question, messages)
        ids = vocabulary.encode_chat(prompt.messages, prompt.prefill, prompt.tools)
        return Prompt(vocabulary.decode(ids), ids)
    with boundary(Seam.DIALECT, dialect, "completion_prompt"):
        text = dialect.completion_prompt(question, messages)
    return Prompt(vocabulary.released(text), vocabulary.encode_prompt(text))


def prompts(config: Config, tasks: Sequence[Task]) -> Iterator[Prompt]:
    """What the model reads first of each task. Loads the tokenizer only. Raises ModelError or ConfigError."""
    setup = RolloutSetup.for_model(config, resolve_model(config.model.path))
    dialect = setup.dialect_with(setup.extensions.toolbox.tools)
    for task in tasks:
        yield make_prompt(dialect, setup.vocabulary, task.question, setup.chat, task.history)
