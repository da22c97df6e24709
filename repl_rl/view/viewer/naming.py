"""What a stored trajectory does not say outright: the question of its prompt, and the family of its task.

Prompts are text. The question of a shipped dialect is found where that dialect puts it (comments at the prompt, a
`Problem:`, the user's message of a chat); of any other prompt it is the end. Pure, stdlib only.
"""

from __future__ import annotations

import re

_LONGEST = 4000
"""Characters of a question that are kept."""
_TAIL = 400
_USER = re.compile(
    r"(?:<\|im_start\|>user\n|<start_of_turn>user\n|<\|start_header_id\|>user<\|end_header_id\|>\n*|<\|user\|>\n?|\[INST\]\s?)"
)
_END_OF_MESSAGE = re.compile(r"<\|im_end\|>|<end_of_turn>|<\|eot_id\|>|<\|end\|>|<\|assistant\|>|</s>|\[/INST\]")
_PROBLEM = re.compile(r"^(?:Problem|Question):[ \n]", re.MULTILINE)
_END_OF_PROBLEM = re.compile(r"^(?:Solution|Answer):", re.MULTILINE)
_WAITING = re.compile(r"(?:^|\n)(?:>>>|In \[\d+\]:)[ ]?\Z")
_COMMENT = re.compile(r"(?:>>> |\.\.\. |In \[\d+\]: |   \.\.\.: )?#(?: |$)")
_FAMILY = re.compile(r"(.+?)-(?:train|heldout|test|validation|eval|dev)-", re.DOTALL)
_NUMBERED = re.compile(r"(.*?\D)(?:-\d+)+", re.DOTALL)


def question_of(prompt: str) -> str:
    """The problem as the user put it, as far as the prompt shows it."""
    for find in (_of_chat, _of_comments, _of_frame):
        if (found := find(prompt).strip()) != "":
            return found[:_LONGEST]
    tail = prompt.rstrip()
    return tail if len(tail) <= _TAIL else "…" + tail[-_TAIL:]


def family_of(task_id: str) -> str:
    """`gcd` of `gcd-train-12-18`, `task` of `task-3`; "" where the id tells none."""
    found = _FAMILY.match(task_id) or _NUMBERED.fullmatch(task_id)
    return found[1] if found else ""


def _of_chat(prompt: str) -> str:
    messages = list(_USER.finditer(prompt))
    if not messages:
        return ""
    rest = prompt[messages[-1].end() :]
    end = _END_OF_MESSAGE.search(rest)
    return rest[: end.start()] if end else rest


def _of_comments(prompt: str) -> str:
    """The last comments before the waiting prompt, without their `#`."""
    waiting = _WAITING.search(prompt)
    if waiting is None:
        return ""
    lines = prompt[: waiting.start()].rstrip().split("\n")
    first = len(lines)
    while first and _COMMENT.match(lines[first - 1]):
        first -= 1
    return "\n".join(_COMMENT.sub("", line, count=1) for line in lines[first:])


def _of_frame(prompt: str) -> str:
    problems = list(_PROBLEM.finditer(prompt))
    if not problems:
        return ""
    rest = prompt[problems[-1].end() :]
    end = _END_OF_PROBLEM.search(rest)
    return rest[: end.start()] if end else rest
