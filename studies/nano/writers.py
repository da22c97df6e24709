"""How a demonstration is written down: its steps in the words of a dialect, and the chat template around them.

There is one writer per dialect, one instance per session. The habits are the same everywhere; what differs is how they
are typed. At the prompt each line runs by itself. Elsewhere, lines whose output is of no interest are held back until
one whose output matters, and a block that was refused for its syntax is typed again as a whole. `_` is used only at the
prompt: elsewhere the number that was shown is copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from repl_rl.trajectory import Task
from studies.nano.demonstrations import Code, Step, Submit, Thought

START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'tool' %}
{{- '<tool_response>' + message.content + '</tool_response>' }}
{%- else %}
{{- message.content }}
{%- endif %}
{%- if loop.first and tools %}
{%- for tool in tools %}
{{- '\\n' + tool | tojson }}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
"""ChatML, tools as JSON schemas at the end of the first message, calls and results in Hermes' tags."""

_SUBMITTED = re.compile(r"submit_final_answer\((.*)\)")
_NUMBER = re.compile(r"-?\d+")

Compute = Callable[[str], str]
"""Runs code outside of the transcript and returns what it shows."""


@cache
def _renderer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)


def render_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool) -> str:
    """A conversation as the model reads it, before there is a tokenizer."""
    text: str = _renderer().apply_chat_template(
        list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=opens
    )
    return text


class PromptWriter:
    """Lines at the interpreter's prompt, thoughts as comments."""

    def __init__(self, task: Task, compute: Compute) -> None:
        pass

    def write(self, step: Step) -> Sequence[str]:
        """What is typed for a step, line by line."""
        if isinstance(step, Thought):
            return (f" # {step.text}\n",)
        lines = (f"submit_final_answer({step.value})",) if isinstance(step, Submit) else step.lines
        return [f" {line}\n" if line else "\n" for line in lines]

    def heard(self, shown: str) -> str:
        """What the demonstration is told, given what the interpreter printed for what was typed."""
        return shown


class BlockWriter:
    """Prose, and several lines of code at a time. Answers that are numbers are given in the prose."""

    def __init__(self, task: Task, compute: Compute) -> None:
        self._waiting: list[str] = []
        self._typed: list[str] = []
        self._shown = ""

    def write(self, step: Step) -> Sequence[str]:
        """What is typed for a step; nothing if it waits for the next one."""
        if isinstance(step, Thought):
            return (self.say(step.text),)
        if isinstance(step, Code):
            self._waiting.append(step.source)
            if not step.looks:
                return ()
            self._typed, self._waiting = self._waiting, []
            return (self.call("\n".join(self._typed)),)
        if step.value == "_":
            step = Submit(self._shown, is_literal=True)
        return (self.answer(step.value) if step.is_literal else self.call(f"submit_final_answer({step.value})"),)

    def heard(self, shown: str) -> str:
        """What the demonstration is told; code that was refused has not run, so it waits for its correction."""
        if "SyntaxError" in shown:
            self._waiting = self._typed[:-1]
        self._shown = shown.strip()
        return shown

    def say(self, text: str) -> str:
        return f"{text}\n"

    def call(self, source: str) -> str:
        return f"```python\n{source}\n```\n"

    def answer(self, value: str) -> str:
        return f"Answer: {value}\n"


class InlineWriter(BlockWriter):
    """Calls between tags. The interpreter writes after a call on its line, so prose after one begins a new line."""

    _is_inside = False

    def say(self, text: str) -> str:
        return self._line_break() + super().say(text)

    def call(self, source: str) -> str:
        self._is_inside = True
        return f"<fn>{source}</fn>"

    def answer(self, value: str) -> str:
        return self._line_break() + super().answer(value)

    def _line_break(self) -> str:
        text, self._is_inside = "\n" if self._is_inside else "", False
        return text


class CallWriter(BlockWriter):
    """JSON calls, each of which ends the turn."""

    def call(self, source: str) -> str:
        return self._call("python", code=source)

    def answer(self, value: str) -> str:
        return self._call("submit_final_answer", value=value)

    def _call(self, name: str, **arguments: str) -> str:
        call = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>{call}</tool_call>{END_OF_TURN}"


class HeadWriter(BlockWriter):
    """No interpreter: values are stated in prose, sums of digits step by step."""

    def __init__(self, task: Task, compute: Compute) -> None:
        super().__init__(task, compute)
        self._task = task
        self._compute = compute
        self._result = ""

    def call(self, source: str) -> str:
        """The last line of `source` with its value, where that is a number."""
        *before, line = source.split("\n")
        found = _SUBMITTED.fullmatch(line)
        line = found[1] if found else line
        name, equals, _ = line.partition(" = ")
        self._result = self._compute("\n".join([*before, line, *([name] if equals else [])]))
        value = self._result.strip()
        if not _NUMBER.fullmatch(value):
            return ""
        said = "" if line.isidentifier() else f"{self._sum_of_digits(value) or f'{line} = {value}'}\n"
        return said + (self.answer(value) if found else "")

    def heard(self, shown: str) -> str:
        return super().heard(self._result)

    def _sum_of_digits(self, value: str) -> str:
        """How digits are added up, if that is what the problem asks for and what was done."""
        if self._task.family != "digit_sum" or value != self._task.answer:
            return ""
        first, *rest = map(int, str(self._task.metadata["operands"][0]))
        parts: list[str] = []
        for digit in rest:
            parts.append(f"{first} + {digit} = {first + digit}")
            first += digit
        return ", ".join(parts)


WRITERS: dict[str, type[PromptWriter | BlockWriter]] = {
    "python": PromptWriter,
    "fenced": BlockWriter,
    "inline": InlineWriter,
    "tool_call": CallWriter,
    "text": HeadWriter,
}
"""By the dialect's name: the conventions that `nano-conventions` knows."""
