r"""Final answers in prose, and what is none. The forms are data with examples: `answers.yaml`.

Three forms end a session at once: a line that is nothing but `Answer: 42`; one that is nothing but `#### 42`, as in
GSM8K; and `<answer>42</answer>`, on one line or on several. In a text that has ended without one of these, the answer
is what its last `\boxed{...}` or `\fbox{...}` holds; else what its last line says, as in `So the answer is 42.`; else
what stands below its last line `Answer:` or `### Final Answer`.

Thoughts hold no answers: what stands between `<think>` and `</think>`, or other such tags, whether the model or its
prompt has opened them, and whether or not they are closed. A thought is over when the model's message is. A closing tag
without an opening one makes all that came before it in the message a thought, unless that has ended the session.

What stands around an answer as form is no part of it: emphasis, a box, dollar signs of mathematics; nor is a reason
behind it. A format that is repeated from a prompt (`Answer: value`), a question, or what points elsewhere (`see below`)
is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from repl_rl.utils.text import BOX, last_box

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "answers.yaml").read_text(encoding="utf-8"))
"""The forms, as the file describes them."""

_EDGE = " \t*_"
"""What an answer neither begins nor ends with."""
_MOST_LAYERS = 20
"""How often something is taken off an answer."""
_MOST_CHARS_BELOW, _MOST_WORDS_BELOW = 200, 4
"""An answer below a heading. What is longer, or has more words in a row, is a sentence."""
_WORDS = re.compile(rf"[^\W\d_]{{2,}}(?:[ ,;]+[^\W\d_]{{2,}}){{{_MOST_WORDS_BELOW},}}")
_ONLY_MARKS = re.compile(r"\s*+(?:\$\$|\\[\[\]()]|(?:`{3,}|~{3,})\w*)?\s*+")
"""A line that begins or ends mathematics or a block, or a blank one."""


def _filled(pattern: str) -> str:
    """A pattern of the table, with its parts in the place of their names."""
    for _ in TABLE["parts"]:  # parts hold parts
        for name, part in TABLE["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
    return pattern


def _patterns(kind: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(_filled(form["pattern"])) for form in TABLE[kind])


_AT_ONCE = _patterns("at_once")
_LAST_LINE = _patterns("last_line")
_HEADINGS = _patterns("heading")
_TAKEN_OFF = tuple((re.compile(_filled(rule["find"])), rule.get("to", "")) for rule in TABLE["taken_off"])
_NONE = tuple(re.compile(_filled(rule["find"])) for rule in TABLE["none"])

_CLOSING: dict[str, str] = {opening.lower(): closing.lower() for opening, closing in TABLE["thoughts"]}
"""The tag that closes a thought, by the one that opens it."""
_THOUGHT_TAG = re.compile(
    "|".join(re.escape(tag) for pair in TABLE["thoughts"] for tag in pair), re.ASCII | re.IGNORECASE
)
_ANSWER_TAG = re.compile(rf"<(?P<closes>/?)(?P<name>{'|'.join(TABLE['tags'])})>")


class AnswerReader:
    """Finds the final answer in the prose of one message, whose lines come one after the other."""

    def __init__(self, before: str = "") -> None:
        """`before` is what the message follows, such as a prompt. A thought that opens at its end goes on."""
        self._closing = open_thought(before)
        """The tag that closes the open thought."""
        self._lines: list[str] = []
        """What is not a thought."""
        self._tag: str | None = None
        """The answer's tag that is open."""
        self._tagged: list[str] = []
        """The lines in it."""

    def read(self, lines: Sequence[str], ends: bool) -> tuple[str, ...] | None:
        """The `repr` of the first answer that these lines give at once. If there is none and the message `ends`, the
        one that its text gives."""
        answer = None
        for line in lines:
            answer = self._at_once(line)
            if answer is not None:
                break
        if answer is None and ends:
            answer = answer_in_text(self._lines)
        return None if answer is None else (repr(answer),)

    def _at_once(self, line: str) -> str | None:
        shown = self._without_thoughts(line)
        if shown is None:
            return None
        self._lines.append(shown)
        answer = self._in_tags(shown)
        return answer_in_line(shown) if answer is None else answer

    def _without_thoughts(self, line: str) -> str | None:
        """What of a line is not a thought; None if all of it is one."""
        shown, position = "", 0
        holds_thought = self._closing is not None
        for found in _THOUGHT_TAG.finditer(line):
            tag = found[0].lower()
            if self._closing is None and tag in _CLOSING:
                shown += line[position : found.start()]
                self._closing = _CLOSING[tag]
            elif self._closing is None:
                shown = ""
                self._lines.clear()
                self._tag = None
            elif tag == self._closing:
                self._closing = None
            else:  # a tag within the thought
                continue
            holds_thought = True
            position = found.end()
        if self._closing is None:
            shown += line[position:]
        return None if holds_thought and not shown.strip() else shown

    def _in_tags(self, line: str) -> str | None:
        """The answer whose closing tag is in this line."""
        position = 0
        for found in _ANSWER_TAG.finditer(line):
            if not found["closes"]:
                self._tag = found["name"]
                self._tagged = []
                position = found.end()
            elif found["name"] == self._tag:
                self._tag = None
                answer = _answer_in_tags([*self._tagged, line[position : found.start()]])
                if answer is not None:
                    return answer
        if self._tag is not None:
            self._tagged.append(line[position:])
        return None


