"""Calls in the model's own chat template, in JSON or in tags: several per turn, answered when the turn ends.

How a model writes its calls, and how results are presented to it, is found by rendering a conversation with one of each
through its template. Only what comes after the model's turn is ever taken from a rendering, so the sequence keeps its
ids token by token, even if the template would rewrite earlier turns (Qwen3's drops their thoughts).

Besides the user's tools, the model is offered `python(code)`, which runs in the session like a line of the interpreter,
and `submit_final_answer(value)`; a tool of the user's takes the place of one of the same name. The answer to a call is
what the function returns, as `print` shows it, or what it printed and the last line of its traceback, or what was wrong
with the call; the model may then correct it.

Values in tags are text. For a parameter whose schema asks for another type they are read as JSON.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.dialect.answers import AnswerReader
from repl_rl.dialect.base import Cell, CellRun, ChatPrompt, OfferedTool, Refusal, Shown, Template, Turn
from repl_rl.dialect.call_form import (
    QWEN_TAGS,
    WAY_OUT,
    CallForm,
    call_form,
    read_tags,
    require_shallow,
    result_frame,
    split_calls,
    typed_call,
    user_frame,
    written_call,
)
from repl_rl.dialect.prose import MOST_ASKED, ProseDialect, ProseReader, prose_kind, whole_cell
from repl_rl.dialect.texts import filled
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind, Message
from repl_rl.trajectory.jsonl import finite

_CALL_LINE = re.compile(r'^\{"name": .*\}$', re.MULTILINE)
"""A call in a worked session."""
_FENCED = re.compile(r"\s*```(?:python3?|py)?[ ]*\n(?P<code>[\s\S]*?)\n?```\s*")
"""Code that a model has put into a block of markdown once more."""
_SCHEMA_TYPES = {
    int: {"integer", "number"},
    float: {"number"},
    bool: {"boolean"},
    list: {"array"},
    dict: {"object"},
    type(None): {"null"},
}
_PROBE_NAME = "reprl_name"
_PROBE_ARGUMENTS = {"reprl_first": 'print("a")\nx < 1', "reprl_second": "2"}
"""A call that no model makes, with code in an argument."""
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
"""As templates write these values."""


class ToolCallDialect(ProseDialect):
    """Calls as chat models are trained to make them."""

    texts_name = "tool_call"
    unused = ("tools", "tool")  # the template presents the tools
    needs_chat = True

    def __init__(
        self, config: DialectConfig | None = None, tools: Sequence[OfferedTool] = (), template: Template | None = None
    ) -> None:
        """Raises ConfigError if the template has no place for tools, or writes calls neither as JSON nor in tags."""
        super().__init__(config, tools)
        if template is None:
            raise ConfigError(
                "dialect.name: tool_call needs a chat template, and this model's tokenizer has none; take another "
                "model, or the dialect inline or fenced"
            )
        self._template = template
        self.names = frozenset(tool.name for tool in tools)
        """Of the user's tools."""
        schemas = [schema for schema in self.texts["own_tools"] if schema["function"]["name"] not in self.names]
        schemas += [tool.schema for tool in tools]
        self._schemas = tuple(schemas)
        parameters: dict[str, Any] = {}
        for schema in schemas:
            function = schema["function"]
            parameters[function["name"]] = function.get("parameters", {}).get("properties", {})
        self.parameters = dict(sorted(parameters.items()))
        """Of every tool, the schemas of its parameters by their names."""
        self.texts["system"] = filled(self.texts["system"], submit=self.texts["submit"])
        self.form = call_form(template, self._schemas)
        self._frames: dict[int, tuple[str, ...]] = {}
        self.asks: tuple[Shown, ...] | None = None
        """The answer to a turn without a call and without an answer; None if such a turn is the last."""
        unanswered = self.texts["unanswered"].strip()
        frame = user_frame(template) if unanswered else None
        if frame is not None:
            before, after = frame
            self.asks = (Shown(before, is_frame=True), Shown(unanswered), Shown(after, is_frame=True))
        self._require_own_calls()
        before, after = self.frame(1)
        self._results_are_json = before.endswith('"') and after.startswith('"')

    def _require_own_calls(self) -> None:
        """Raises ConfigError if what the template writes for a call would not be read as that call."""
        function = {"name": _PROBE_NAME, "arguments": _PROBE_ARGUMENTS}
        before_result, _ = self.frame(1)
        typed = typed_call(self._template, self._schemas, function, before_result)
        typed_calls, _ = split_calls(typed, self.form)
        try:
            calls = [parse_call(call.text, self.form, {}) for call in typed_calls]
        except _BadCall:
            calls = []
        if calls != [(_PROBE_NAME, _PROBE_ARGUMENTS)]:
            raise ConfigError(
                f"this model's chat template writes a tool call in a way that would not be read back: {typed!r:.300}; "
                f"{WAY_OUT}"
            )

    def chat_prompt(self, question: str, history: Sequence[Message] = ()) -> ChatPrompt:
        prompt = super().chat_prompt(question, history)
        return ChatPrompt(prompt.messages, prompt.prefill, self._schemas)

    def shown_examples(self) -> str:
        """As in other dialects, with each call as this template writes it."""
        return _CALL_LINE.sub(self._written, super().shown_examples())

    def _written(self, line: re.Match[str]) -> str:
        try:
            call = json.loads(line[0])
            return written_call(**call, form=self.form, template=self._template, schemas=self._schemas)
        except (ValueError, TypeError):  # the user's own texts may hold a line that only looks like a call
            return line[0]

    def frame(self, results: int) -> tuple[str, ...]:
        """The texts around and between `results` results, beginning where the model's turn ended."""
        if results not in self._frames:
            self._frames[results] = result_frame(self._template, self._schemas, self.form, results)
        return self._frames[results]

    def result(self, text: str) -> str:
        """A result cut to the limit, and escaped if the template puts it into a JSON string (Llama 3.1)."""
        text = self.truncate(text)
        if self._results_are_json:
            return json.dumps(text, ensure_ascii=False)[1:-1]  # the template writes the quotes
        return text

    def reader(self) -> ToolCallReader:
        return ToolCallReader(self)


