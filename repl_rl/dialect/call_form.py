"""How a chat template writes tool calls and their results, derived from its renderings of a made-up conversation.

A call is a JSON object with a key for the name and a key for the arguments, alone or in a list, either between marks or
as a whole message. Or name and arguments stand in tags of their own, as in the templates of Qwen3-Coder, Qwen3.5 and
GLM-4.5. Templates that write calls in other ways are refused.

Models, and small ones most of the time, also write calls in other ways than their templates do. A text that can only be
a call is read as one: such an object between other tags, in a block of JSON, or on a line of its own; `<function=name>`
with JSON or with parameters in it; and a block of Python, or the text after Llama's `<|python_tag|>`, which are calls
of `python`. An object may be nested as in OpenAI's API, and have `parameters` for `arguments`.
"""

import ast
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from repl_rl.dialect.answers import TABLE
from repl_rl.dialect.base import Template
from repl_rl.dialect.syntax import is_deep
from repl_rl.errors import ConfigError, ModelError
from repl_rl.utils.text import parsed

# Texts of the made-up conversation, which are looked for in its renderings: no template writes them itself.
_NAME = "reprl_name"
_VALUE = "reprl_value"
_RESULT = "reprl_result_{}_"
_CONTENT = "reprl_said"
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
_JSON_START = r"(?=\[\s*\{|\{\s*[\"}])"
"""Before an object, or a list of objects; not before [1, 2] or {1, 2}."""
_WHOLE_MESSAGE = re.compile(rf"\s*(?:<\|[^<>|]+\|>\s*)?{_JSON_START}")
"""A call without marks may have a special token in front of it, such as Llama's <|python_tag|>."""
_BARE_START = re.compile(rf"^[ \t]*{_JSON_START}", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,;]*")
_OTHER_OPENING = re.compile(
    r"<(?P<tag>tool_calls?|tools?|function_calls?)>"
    r"|<function=(?P<name>[\w.-]+)>"
    r"|^(?P<indentation> {0,3})(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$",
    re.MULTILINE,
)
"""What a call begins with that is not between the template's marks: a tag, or the fence of a block of markdown."""
_CLOSING_FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\S\n]*$", re.MULTILINE)
CODE_LABELS = frozenset({"python", "py", "python3", "ipython", "tool_code", "repl"})
"""Of blocks of markdown that run."""
_CALL_LABELS = ("", "json", "tool_call", "tool_calls")
_NAME_KEY = "name"
_ARGUMENTS_KEYS = ("arguments", "parameters")
_NESTING_KEY = "function"
"""In OpenAI's API, the function in a call."""
_LIST_KEY = "tool_calls"
"""In OpenAI's API, the calls in a message."""
_OTHER_KEYS = {"type", "id", "call_id", "tool_call_id", "index"}
"""Keys that a call may have besides its name and its arguments."""
_PYTHON_TAG = re.compile(r"^[ \t]*<\|python_tag\|>", re.MULTILINE)
_TOOL_CALL = re.compile(r"\w+\.call\(")
WAY_OUT = "take another model, or the dialect inline or fenced"
_DECODER = json.JSONDecoder(strict=False)
"""Lets strings hold newlines as they are, as models write code in them."""
_MOST_DEPTH = 100
"""Lists and objects in each other, as in kernels/python/repl_host.py. Deeper values could exhaust the stack."""

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
    without_call = _rendered(template, _conversation(None, 0, content=_CONTENT), schemas, False)
    start = _parting(before, without_call)
    opening = _THOUGHT.sub("", before[start:]).strip()
    tail = without_call[start:]
    closing = ""
    if form.tags is None:
        next_mark = _MARK.match(after.lstrip())
        if next_mark is not None and _closes(next_mark[0], opening, tail):
            closing = next_mark[0]
        return replace(form, opening=opening, closing=closing)
    # Of a call in tags, `opening` reaches up to the name: a mark that opens the call, then the name's own tag.
    first_mark = _MARK.match(opening)
    before_name = ""
    if first_mark is not None:
        before_name = opening[first_mark.end() :]
        opening = first_mark[0]
    for mark in _MARK.findall(after):
        if _closes(mark, opening, tail):
            closing = mark  # the last one; the tag that closes the name's comes before it
    tags = form.tags._replace(before_name=before_name, end=after[: after.find(closing)])
    return replace(form, opening=opening, closing=closing, tags=tags)


