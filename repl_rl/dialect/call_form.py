"""How a chat template writes tool calls and their results, derived from its renderings of a made-up conversation.

A call is a JSON object with a key for the name and a key for the arguments, alone or in a list, either between marks or
as a whole message. Or name and arguments stand in tags of their own, as in the templates of Qwen3-Coder, Qwen3.5 and
GLM-4.5. Templates that write calls in other ways are refused.

Models also write calls otherwise than their templates do, small ones most of the time. What can only be a call is read
as one: such an object between other tags, in a block of JSON, or on a line of its own; `<function=name>` with JSON or
with parameters in it; and a block of Python, or what follows Llama's `<|python_tag|>`, which are calls of `python`. An
object may be nested as in OpenAI's API, and have `parameters` for `arguments`.
"""

import ast
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from repl_rl.dialect.answers import TABLE
from repl_rl.dialect.base import Template
from repl_rl.dialect.syntax import is_deep
from repl_rl.errors import ConfigError, ModelError
from repl_rl.utils.text import parsed

_NAME, _VALUE, _RESULT = "reprl_name", "reprl_value", "reprl_result_{}_"
_SAID = "reprl_said"
_ARGUMENTS = {"reprl_first": _VALUE, "reprl_second": "reprl_other"}
_PROBE = {"name": _NAME, "arguments": _ARGUMENTS}
_IN_TAGS = re.compile(
    rf"([\s\S]*){_NAME}([\s\S]+?)reprl_first([\s\S]+?){_VALUE}([\s\S]+?)reprl_second\3reprl_other([\s\S]*)"
)
_QUESTION = {"role": "user", "content": "?"}
_CALL_ID = "reprlcall"
"""Nine letters, as Mistral's templates require."""
_MARK = re.compile(r"<[^<>|]+>|\[/[^\[\]]+\]|<\|[^<>|]+\|>")
_SIDES = {"start", "begin", "open", "end", "close"}
"""Words that tell the opening mark of a pair from the closing one."""
_THOUGHT = re.compile(
    "|".join(rf"{re.escape(opening)}[\s\S]*?{re.escape(closing)}" for opening, closing in TABLE["thoughts"]),
    re.IGNORECASE,
)
_WHOLE_MESSAGE = re.compile(r"\s*(?:<\|[^<>|]+\|>\s*)?(?=[\[{])")
"""A call without marks may have a special token in front of it, such as Llama's <|python_tag|>."""
_BETWEEN = re.compile(r"[\s,;]*")
_OTHER_MARKS = re.compile(
    r"<(?P<tag>tool_calls?|tools?|function_calls?)>(?P<tagged>[\s\S]*?)(?:</(?P=tag)>|\Z)"
    r"|<function=(?P<name>[\w.-]+)>(?P<body>[\s\S]*?)(?:</function>|\Z)"
    r"|^ {0,3}```[ ]*(?P<label>json|tool_calls?|python3?|py|tool_code|repl|)[ ]*\n(?P<fenced>[\s\S]*?)"
    r"(?:^ {0,3}```[ ]*$|\Z)",
    re.MULTILINE,
)
_CODE_LABELS = ("python", "python3", "py", "tool_code", "repl")
_NAME_KEY, _ARGUMENTS_KEYS = "name", ("arguments", "parameters")
_NESTING_KEY, _LIST_KEY = "function", "tool_calls"
"""Of OpenAI's API: the function in a call, and the calls in a message."""
_BESIDE = {"type", "id", "call_id", "tool_call_id", "index"}
"""Keys that a call may have besides."""
_PYTHON_TAG = re.compile(r"^[ \t]*<\|python_tag\|>", re.MULTILINE)
_CALL_OF_TOOL = re.compile(r"\w+\.call\(")
WAY_OUT = "take another model, or the dialect inline or fenced"
_DECODER = json.JSONDecoder(strict=False)
"""Lets strings hold newlines as they are, as models write code in them."""

