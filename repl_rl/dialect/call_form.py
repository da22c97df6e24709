"""How a chat template writes tool calls and their results, derived from its renderings of a made-up conversation.

A call has to be a JSON object with a key for the name and a key for the arguments, alone or in a list, either between
marks or as a whole message. Templates that write names and arguments in separate tags are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.dialect.base import Template
from repl_rl.errors import ConfigError, ModelError

_NAME, _ARGUMENT, _VALUE, _RESULT = "reprl_name", "reprl_argument", "reprl_value", "reprl_result_{}_"
_CALL_ID = "reprlcall"
"""Nine letters, as Mistral's templates require."""
_MARK = re.compile(r"<[^<>|]+>|\[/[^\[\]]+\]")
_WHOLE_MESSAGE = re.compile(r"\s*(?:<\|[^<>|]+\|>\s*)?(?=[\[{])")
"""A call without marks may have a special token in front of it, such as Llama's <|python_tag|>."""
_BETWEEN = re.compile(r"[\s,;]*")
_WAY_OUT = "take another model, or the dialect inline or fenced"

Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call is `opening`, then JSON with these two keys, then `closing`. Without marks it is a whole message."""

    opening: str
    closing: str
    name_key: str
    arguments_key: str


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A conversation with a call in it: `text[start:end]` is the call, with the brackets of the list around it."""

    text: str
    start: int
    end: int
    name_key: str
    arguments_key: str


def call_form(template: Template, schemas: Schemas) -> CallForm:
    """Find out how the template writes a call. Raises ConfigError unless it uses JSON and presents the tools."""
    call = _rendered_call(template, schemas, 0)
    offered = _rendered(template, [{"role": "user", "content": "?"}], schemas, True)
    if any(str(schema["function"]["name"]) not in offered for schema in schemas):
        raise ConfigError(f"this model's chat template has no place for tools; {_WAY_OUT}")
    without = _rendered(template, _conversation(False, 0), schemas, False)
    # The opening mark begins where a turn with a call first differs from one without, at the start of a word or a tag.
    pairs = zip(call.text[: call.start], without, strict=False)
    parting = next((i for i, (one, other) in enumerate(pairs) if one != other), min(call.start, len(without)))
    while parting and call.text[parting - 1] not in "\n >]":
        parting -= 1
    found = _MARK.match(call.text[call.end :].lstrip())
    # A mark that also ends turns without a call does not close calls.
    closing = found[0] if found and found[0] not in without[parting:] else ""
    return CallForm(call.text[parting : call.start].strip(), closing, call.name_key, call.arguments_key)


def result_frame(template: Template, schemas: Schemas, form: CallForm, results: int) -> tuple[str, ...]:
    """What the template writes around `results` results: `results` + 1 texts.

    They reach from the end of the model's turn to the beginning of its next one. Raises ConfigError if the template has
    no place for results.
    """
    call = _rendered_call(template, schemas, results)
    after = call.text[call.end :]
    if form.closing:
        after = after.partition(form.closing)[2]
    frames = re.split("|".join(_RESULT.format(index) for index in range(results)), after)
    if len(frames) != results + 1:
        raise ConfigError(f"this model's chat template leaves out results of tools; {_WAY_OUT}")
    return tuple(frames)


def split_calls(message: str, form: CallForm) -> tuple[list[str], str]:
    """The calls in a message, in order, and its prose. A call without its closing mark ends with the message."""
    if not form.opening:
        mark = _WHOLE_MESSAGE.match(message)
        return (_items(message[mark.end() :].strip()), "") if mark else ([], message)
    closing = rf"(?:{re.escape(form.closing)}|\Z)" if form.closing else r"\Z"
    parts = re.split(rf"{re.escape(form.opening)}([\s\S]*?){closing}", message)
    return [call for block in parts[1::2] for call in _items(block.strip())], "".join(parts[0::2])


def is_in_call(before: str, line: str, form: CallForm) -> bool:
    """Whether part of `line` belongs to a call; `before` is the message up to it."""
    if not form.opening:
        return _WHOLE_MESSAGE.match(before + line) is not None
    _, opening, rest = before.rpartition(form.opening)
    return form.opening in line or (bool(opening) and not (form.closing and form.closing in rest))


def _items(block: str) -> list[str]:
    """The JSON objects in a block, lists unpacked. Text that can't be read counts as one call, to be refused later."""
    found: list[str] = []
    position = 0
    while position < len(block):
        try:
            value, end = json.JSONDecoder().raw_decode(block, position)
        except (ValueError, RecursionError):
            return [*found, block[position:]]
        items = value if isinstance(value, list) else [value]
        found += [json.dumps(item) for item in items] if isinstance(value, list) else [block[position:end]]
        between = _BETWEEN.match(block, end)
        position = between.end() if between else end
    return found or [block]


def _rendered(template: Template, messages: Schemas, schemas: Schemas, opens: bool) -> str:
    try:
        return template(messages, schemas, opens)
    except ModelError as error:
        raise ConfigError(f"{error}; {_WAY_OUT}") from error


def _rendered_call(template: Template, schemas: Schemas, results: int) -> _Rendered:
    text = _rendered(template, _conversation(True, results), schemas, results > 0)
    for match in re.finditer(r"\{", text):
        try:
            call, end = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        if not isinstance(call, dict):
            continue
        names = [key for key, value in call.items() if value == _NAME]
        arguments = [key for key, value in call.items() if value == {_ARGUMENT: _VALUE}]
        if names and arguments:
            start = match.start()
            before, after = text[:start].rstrip(), text[end:].lstrip()
            if before.endswith("[") and after.startswith("]"):
                start, end = len(before) - 1, len(text) - len(after) + 1
            return _Rendered(text, start, end, names[0], arguments[0])
    raise ConfigError(
        f"this model's chat template writes tool calls otherwise than as JSON objects, or leaves them out; {_WAY_OUT}"
    )


def _conversation(calls: bool, results: int) -> list[dict[str, Any]]:
    function = {"name": _NAME, "arguments": {_ARGUMENT: _VALUE}}
    call = {"type": "function", "id": _CALL_ID, "function": function}
    said: dict[str, Any] = {"role": "assistant", "content": "", **({"tool_calls": [call]} if calls else {})}
    answers = [
        {"role": "tool", "name": _NAME, "tool_call_id": _CALL_ID, "content": _RESULT.format(index)}
        for index in range(results)
    ]
    return [{"role": "user", "content": "?"}, said, *answers]
