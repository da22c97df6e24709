"""The border: a session sends bytes that a model's code chose, and they are checked here before anything else.

A message is limited in bytes, in nesting and in the number of its parts before it is parsed, so that parsing it neither
recurses deeply nor blocks the event loop; then its fields are checked one by one. No error here quotes the message:
the `repr` of a hostile value is as long, and as deep, as its sender likes.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from repl_rl.kernel.results import ExecResult, ExecStatus
from repl_rl.trajectory import ToolCall

MOST_BYTES = 4 << 20
MOST_DEPTH = 100
MOST_MARKS = 120_000
MOST_IMAGES = 8
_MOST_IMAGE_BYTES = 2 << 20
_MOST_CALLS = 1_000
_MOST_ANSWERS = 1_000
_TEXT_CHARS = 10_000
NAME_CHARS = 200
_NUMBER_CHARS = 4_300
_MOST_S = 1e6
"""The longest time of a call, so that the sum of all that are reported is finite too."""
_PNG = b"\x89PNG\r\n\x1a\n"

_MARKS = b'[{,:"\\'
"""JSON has at least one of these for each value, key and escape, and so for each part that takes time to parse."""
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
"""What a bracket adds to the depth of nesting."""
_STATUSES = {str(status): status for status in ExecStatus}


class BorderError(Exception):
    """A message that no kernel of ours sends. Its text says what is wrong, and has nothing of the message in it."""


def parsed(text: bytes | bytearray, most_bytes: int = MOST_BYTES, most_marks: int = MOST_MARKS) -> dict[str, Any]:
    """The JSON object in a message. Raises BorderError if the message is not one, or is too large.

    Too large is longer than `most_bytes`, nested deeper than `MOST_DEPTH`, or with more than `most_marks` commas,
    colons, quotes, backslashes and opening brackets together.
    """
    if len(text) > most_bytes:
        raise BorderError("a message is too long")
    if len(text) > most_marks and sum(map(text.count, _MARKS)) > most_marks:
        raise BorderError("a message has too many parts")
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH:
        brackets = _STRINGS.sub(b"", text).translate(None, _ALL_BUT_BRACKETS)
        depths = accumulate(map(_STEPS.__getitem__, brackets))
        if max(depths, default=0) > MOST_DEPTH:
            raise BorderError("a message is nested too deeply")
    try:
        message = _DECODER.decode(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise BorderError("a message is not JSON") from None
    if not isinstance(message, dict):
        raise BorderError("a message is not an object")
    return message


def result_of(report: Mapping[str, Any], **known: Any) -> ExecResult:
    """The result of a cell, as a session reports it. `known` are the fields that the host knows, such as its output.

    Raises BorderError if a field is of another type.
    """
    status = report.get("status")
    answer = report.get("answer")
    if not isinstance(status, str) or status not in _STATUSES:
        raise BorderError("a status is unknown")
    if not (answer is None or isinstance(answer, list)):
        raise BorderError("an answer is not a list")
    answers = None
    if answer is not None:
        answers = tuple(text_of(text) or "" for text in answer[:_MOST_ANSWERS])
    return ExecResult(
        _STATUSES[status],
        error_name=text_of(report.get("error_name"), NAME_CHARS),
        compiled=report.get("compiled") is not False,
        answer=answers,
        answer_forms=forms_of(report.get("answer_forms"), answers),
        fingerprint=text_of(report.get("fingerprint")),
        error_message=text_of(report.get("error_message")),
        calls=calls_of(report.get("calls")),
        images=images_of(report.get("images")),
        **known,
    )


def text_of(value: object, most_chars: int = _TEXT_CHARS) -> str | None:
    """A reported text, cut if it is long, or None. Raises BorderError if it is neither."""
    if value is None:
        return None
    if isinstance(value, str):
        return value[:most_chars].encode("utf-8", "backslashreplace").decode()[:most_chars]
    raise BorderError("a text is not a string")


def forms_of(reported: object, answers: tuple[str, ...] | None) -> tuple[str | None, ...] | None:
    """The forms of submitted values, one for each of `answers`; None if `reported` has another shape, or no form.

    A form is left out, not cut, if it is too long or not a text: part of a form would say something else.
    """
    if answers is None or not isinstance(reported, list) or len(reported) < len(answers):
        return None
    forms: list[str | None] = []
    for form in reported[: len(answers)]:
        is_form = isinstance(form, str) and len(form) <= _TEXT_CHARS
        forms.append(text_of(form) if is_form else None)
    has_form = any(form is not None for form in forms)
    return tuple(forms) if has_form else None


def calls_of(reported: object) -> tuple[ToolCall, ...]:
    """The tool calls in `reported`, each [name, error name or None, seconds], among its first 1,000 entries.

    Entries of another shape are left out.
    """
    if not isinstance(reported, list):
        return ()
    calls = []
    for entry in reported[:_MOST_CALLS]:
        match entry:
            case [str(name), str() | None as error_name, float(duration_s)] if 0 <= duration_s <= _MOST_S:
                calls.append(ToolCall(text_of(name, NAME_CHARS) or "", text_of(error_name, NAME_CHARS), duration_s))
    return tuple(calls)


def images_of(reported: object) -> tuple[bytes, ...]:
    """The PNG files in `reported`, a list of base64 texts: the first 8, up to 2 MiB together.

    What is not base64 or does not begin as a PNG file does is left out. Whatever draws one later must be as careful as
    a browser is.
    """
    if not isinstance(reported, list):
        return ()
    images: list[bytes] = []
    total_bytes = 0
    for text in reported[:MOST_IMAGES]:
        if not isinstance(text, str):
            continue
        try:
            image = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        if image.startswith(_PNG) and total_bytes + len(image) <= _MOST_IMAGE_BYTES:
            images.append(image)
            total_bytes += len(image)
    return tuple(images)


def _limited(text: str) -> str:
    """The digits of a number. Raises ValueError for many: converting them takes time that grows faster than their
    length."""
    if len(text) > _NUMBER_CHARS:
        raise ValueError("a number is too long")
    return text


def _limited_float(text: str) -> float:
    return float(_limited(text))


def _limited_int(text: str) -> int:
    return int(_limited(text))


_DECODER = json.JSONDecoder(parse_float=_limited_float, parse_int=_limited_int)