class ToolCallReader(ProseReader):
    """Typed bytes to calls, once the model's turn is over."""

    def __init__(self, dialect: ToolCallDialect) -> None:
        super().__init__()
        self._dialect = dialect
        self._message = ""
        """The text of the model's turn so far."""
        self._before = ""
        """The text before the model's turn."""
        self.asks_left = MOST_ASKED
        """How often a turn without a call and without an answer may still be answered."""
        self._asks = False
        """Whether the turn that has just ended is such a one, and is answered."""

    @property
    def form(self) -> CallForm:
        """How calls are written."""
        return self._dialect.form

    def begin_after(self, before: str) -> None:
        super().begin_after(before)
        self._before = before

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one line. At the end of the turn, the calls in all of its lines become cells."""
        turn = self._typed.take(typed, end_of_input)
        form = self._dialect.form
        if not end_of_input:
            _, prose_before = split_calls(self._message, form)
            self._message += turn.text
            calls, prose = split_calls(self._message, form)
            is_in_call = len(prose) < len(prose_before) + len(turn.text)
            kind = LineKind.OPEN if is_in_call else prose_kind([turn.text])
            # The results of calls come before an answer.
            answer = None if calls else self._answers.read(turn.lines, False)
            return Turn(turn.text, (), kind, answer)
        calls, prose = split_calls(self._message + turn.text, form)
        offset = len(self._message)
        self._message = ""
        kind = prose_kind([turn.text])
        if calls:
            cells = []
            for call in calls:
                span = (call.start - offset, call.end - offset)
                cells.append(replace(self._cell(call.text), span=span))
            self._asks = False
            *_, after = self._dialect.frame(len(cells))
            self.begin_after(after)
            return Turn(turn.text, tuple(cells), kind, None, waits=True)
        answer = AnswerReader(self._before).read(prose.split("\n"), True)
        asks = self._dialect.asks
        self._asks = answer is None and self.asks_left > 0 and asks is not None
        if self._asks:
            self.asks_left -= 1
        if asks is not None:
            self.begin_after(asks[-1].text)
        return Turn(turn.text, (), kind, answer, waits=self._asks)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """Each call's result in the template's frame, in the order of the calls; nothing before the turn has ended."""
        if self._asks and self._dialect.asks is not None:
            self._asks = False
            return self._dialect.asks
        if not runs:
            return ()
        first_frame, *frames = self._dialect.frame(len(runs))
        shown = [Shown(first_frame, is_frame=True)]
        for run, frame in zip(runs, frames, strict=True):
            shown.append(Shown(self._dialect.result(run.result)))
            shown.append(Shown(frame, is_frame=True))
        return tuple(shown)

    def _cell(self, call: str) -> Cell:
        try:
            name, arguments = parse_call(call, self._dialect.form, self._dialect.parameters)
            if name not in self._dialect.parameters:
                known = ", ".join(self._dialect.parameters)
                raise _BadCall("NameError", f"there is no tool {name!r}; there are {known}")
            if name in self._dialect.names:
                return Cell(f"print({name}(**{arguments!r}))", LineKind.EXPRESSION)
            if name == "python":
                code = arguments.get("code")
                if not isinstance(code, str):
                    raise _BadCall("TypeError", "python takes one argument, code, which is a string")
                fenced = _FENCED.fullmatch(code)
                if fenced is not None:
                    code = fenced["code"]
                if not code.strip():
                    raise _BadCall("ValueError", "python was called without code")
                return whole_cell(code)
            if "value" not in arguments:
                raise _BadCall("TypeError", "submit_final_answer takes one argument, value")
            return Cell(f"submit_final_answer({arguments['value']!r})", LineKind.EXPRESSION)
        except _BadCall as error:
            return Cell("", LineKind.SYNTAX_ERROR, Refusal(error.name, f"{error.name}: {error}"))


class _BadCall(ValueError):
    """A call that can't be made. `name` is the exception name to report."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def parse_call(text: str, form: CallForm, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and arguments of a call. Values in tags are read by the schemas of the tool's `parameters`.

    In JSON, arguments may be a string, and the last brackets may be missing: some models write so. Raises _BadCall.
    """
    if not text.startswith(("{", "[")) and (form.tags or text.startswith(QWEN_TAGS.before_name.strip())):
        try:
            name, texts = read_tags(text, form.tags or QWEN_TAGS)
        except ValueError as error:
            raise _BadCall("SyntaxError", f"the call can't be read: {error}") from error
        schemas = parameters.get(name, {})
        return name, {key: _converted(value, _types(schemas.get(key, {}))) for key, value in texts.items()}
    try:
        call = _read(_with_brackets(text))
        arguments = call.get(form.arguments_key, {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = _read(arguments)
    except (ValueError, RecursionError) as error:
        raise _BadCall("JSONDecodeError", f"the call is not JSON: {error}") from error
    if not isinstance(call, dict) or not isinstance(call.get(form.name_key), str):
        raise _BadCall("TypeError", f"a call is an object with {form.name_key!r} and {form.arguments_key!r}")
    if not isinstance(arguments, dict):
        raise _BadCall("TypeError", f"{form.arguments_key!r} has to be an object, by the names of the parameters")
    return call[form.name_key], arguments


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a parameter's schema admits; none if it names none."""
    type_names = schema.get("type", [])
    types = {type_names} if isinstance(type_names, str) else set(type_names)
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(key, []):
            types |= _types(choice)
    if schema.get("nullable"):
        types.add("null")
    return types


def _converted(text: str, types: set[str]) -> Any:
    """A value in tags: as JSON if that has one of these types, or if none of them is text."""
    if types <= {"string"}:
        return text
    try:
        value = _PYTHON_WORDS[text] if text in _PYTHON_WORDS else _read(text)
    except (ValueError, RecursionError):
        return text  # the tool says what is wrong with it
    if "string" in types and types.isdisjoint(_SCHEMA_TYPES.get(type(value), set())):
        return text
    return value


def _with_brackets(text: str) -> str:
    """The text, with the closing brackets that it lacks at its end if that makes it JSON."""
    for missing in ("}", "}}"):
        completed = text.rstrip() + missing
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(completed, strict=False)
            return completed
    return text


def _read(text: str) -> Any:
    """JSON without NaN and the infinities: Python's reader accepts them, but no Python literal can express them.

    Raises ValueError, also for a value that is nested too deeply, and RecursionError.
    """
    value = json.loads(text, parse_constant=finite, parse_float=finite, strict=False)
    require_shallow(value)
    return value
