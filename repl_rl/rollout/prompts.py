"""Tasks as a model reads them: through its chat template, or as the beginning of a session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.dialect import Dialect, OfferedTool, make_dialect
from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError
from repl_rl.rollout.state import Prompt
from repl_rl.trajectory import Message, Task

_REMEMBERED_PROMPTS = 256
_LINE_FRAME_TOKENS = 8
"""At most as many stand around each line of a question."""


class Prompts:
    """Prompts of one model, each encoded once. `context_tokens` bounds prompt and completion together."""

    def __init__(self, vocabulary: Vocabulary, chat: bool, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._chat = chat
        self._context_tokens = context_tokens
        self._made: Any = lru_cache(_REMEMBERED_PROMPTS)(self._make)

    def of(self, dialect: Dialect, task: Task) -> Prompt:
        """The prompt of a task. Raises ConfigError if it leaves no room for a line."""
        prompt: Prompt = self._made(dialect, task.question, task.history)
        if len(prompt.ids) >= self._context_tokens:
            raise ConfigError(
                f"the prompt of task {task.id!r} has {len(prompt.ids)} tokens and engine.context_tokens is "
                f"{self._context_tokens}; raise it, or shorten the prompt"
            )
        return prompt

    def refuse_long(self, dialect: Dialect, tasks: Sequence[Task]) -> None:
        """Encodes only what may be too long: as a rule, a token stands for one byte of the question or more."""
        frame_tokens = len(self._made(dialect, "", ()).ids)
        for task in {(task.question, task.history): task for task in tasks}.values():
            texts = [task.question, *(message.content for message in task.history)]
            text_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
            lines = len(task.history) + sum(len(text.splitlines()) for text in texts)
            if frame_tokens + text_bytes + _LINE_FRAME_TOKENS * lines >= self._context_tokens:
                self.of(dialect, task)

    def _make(self, dialect: Dialect, question: str, history: tuple[Message, ...]) -> Prompt:
        return make_prompt(dialect, self._vocabulary, question, self._chat, history)


def dialect_for(vocabulary: Vocabulary, config: DialectConfig, tools: Sequence[OfferedTool] = ()) -> Dialect:
    """The dialect of a config for a model. Raises ConfigError if the model can't speak it."""
    return make_dialect(config, tools, vocabulary.render_chat if vocabulary.has_chat_template else None)


def speaks_chat(vocabulary: Vocabulary, dialect: Dialect, wanted: bool | None) -> bool:
    """Whether prompts go through the chat template. `wanted` None: if there is one."""
    return dialect.needs_chat or (vocabulary.has_chat_template if wanted is None else wanted)


def make_prompt(
    dialect: Dialect, vocabulary: Vocabulary, question: str, chat: bool, history: Sequence[Message] = ()
) -> Prompt:
    """A question as the model reads it, in its chat template or as the beginning of a session."""
    if chat:
        opened = dialect.chat_prompt(question, history)
        ids = vocabulary.encode_chat(opened.messages, opened.prefill, opened.tools)
        return Prompt(vocabulary.decode(ids), ids)
    text = dialect.completion_prompt(question, history)
    return Prompt(text, vocabulary.encode_prompt(text))
