"""How a chat template writes calls of tools and their results, read off its renderings of a made-up conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.dialect.base import Template
from repl_rl.errors import ConfigError

_NAME, _ARGUMENT, _VALUE, _RESULT = "reprl_name", "reprl_argument", "reprl_value", "reprl_result_{}_"
_MARK = re.compile(r"<[^<>|]+>|\[/[^\[\]]+\]")
_WAY_OUT = "take another model, or the dialect inline or fenced"

Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call is `opening`, JSON with these two keys, `closing`; without marks it is a whole message."""

    opening: str
    closing: str
    name_key: str
    arguments_key: str


def call_form(template: Template, schemas: Schemas) -> CallForm:
    """Read off how the template writes a call. Raises ConfigError if it does not do so in JSON."""
    text = template(_conversation(True, 0), schemas, False)
    without = template(_conversation(False, 0), schemas, False)
    for match in re.finditer(r"\{", text):
        try:
            call, end = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        if keys := _keys_of(call):
            return CallForm(_opening_mark(text, match.start(), without), _closing_mark(text[end:]), *keys)
    raise ConfigError(
        f"this model's chat template writes tool calls otherwise than as JSON objects, or leaves them out; {_WAY_OUT}"
    )


def result_frame(template: Template, schemas: Schemas, form: CallForm, results: int) -> tuple[str, ...]:
    """What the template writes around `results` results, from the end of the model's turn to the beginning of its next
    one: `results` + 1 texts. Raises ConfigError if it has no place for them.
    """
    text = template(_conversation(True, results), schemas, True)
    call = re.search(f"{_VALUE}[^{{}}]*}}[^{{}}]*}}", text)
    if call is None or any(_RESULT.format(index) not in text[call.end() :] for index in range(results)):
        raise ConfigError(
            f"this model's chat template leaves out results of tools, or the call before them; {_WAY_OUT}"
        )
    behind = text[call.end() :]
    if form.closing:
        behind = behind.partition(form.closing)[2]
    return tuple(re.split("|".join(_RESULT.format(index) for index in range(results)), behind))


def split_calls(message: str, form: CallForm) -> tuple[list[str], str]:
    """The calls in a message, in order, and its prose; one that lacks its closing mark ends with the message."""
    if not form.opening:
        text = message.strip()
        return (_items(text), "") if text.startswith(("{", "[")) else ([], message)
    closing = rf"(?:{re.escape(form.closing)}|\Z)" if form.closing else r"\Z"
    parts = re.split(rf"{re.escape(form.opening)}([\s\S]*?){closing}", message)
    return [call for block in parts[1::2] for call in _items(block.strip())], "".join(parts[0::2])


def is_in_call(message: str, form: CallForm) -> bool:
    """Whether a message that goes on stands inside of a call."""
    if not form.opening:
        return message.lstrip().startswith(("{", "["))
    _, opening, rest = message.rpartition(form.opening)
    return bool(opening) and not (form.closing and form.closing in rest)


def _items(block: str) -> list[str]:
    """The objects of a list, or the one object; what can't be read is one call, which will be refused."""
    if block.startswith("["):
        try:
            return [json.dumps(item) for item in json.loads(block)]
        except (ValueError, RecursionError):
            pass
    return [block]


def _conversation(calls: bool, results: int) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": _NAME, "arguments": {_ARGUMENT: _VALUE}}}
    said: dict[str, Any] = {"role": "assistant", "content": "", **({"tool_calls": [call]} if calls else {})}
    answers = [{"role": "tool", "name": _NAME, "content": _RESULT.format(index)} for index in range(results)]
    return [{"role": "user", "content": "?"}, said, *answers]


def _keys_of(call: Any) -> tuple[str, str] | None:
    """Under which keys name and arguments stand, if this is the call that was rendered."""
    if not isinstance(call, dict):
        return None
    names = [key for key, value in call.items() if value == _NAME]
    arguments = [key for key, value in call.items() if value == {_ARGUMENT: _VALUE}]
    return (names[0], arguments[0]) if names and arguments else None


def _opening_mark(text: str, start: int, without: str) -> str:
    """What stands in front of the call and not in a turn without one. Marks begin where a word or a tag does."""
    pairs = zip(text[:start], without, strict=False)
    common = next((index for index, (one, other) in enumerate(pairs) if one != other), min(start, len(without)))
    while common and text[common - 1] not in "\n >":
        common -= 1
    return text[common:start].strip().removesuffix("[").strip()


def _closing_mark(behind: str) -> str:
    found = _MARK.match(behind.lstrip())
    return found[0] if found else ""