Schemas = Sequence[Mapping[str, Any]]


class Tags(NamedTuple):
    """The texts around the parts of a call in tags: `before_name` NAME `after_name`, for each argument `before_key` KEY
    `before_value` VALUE `after_value`, then `end`."""

    before_name: str
    after_name: str
    before_key: str
    before_value: str
    after_value: str
    end: str


QWEN_TAGS = Tags("\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n")
"""Of Qwen3-Coder, and of Qwen from 3.5 on. Other models write so too."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call is `opening`, then JSON with these two keys, or `tags`, then `closing`. JSON without marks is a whole
    message."""

    opening: str
    closing: str
    name_key: str
    arguments_key: str
    tags: Tags | None = None


def call_form(template: Template, schemas: Schemas) -> CallForm:
    """How the template writes a call. Raises ConfigError unless it writes JSON or tags, and presents the tools."""
    before, after, form = _rendered_call(template, schemas, 0)
    offered = _rendered(template, [_QUESTION], schemas, True)
    if any(str(schema["function"]["name"]) not in offered for schema in schemas):
        raise ConfigError(f"this model's chat template has no place for tools; {WAY_OUT}")
    without = _rendered(template, _conversation(None, 0, said=_SAID), schemas, False)
    parting = _parting(before, without)
    opening, tail = _THOUGHT.sub("", before[parting:]).strip(), without[parting:]
    if form.tags is None:
        found = _MARK.match(after.lstrip())
        closes = found is not None and _closes(found[0], opening, tail)
        return replace(form, opening=opening, closing=found[0] if found and closes else "")
    first = _MARK.match(opening)
    opened = first[0] if first else opening
    closing = ([mark for mark in _MARK.findall(after) if _closes(mark, opened, tail)] or [""])[-1]
    tags = form.tags._replace(before_name=opening[len(opened) :], end=after[: after.find(closing)])
    return replace(form, opening=opened, closing=closing, tags=tags)


def _parting(text: str, other: str) -> int:
    """Where two renderings first differ, at the start of a word or a mark: of a turn with a call and one without, or of
    a turn and the prompt that asks for it, that is where the model's own text begins."""
    pairs = zip(text, other, strict=False)
    parting = next((i for i, (one, another) in enumerate(pairs) if one != another), min(len(text), len(other)))
    while parting and text[parting - 1] not in "\n >]":
        parting -= 1
    return parting


def _closes(mark: str, opening: str, tail: str) -> bool:
    """Whether a mark after a call closes it, and not the turn: it ends no turn without a call. A mark with bars has to
    be the other one of a pair too, since some templates end turns with calls in their own way (Llama's `<|eom_id|>`).
    """
    if not mark.startswith("<|"):
        return mark not in tail
    marks = [set(re.findall("[a-z]+", each.lower())) for each in (mark, opening.rpartition("<")[2])]
    return marks[0] - _SIDES == marks[1] - _SIDES


def result_frame(template: Template, schemas: Schemas, form: CallForm, results: int) -> tuple[str, ...]:
    """What the template writes around `results` results: `results` + 1 texts.

    They reach from the end of the model's turn to the beginning of its next one. Raises ConfigError if the template has
    no place for results.
    """
    _, after, _ = _rendered_call(template, schemas, results)
    if form.closing:
        after = after.partition(form.closing)[2]
    # White space that stands between a call and the end of its turn, but not at the end of other turns, is the model's.
    if (said := user_frame(template)) and not said[0][0].isspace():
        after = after.lstrip()
    frames = re.split("|".join(_RESULT.format(index) for index in range(results)), after)
    if len(frames) != results + 1:
        raise ConfigError(f"this model's chat template leaves out results of tools; {WAY_OUT}")
    return tuple(frames)