def answer_in_line(line: str) -> str | None:
    """The answer of a line that ends a session at once, if it is one."""
    for pattern in _AT_ONCE:
        if found := pattern.fullmatch(line):
            return answer_of(found["answer"])
    return None


def answer_in_text(lines: Sequence[str]) -> str | None:
    """The answer that a text gives which has ended, besides those that end it at once."""
    text = "\n".join(lines).rstrip()
    boxed = last_box(text)
    if boxed and not _is_none(boxed):
        return boxed
    last_line = text.rpartition("\n")[2]
    for pattern in _LAST_LINE:
        if found := pattern.fullmatch(last_line):
            return answer_of(found["answer"])
    return _below_heading(lines)


def _below_heading(lines: Sequence[str]) -> str | None:
    """The answer below the last heading: a line that ends the text or its paragraph."""
    below: list[str] = []  # last line first
    for line in reversed(lines):
        if any(pattern.fullmatch(line) for pattern in _HEADINGS):
            break
        below.append(line)
    else:
        return None
    while below and _ONLY_MARKS.fullmatch(below[-1]):
        below.pop()
    if not below or len(below[-1]) > _MOST_CHARS_BELOW:
        return None
    goes_on = len(below) > 1 and not _ONLY_MARKS.fullmatch(below[-2])
    answer = answer_of(below[-1])
    return None if goes_on or answer is None or _WORDS.search(answer) else answer


def _answer_in_tags(lines: Sequence[str]) -> str | None:
    """The answer in what stands between two tags: a value alone, or a text that comes to one."""
    content = "\n".join(lines)
    in_text = answer_in_line(content) or answer_in_text(lines)
    return answer_of(content) if in_text is None else in_text


def answer_of(written: str) -> str | None:
    """What is written in an answer's place, without what stands around it as form; None if it is no answer."""
    before = None
    answer = written.strip().strip(_EDGE)
    for _ in range(_MOST_LAYERS):
        if answer == before:
            break
        before = answer
        answer = without_form(answer)
    return None if not answer or _is_none(answer) else answer


def without_form(answer: str) -> str:
    """An answer without one layer of each form that stands around it."""
    for pattern, replacement in _TAKEN_OFF:
        answer = pattern.sub(replacement, answer.strip())
    if BOX.match(answer) and answer.endswith("}") and len(BOX.findall(answer)) == 1:
        answer = last_box(answer) or answer
    return answer.strip()


def _is_none(answer: str) -> bool:
    return any(pattern.fullmatch(answer) for pattern in _NONE)


def open_thought(text: str) -> str | None:
    """The tag that closes the thought which the end of a text opens; None if it opens none."""
    end = text.rstrip().lower()
    for opening, closing in _CLOSING.items():
        if end.endswith(opening):
            return closing
    return None