def _parting(text: str, other: str) -> int:
    """Where two renderings first differ, at the start of a word or a mark.

    The model's own text begins there, if they are a turn with a call and one without, or a turn and the prompt that
    asks for it.
    """
    parting = 0
    for character, other_character in zip(text, other, strict=False):
        if character != other_character:
            break
        parting += 1
    while parting and text[parting - 1] not in "\n >]":
        parting -= 1
    return parting


def _closes(mark: str, opening: str, tail: str) -> bool:
    """Whether a mark after a call closes the call, rather than the turn: turns without a call don't end with it.

    A mark with bars also has to pair with the opening one, because some templates end turns with calls in their own way
    (Llama's `<|eom_id|>`).
    """
    if not mark.startswith("<|"):
        return mark not in tail
    words = set(re.findall("[a-z]+", mark.lower()))
    opening_words = set(re.findall("[a-z]+", opening.rpartition("<")[2].lower()))
    return words - _SIDES == opening_words - _SIDES


def result_frame(template: Template, schemas: Schemas, form: CallForm, results: int) -> tuple[str, ...]:
    """What the template writes around `results` results: `results` + 1 texts.

    They reach from the end of the model's turn to the beginning of its next one. Raises ConfigError if the template has
    no place for results.
    """
    _, after, _ = _rendered_call(template, schemas, results)
    if form.closing:
        after = after.partition(form.closing)[2]
    # White space that stands between a call and the end of its turn, but not at the end of other turns, is the model's.
    frame = user_frame(template)
    if frame is not None and not frame[0][0].isspace():
        after = after.lstrip()
    any_result = "|".join(_RESULT.format(index) for index in range(results))
    frames = re.split(any_result, after)
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
    messages = [_QUESTION, {"role": "assistant", "content": _VALUE}, {"role": "user", "content": _NAME}]
    try:
        text = template(messages, (), True)
    except ModelError:
        return None
    after_turn = text.partition(_VALUE)[2]
    before, _, after = after_turn.partition(_NAME)
    return (before, after) if before and after else None


class TypedCall(NamedTuple):
    """A call, and where it stands in a text, marks included. Calls of one list stand in the same place."""

    text: str
    """JSON with the template's keys, or tags."""
    start: int
    end: int


def split_calls(message: str, form: CallForm) -> tuple[list[TypedCall], str]:
    """The calls in a message as JSON or in tags, in order, and its prose. A call without a closing mark ends with the
    message."""
    tag = _PYTHON_TAG.search(message)
    if tag is not None and not _may_hold_calls(message[tag.end() :]):
        calls, prose = split_calls(message[: tag.start()], form)
        tagged = _tagged_calls(message[tag.end() :].strip(), form)
        return calls + _placed(tagged, tag.start(), len(message)), prose
    calls = _typed_calls(message, form)
    prose = ""
    position = 0
    for call in calls:
        prose += message[position : call.start]
        position = call.end
    return calls, prose + message[position:]


def _typed_calls(message: str, form: CallForm) -> list[TypedCall]:
    if not form.opening:
        mark = _WHOLE_MESSAGE.match(message)
        if mark is None or not _names_function(message, mark.end()):
            return _otherwise_written(message, form)
        return _placed(_calls_in(message[mark.end() :].strip(), form), 0, len(message))
    begins_call = _beginning(form)
    calls: list[TypedCall] = []
    position = 0
    for opening in re.finditer(rf"(?P<line_start>^[ \t]*)?(?P<mark>{re.escape(form.opening)})", message, re.MULTILINE):
        start = opening.start("mark")
        # A mark inside of a line may only be mentioned there.
        is_call = opening["line_start"] is not None or begins_call.match(message, opening.end())
        if start < position or not is_call:
            continue
        content_end = message.find(form.closing, opening.end()) if form.closing else -1
        end = content_end + len(form.closing)
        if content_end < 0:
            content_end = end = len(message)
        calls += _moved(_otherwise_written(message[position:start], form), position)
        calls += _placed(_calls_in(message[opening.end() : content_end].strip(), form), start, end)
        position = end
    return calls + _moved(_otherwise_written(message[position:], form), position)