def typed_call(template: Template, schemas: Schemas, function: Mapping[str, Any], end: str) -> str:
    """What the template makes a model type to call a function: from the prompt that asks for its turn up to `end`, the
    text between a turn and the first result."""
    prompt = _rendered(template, [_QUESTION], schemas, True)
    text = _rendered(template, _conversation(function, 1), schemas, True)
    typed = text[_parting(text, prompt) :]
    return typed.rpartition(end + _RESULT.format(0))[0] or typed


def user_frame(template: Template) -> tuple[str, str] | None:
    """What the template writes around a message of the user's, from the end of the model's turn to its next one; None
    if it does not write such a conversation."""
    try:
        asked = [_QUESTION, {"role": "assistant", "content": _VALUE}]
        text = template([*asked, {"role": "user", "content": _NAME}], (), True)
    except ModelError:
        return None
    before, _, behind = text.partition(_VALUE)[2].partition(_NAME)
    return (before, behind) if before and behind else None


def split_calls(message: str, form: CallForm) -> tuple[list[str], str]:
    """The calls in a message as JSON or in tags, in order, and its prose. A call without a closing mark ends with the
    message."""
    tag = _PYTHON_TAG.search(message)
    if tag is not None and not _may_hold_calls(message[tag.end() :]):
        calls, prose = split_calls(message[: tag.start()], form)
        return calls + _tagged_calls(message[tag.end() :].strip(), form), prose
    if not form.opening:
        mark = _WHOLE_MESSAGE.match(message)
        if mark is None:
            return _otherwise_written(message, form)
        return _calls_in(message[mark.end() :].strip(), form), ""
    closing = rf"(?:{re.escape(form.closing)}|\Z)" if form.closing else r"\Z"
    calls, prose = list[str](), ""
    for index, part in enumerate(re.split(rf"{re.escape(form.opening)}([\s\S]*?){closing}", message)):
        is_marked = index % 2 == 1
        found, rest = (_calls_in(part.strip(), form), "") if is_marked else _otherwise_written(part, form)
        calls, prose = calls + found, prose + rest
    return calls, prose


def read_tags(text: str, tags: Tags) -> tuple[str, dict[str, str]]:
    """The name and the arguments of a call in tags. At its end, tags may be missing. Raises ValueError."""
    name = re.match(rf"{_loosely(tags.before_name)}([^\s<>\"]+)\s*{_loosely(tags.after_name)}", text)
    if name is None:
        raise ValueError(f"it has to begin with {tags.before_name.strip()}NAME{tags.after_name.rstrip()}")
    argument = re.compile(rf"\s*{_loosely(tags.before_key)}([^\s<>\"]+)\s*{_loosely(tags.before_value)}")
    # White space next to a value is the template's, as far as the template writes it; the rest is the value's.
    lead, closing = tags.before_value[len(tags.before_value.rstrip()) :], tags.after_value.strip()
    trail = tags.after_value.partition(closing)[0]
    arguments, rest = dict[str, str](), text[name.end() :]
    while key := argument.match(rest):
        value, closed, rest = rest[key.end() :].partition(closing)
        if f"\n{tags.before_key}" in value:
            raise ValueError(f"{key[0].strip()} is not closed by {closing}")
        value = value if closed else value.rstrip().removesuffix(tags.end.strip())
        arguments[key[1]] = value.removeprefix(lead).removesuffix(trail)
    if rest.strip() not in ("", tags.end.strip()):
        raise ValueError(f"{rest.strip():.40} stands where {tags.before_key}KEY... or its end should")
    return name[1], arguments


def _loosely(piece: str) -> str:
    return r"\s*".join(map(re.escape, piece.split()))


def written_call(name: str, arguments: Mapping[str, Any], form: CallForm, template: Template, schemas: Schemas) -> str:
    """A call as the template writes it; one in JSON with its marks on lines of their own."""
    if form.tags:
        text = _rendered(template, _conversation({"name": name, "arguments": arguments}, 0), schemas, False)
        return text[text.rindex(form.opening) : text.rindex(form.closing)] + form.closing
    call = json.dumps({form.name_key: name, form.arguments_key: arguments}, ensure_ascii=False)
    return "\n".join(filter(None, [form.opening, call, form.closing]))


