r"""Final answers in prose, and texts that look like one and are not. The forms are data with examples: `answers.yaml`.

Three forms end a session at once: a line that is nothing but `Answer: 42`; one that is nothing but `#### 42`, as in
GSM8K; and `<answer>42</answer>`, on one line or on several. In a text that has ended without one of these, the answer
is what its last `\boxed{...}` or `\fbox{...}` holds; else what its last line says, as in `So the answer is 42.`; else
what stands below its last line `Answer:` or `### Final Answer`.

Thoughts hold no answers: what stands between `<think>` and `</think>`, or other such tags, whether the model or its
prompt has opened them, and whether or not they are closed. A thought is over when the model's message is. A closing tag
without an opening one makes all that came before it in the message a thought, unless that has ended the session.

Emphasis, a box and dollar signs around an answer are not part of it, and neither is a reason after it. A format that is
repeated from a prompt (`Answer: value`), a question, and a pointer to another place (`see below`) are not answers.
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
"""Characters that an answer neither begins nor ends with."""
_MOST_LAYERS = 20
"""How many layers of form (a box in emphasis in dollar signs) are taken off an answer."""
_MOST_CHARS_BELOW = 200
_MOST_WORDS_BELOW = 4
"""Below a heading, a line that is longer, or has more words in a row, is a sentence and not an answer."""
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
_REPLACED = tuple((re.compile(_filled(rule["find"])), rule.get("to", "")) for rule in TABLE["taken_off"])
_NOT_ANSWERS = tuple(re.compile(_filled(rule["find"])) for rule in TABLE["none"])

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
        """The tag that closes the open thought; None outside of thoughts."""
        self._lines: list[str] = []
        """The message without its thoughts."""
        self._answer_tag: str | None = None
        """The name of the answer's tag that is open."""
        self._answer_lines: list[str] = []
        """The lines after that tag."""

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
        prose = self._without_thoughts(line)
        if prose is None:
            return None
        self._lines.append(prose)
        answer = self._in_tags(prose)
        return answer_in_line(prose) if answer is None else answer

    def _without_thoughts(self, line: str) -> str | None:
        """The parts of a line outside of thoughts; None if all of it is a thought."""
        prose = ""
        position = 0
        holds_thought = self._closing is not None
        for match in _THOUGHT_TAG.finditer(line):
            tag = match[0].lower()
            if self._closing is None and tag in _CLOSING:
                prose += line[position : match.start()]
                self._closing = _CLOSING[tag]
            elif self._closing is None:
                # A closing tag without an opening one: all of the message so far was a thought.
                prose = ""
                self._lines.clear()
                self._answer_tag = None
            elif tag == self._closing:
                self._closing = None
            else:  # a tag within the thought
                continue
            holds_thought = True
            position = match.end()
        if self._closing is None:
            prose += line[position:]
        return None if holds_thought and not prose.strip() else prose

    def _in_tags(self, line: str) -> str | None:
        """The answer whose closing tag is in this line."""
        position = 0
        for match in _ANSWER_TAG.finditer(line):
            if not match["closes"]:
                self._answer_tag = match["name"]
                self._answer_lines = []
                position = match.end()
            elif match["name"] == self._answer_tag:
                self._answer_tag = None
                answer = _answer_in_tags([*self._answer_lines, line[position : match.start()]])
                if answer is not None:
                    return answer
        if self._answer_tag is not None:
            self._answer_lines.append(line[position:])
        return None


def answer_in_line(line: str) -> str | None:
    """The answer of a line that ends a session at once, if it is one."""
    for pattern in _AT_ONCE:
        if match := pattern.fullmatch(line):
            return answer_of(match["answer"])
    return None


def answer_in_text(lines: Sequence[str]) -> str | None:
    """The answer of a text that has ended without one of the forms that end a session at once."""
    text = "\n".join(lines).rstrip()
    boxed = last_box(text)
    if boxed and not _is_no_answer(boxed):
        return boxed
    last_line = text.rpartition("\n")[2]
    for pattern in _LAST_LINE:
        if match := pattern.fullmatch(last_line):
            return answer_of(match["answer"])
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
    paragraph_goes_on = len(below) > 1 and not _ONLY_MARKS.fullmatch(below[-2])
    answer = answer_of(below[-1])
    if paragraph_goes_on or answer is None or _WORDS.search(answer):
        return None
    return answer


def _answer_in_tags(lines: Sequence[str]) -> str | None:
    """The answer between two tags, where either the answer stands alone, or a text that ends with one."""
    content = "\n".join(lines)
    answer = answer_in_line(content) or answer_in_text(lines)
    return answer_of(content) if answer is None else answer


def answer_of(written: str) -> str | None:
    """The answer in a text that stands in an answer's place, without the form around it; None if there is none."""
    before = None
    answer = written.strip().strip(_EDGE)
    for _ in range(_MOST_LAYERS):
        if answer == before:
            break
        before = answer
        answer = without_form(answer)
    if not answer or _is_no_answer(answer):
        return None
    return answer


def without_form(answer: str) -> str:
    """An answer without one layer of each form that stands around it."""
    for pattern, replacement in _REPLACED:
        answer = pattern.sub(replacement, answer.strip())
    if BOX.match(answer) and answer.endswith("}") and len(BOX.findall(answer)) == 1:
        answer = last_box(answer) or answer
    return answer.strip()


def _is_no_answer(answer: str) -> bool:
    return any(pattern.fullmatch(answer) for pattern in _NOT_ANSWERS)


def open_thought(text: str) -> str | None:
    """The tag that closes the thought which the end of a text opens; None if it opens none."""
    end = text.rstrip().lower()
    for opening, closing in _CLOSING.items():
        if end.endswith(opening):
            return closing
    return None