def _beginning(form: CallForm) -> re.Pattern[str]:
    """What a call has after its opening mark: JSON, a function's tag, or nothing yet."""
    beginnings = [r"\Z", r"[\[{]", _loosely(QWEN_TAGS.before_name)]
    if form.tags is not None:
        # Some templates write the name without a tag.
        name = r"[^\s<>\"]+\s*"
        after_name = "|".join(map(re.escape, (form.tags.before_key, form.closing)))
        beginnings.append(rf"{_loosely(form.tags.before_name)}{name}(?:{after_name})")
    return re.compile(rf"\s*(?:{'|'.join(beginnings)})")


def _placed(calls: Iterable[str], start: int, end: int) -> list[TypedCall]:
    return [TypedCall(call, start, end) for call in calls]


def _moved(calls: Iterable[TypedCall], offset: int) -> list[TypedCall]:
    """Calls of a part of a text that begins at `offset`."""
    return [TypedCall(text, offset + start, offset + end) for text, start, end in calls]


def read_tags(text: str, tags: Tags) -> tuple[str, dict[str, str]]:
    """The name and the arguments of a call in tags. Tags may be missing at its end. Raises ValueError."""
    name = re.match(rf"{_loosely(tags.before_name)}([^\s<>\"]+)\s*{_loosely(tags.after_name)}", text)
    if name is None:
        raise ValueError(f"it has to begin with {tags.before_name.strip()}NAME{tags.after_name.rstrip()}")
    argument = re.compile(rf"\s*{_loosely(tags.before_key)}([^\s<>\"]+)\s*{_loosely(tags.before_value)}")
    # White space next to a value is the template's, as far as the template writes it; the rest is the value's.
    lead = tags.before_value[len(tags.before_value.rstrip()) :]
    closing = tags.after_value.strip()
    trail = tags.after_value.partition(closing)[0]
    arguments: dict[str, str] = {}
    rest = text[name.end() :]
    while key := argument.match(rest):
        value, closing_tag, rest = rest[key.end() :].partition(closing)
        if f"\n{tags.before_key}" in value:
            raise ValueError(f"{key[0].strip()} is not closed by {closing}")
        if not closing_tag:
            value = value.rstrip().removesuffix(tags.end.strip())
        arguments[key[1]] = value.removeprefix(lead).removesuffix(trail)
    if rest.strip() not in ("", tags.end.strip()):
        raise ValueError(f"{rest.strip():.40} stands where {tags.before_key}KEY... or its end should")
    return name[1], arguments


def _loosely(piece: str) -> str:
    return r"\s*".join(map(re.escape, piece.split()))


def written_call(name: str, arguments: Mapping[str, Any], form: CallForm, template: Template, schemas: Schemas) -> str:
    """A call as the template writes it; one in JSON with its marks on lines of their own."""
    if form.tags:
        function = {"name": name, "arguments": arguments}
        text = _rendered(template, _conversation(function, 0), schemas, False)
        return text[text.rindex(form.opening) : text.rindex(form.closing)] + form.closing
    call = json.dumps({form.name_key: name, form.arguments_key: arguments}, ensure_ascii=False)
    lines = [form.opening, call, form.closing]
    return "\n".join(line for line in lines if line)


def _otherwise_written(text: str, form: CallForm) -> list[TypedCall]:
    """The calls in a text without the template's marks. JSON has the template's keys."""
    calls: list[TypedCall] = []
    position = 0
    block_end = 0
    for opening in _OTHER_OPENING.finditer(text):
        is_in_call = opening.start() < position
        # Tags count inside a block of markdown too, but its fences open no other block.
        is_in_block = opening["fence"] is not None and opening.start() < block_end
        if is_in_call or is_in_block:
            continue
        content_end, end = _end_of(text, opening)
        if opening["fence"]:
            block_end = end
        marked_calls = _marked_calls(opening, text[opening.start() : end], text[opening.end() : content_end], form)
        if marked_calls:
            calls += _moved(_bare_calls(text[position : opening.start()], form), position)
            calls += _placed(marked_calls, opening.start(), end)
            position = end
    return calls + _moved(_bare_calls(text[position:], form), position)


def _end_of(text: str, opening: re.Match[str]) -> tuple[int, int]:
    """Where the content after an opening mark ends, and where its closing mark ends: at the end of the text if nothing
    closes it. As in CommonMark, the fence that closes a block is at least as long as the one that opens it."""
    if opening["fence"]:
        for closing in _CLOSING_FENCE.finditer(text, opening.end()):
            if closing["fence"].startswith(opening["fence"]):
                return closing.start(), closing.end()
    else:
        closing_tag = f"</{opening['tag'] or 'function'}>"
        content_end = text.find(closing_tag, opening.end())
        if content_end >= 0:
            return content_end, content_end + len(closing_tag)
    return len(text), len(text)