def _otherwise_written(text: str, form: CallForm) -> tuple[list[str], str]:
    """The calls in a text without the template's marks, and the prose around them. JSON has the template's keys."""
    calls, prose, position = list[str](), "", 0
    for mark in _OTHER_MARKS.finditer(text):
        found = _marked_calls(mark, form)
        if found:
            own, rest = _bare_calls(text[position : mark.start()], form)
            calls, prose, position = [*calls, *own, *found], prose + rest, mark.end()
    own, rest = _bare_calls(text[position:], form)
    return calls + own, prose + rest


def _marked_calls(mark: re.Match[str], form: CallForm) -> list[str]:
    """The calls between other marks than the template's; none if what is there is something else."""
    if mark["name"] is not None:
        body = mark["body"].strip() or "{}"
        if not body.startswith("{"):
            return [mark[0]]
        return [f'{{"{form.name_key}": {json.dumps(mark["name"])}, "{form.arguments_key}": {body}}}']
    if mark["label"] in _CODE_LABELS:
        return _python_calls(mark["fenced"].rstrip("\n"), form)
    block = (mark["tagged"] or mark["fenced"] or "").strip()
    return _calls_in(block, form) if _may_hold_calls(block) else []


def _python_calls(code: str, form: CallForm) -> list[str]:
    """The call of `python` that code stands for; none without code."""
    return [json.dumps({form.name_key: "python", form.arguments_key: {"code": code}})] if code.strip() else []


def _tagged_calls(code: str, form: CallForm) -> list[str]:
    """What follows Llama's tag: code for `python`, or the call of a tool as `name.call(key="value")`."""
    tree = parsed(code) if _CALL_OF_TOOL.match(code) and not is_deep(code) else None
    match tree and tree.body:
        case [ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "call"), [], keywords))]:
            with contextlib.suppress(ValueError, TypeError):  # its values are computed, so it is other code
                arguments = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
                return [json.dumps({form.name_key: name, form.arguments_key: arguments})]
    return _python_calls(code, form)


def _bare_calls(text: str, form: CallForm) -> tuple[list[str], str]:
    """The calls that begin a line of a text without marks, and the rest of the text."""
    calls, prose, position = list[str](), "", 0
    for start in re.finditer(r"^[ \t]*(?=\[\s*\{|\{\s*[\"}])", text, re.MULTILINE):
        if start.start() < position:
            continue
        try:
            value, end = _DECODER.raw_decode(text, start.end())
        except (ValueError, RecursionError):
            if _may_hold_calls(text[start.end() :]):  # meant as one, and to be refused
                return [*calls, text[start.end() :].strip()], prose + text[position : start.start()]
            continue
        items = _unnested(value)
        if items and all(map(_is_call, items)):
            calls += [_in_form(json.dumps(item), form) for item in items]
            prose, position = prose + text[position : start.start()], end
    return calls, prose + text[position:]


def _may_hold_calls(block: str) -> bool:
    return f'"{_NAME_KEY}"' in block and any(f'"{key}"' in block for key in _ARGUMENTS_KEYS)


def _is_call(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get(_NAME_KEY), str):
        return False
    arguments = [key for key in _ARGUMENTS_KEYS if key in value]
    if len(arguments) != 1 or value.keys() - _BESIDE - {_NAME_KEY, *arguments}:
        return False
    return isinstance(value[arguments[0]], dict | str)