def _marked_calls(opening: re.Match[str], marked: str, content: str, form: CallForm) -> list[str]:
    """The calls in what stands between other marks than the template's; none if that is something else. `marked` is
    the content with its marks."""
    block = content.strip()
    if opening["name"]:
        if block.startswith("{") or not block:
            return [f'{{"{form.name_key}": {json.dumps(opening["name"])}, "{form.arguments_key}": {block or "{}"}}}']
        return [marked]
    if opening["tag"]:
        begins_with_json = block.startswith(("{", "["))
        return _calls_in(block, form) if begins_with_json and _may_hold_calls(block) else []
    label = "".join(opening["info"].lower().split()[:1])
    if label in CODE_LABELS:
        indentation = re.compile(rf"^ {{0,{len(opening['indentation'])}}}", re.MULTILINE)
        code = indentation.sub("", content.removeprefix("\n"))
        return _python_calls(code.rstrip("\n"), form)
    return _calls_in(block, form) if label in _CALL_LABELS and _may_hold_calls(block) else []


def _python_calls(code: str, form: CallForm) -> list[str]:
    """The call of `python` that code stands for; none without code."""
    if not code.strip():
        return []
    return [json.dumps({form.name_key: "python", form.arguments_key: {"code": code}})]


def _tagged_calls(code: str, form: CallForm) -> list[str]:
    """The calls after Llama's tag: code for `python`, or the call of a tool as `name.call(key="value")`."""
    tree = None
    if _TOOL_CALL.match(code) and not is_deep(code):
        tree = parsed(code)
    match tree and tree.body:
        case [ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "call"), [], keywords))]:
            # With values that are computed, which no JSON holds, it is code like any other.
            with contextlib.suppress(ValueError, TypeError):
                arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
                return [json.dumps({form.name_key: name, form.arguments_key: arguments})]
    return _python_calls(code, form)


def _bare_calls(text: str, form: CallForm) -> list[TypedCall]:
    """The calls that begin a line of a text without marks."""
    calls: list[TypedCall] = []
    position = 0
    for start in _BARE_START.finditer(text):
        if start.start() < position:
            continue
        try:
            value, end = _decoded(text, start.end())
        except ValueError:
            if _may_hold_calls(text[start.end() :]):  # meant as one, and to be refused
                return calls + _placed([text[start.end() :].strip()], start.start(), len(text))
            continue
        items = _unnested(value)
        if items and all(map(_is_call, items)):
            calls += _placed([_in_form(json.dumps(item), form) for item in items], start.start(), end)
            position = end
    return calls


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """The JSON at `start`, and where it ends. Raises ValueError if there is none, or if it is nested too deeply."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    require_shallow(value)
    return value, end


def require_shallow(value: Any) -> None:
    """Raises ValueError if lists and objects are nested so deeply that writing the value could exhaust the stack."""
    level = [value]
    for _ in range(_MOST_DEPTH + 1):
        items: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                items += item.values()
            elif isinstance(item, list):
                items += item
        level = items
    if level:
        raise ValueError(f"it is nested deeper than {_MOST_DEPTH} lists and objects")


def _names_function(text: str, start: int) -> bool:
    """Whether the JSON at `start` has the name of a function in it; of JSON that can't be read, whether it may have."""
    try:
        value, _ = _decoded(text, start)
    except ValueError:
        return f'"{_NAME_KEY}"' in text
    return any(isinstance(item, dict) and _NAME_KEY in item for item in _unnested(value))


def _may_hold_calls(block: str) -> bool:
    return f'"{_NAME_KEY}"' in block and any(f'"{key}"' in block for key in _ARGUMENTS_KEYS)


def _is_call(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get(_NAME_KEY), str):
        return False
    arguments = [key for key in _ARGUMENTS_KEYS if key in value]
    if len(arguments) != 1 or value.keys() - _OTHER_KEYS - {_NAME_KEY, *arguments}:
        return False
    return isinstance(value[arguments[0]], dict | str)


def _unnested(value: Any) -> list[Any]:
    """The items of a value that may be calls: of a list, or of OpenAI's `tool_calls`, without the `function` around
    each."""
    if isinstance(value, dict) and isinstance(value.get(_LIST_KEY), list):
        value = value[_LIST_KEY]
    items = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and isinstance(item.get(_NESTING_KEY), dict):
            item = item[_NESTING_KEY]
        items.append(item)
    return items


def _calls_in(block: str, form: CallForm) -> list[str]:
    """The calls in a block between marks. One in tags of the template stays whole."""
    return [_in_form(item, form) for item in _items(block)]


def _in_form(call: str, form: CallForm) -> str:
    """A call with the template's keys. Text that can't be read is returned as it is, to be refused later."""
    try:
        value, _ = _decoded(call, 0)
    except ValueError:
        return call
    if not isinstance(value, dict) or {form.name_key, form.arguments_key} <= value.keys():
        return call
    template_keys = dict.fromkeys(_ARGUMENTS_KEYS, form.arguments_key)
    template_keys[_NAME_KEY] = form.name_key
    return json.dumps({template_keys.get(key, key): part for key, part in value.items()})


def _items(block: str) -> list[str]:
    """The JSON objects in a block, out of lists and nesting. Text that can't be read counts as one call, to be refused
    later; words after an object are left out."""
    objects: list[str] = []
    position = 0
    while position < len(block):
        try:
            value, end = _decoded(block, position)
        except ValueError:
            rest = block[position:]
            if not objects or rest.startswith(("{", "[")):
                objects.append(rest)
            return objects
        items = _unnested(value)
        if items == [value]:
            objects.append(block[position:end])  # as the model has typed it
        else:
            objects += [json.dumps(item) for item in items]
        between = _BETWEEN.match(block, end)
        position = between.end() if between else end
    return objects or [block]


def _rendered(template: Template, messages: Schemas, schemas: Schemas, opens: bool) -> str:
    try:
        return template(messages, schemas, opens)
    except ModelError as error:
        raise ConfigError(f"{error}; {WAY_OUT}") from error


def _rendered_call(template: Template, schemas: Schemas, results: int) -> tuple[str, str, CallForm]:
    """A conversation's text before a call and after it, and the call's form without its marks.

    Neither text holds the brackets of a list around the call. Of a call in tags, the first ends at its name, and the
    second begins after its arguments.
    """
    text = _rendered(template, _conversation(_PROBE, results), schemas, results > 0)
    for brace in re.finditer(r"\{", text):
        try:
            call, end = json.JSONDecoder().raw_decode(text, brace.start())
        except ValueError:
            continue
        if not isinstance(call, dict):
            continue
        name_keys = [key for key, value in call.items() if value == _NAME]
        arguments_keys = [key for key, value in call.items() if value == _ARGUMENTS]
        if name_keys and arguments_keys:
            before = text[: brace.start()]
            after = text[end:]
            if before.rstrip().endswith("[") and after.lstrip().startswith("]"):
                before = before.rstrip()[:-1]
                after = after.lstrip()[1:]
            return before, after, CallForm("", "", name_keys[0], arguments_keys[0])
    if in_tags := _IN_TAGS.fullmatch(text):
        before, after_name, before_value, between, after = in_tags.groups()
        # From one value to the next key: the end of an argument, then the tag that begins another one.
        after_value, bracket, word = between.rpartition("<")
        before_key = bracket + word
        if after_value.strip() and after_name.endswith(before_key) and _NAME not in before:
            tags = Tags("", after_name.removesuffix(before_key), before_key, before_value, after_value, "")
            return before, after.removeprefix(after_value), CallForm("", "", _NAME_KEY, _ARGUMENTS_KEYS[0], tags)
    raise ConfigError(
        "this model's chat template writes tool calls neither as JSON objects nor in tags, or leaves them out; "
        f"{WAY_OUT}"
    )


def _conversation(function: Mapping[str, Any] | None, results: int, content: str = "") -> list[dict[str, Any]]:
    """A question, the assistant's turn with a call of the function, and so many results."""
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if function is not None:
        turn["tool_calls"] = [{"type": "function", "id": _CALL_ID, "function": function}]
    messages = [_QUESTION, turn]
    for index in range(results):
        result = {"role": "tool", "name": _NAME, "tool_call_id": _CALL_ID, "content": _RESULT.format(index)}
        messages.append(result)
    return messages