def _unnested(value: Any) -> list[Any]:
    """The calls in a value, as far as it has any: those of a list, of OpenAI's `tool_calls`, and what stands in them
    under `function`."""
    if isinstance(value, dict) and isinstance(value.get(_LIST_KEY), list):
        value = value[_LIST_KEY]
    calls = []
    for item in value if isinstance(value, list) else [value]:
        is_nested = isinstance(item, dict) and isinstance(item.get(_NESTING_KEY), dict)
        calls.append(item[_NESTING_KEY] if is_nested else item)
    return calls


def _calls_in(block: str, form: CallForm) -> list[str]:
    """The calls in a block between marks. One in tags of the template stays whole."""
    return [_in_form(item, form) for item in _items(block)]


def _in_form(call: str, form: CallForm) -> str:
    """A call with the template's keys; what can't be read stays as it is, to be refused later."""
    try:
        value = _DECODER.decode(call)
    except (ValueError, RecursionError):
        return call
    if not isinstance(value, dict) or {form.name_key, form.arguments_key} <= value.keys():
        return call
    names = {_NAME_KEY: form.name_key, **dict.fromkeys(_ARGUMENTS_KEYS, form.arguments_key)}
    return json.dumps({names.get(key, key): each for key, each in value.items()})


def _items(block: str) -> list[str]:
    """The JSON objects in a block, out of lists and nesting. Text that can't be read counts as one call, to be refused
    later."""
    found: list[str] = []
    position = 0
    while position < len(block):
        try:
            value, end = _DECODER.raw_decode(block, position)
        except (ValueError, RecursionError):
            return [*found, block[position:]]
        items = _unnested(value)
        found += [block[position:end]] if items == [value] else [json.dumps(item) for item in items]
        between = _BETWEEN.match(block, end)
        position = between.end() if between else end
    return found or [block]


def _rendered(template: Template, messages: Schemas, schemas: Schemas, opens: bool) -> str:
    try:
        return template(messages, schemas, opens)
    except ModelError as error:
        raise ConfigError(f"{error}; {WAY_OUT}") from error


def _rendered_call(template: Template, schemas: Schemas, results: int) -> tuple[str, str, CallForm]:
    """What a conversation has before a call and after it, the brackets of a list not included, and the call's form
    without its marks. Of a call in tags, `before` ends at its name, and `after` begins after its arguments."""
    text = _rendered(template, _conversation(_PROBE, results), schemas, results > 0)
    for match in re.finditer(r"\{", text):
        try:
            call, end = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        if not isinstance(call, dict):
            continue
        names = [key for key, value in call.items() if value == _NAME]
        arguments = [key for key, value in call.items() if value == _ARGUMENTS]
        if names and arguments:
            before, after = text[: match.start()], text[end:]
            if before.rstrip().endswith("[") and after.lstrip().startswith("]"):
                before, after = before.rstrip()[:-1], after.lstrip()[1:]
            return before, after, CallForm("", "", names[0], arguments[0])
    if found := _IN_TAGS.fullmatch(text):
        before, after_name, before_value, between, after = found.groups()
        after_value, begins, key = between.rpartition("<")
        if after_value.strip() and after_name.endswith(begins + key) and _NAME not in before:
            tags = Tags("", after_name.removesuffix(begins + key), begins + key, before_value, after_value, "")
            return before, after.removeprefix(after_value), CallForm("", "", _NAME_KEY, _ARGUMENTS_KEYS[0], tags)
    raise ConfigError(
        "this model's chat template writes tool calls neither as JSON objects nor in tags, or leaves them out; "
        f"{WAY_OUT}"
    )


def _conversation(function: Mapping[str, Any] | None, results: int, said: str = "") -> list[dict[str, Any]]:
    call = {"type": "function", "id": _CALL_ID, "function": function}
    turn: dict[str, Any] = {"role": "assistant", "content": said}
    if function is not None:
        turn["tool_calls"] = [call]
    answers = [
        {"role": "tool", "name": _NAME, "tool_call_id": _CALL_ID, "content": _RESULT.format(index)}
        for index in range(results)
    ]
    return [_QUESTION, turn, *answers]
