"""Questions that are chats: lists of messages, as files and data sets for chat models have them.

The question is the user's last message. What stands before it is the problem's history: system messages, which are
added to the dialect's own, and earlier turns. What the assistant says after it is a solution, which no session is
shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.trajectory import Message

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Chat:
    history: tuple[Message, ...]
    question: str
    solution: tuple[Message, ...] = ()
    """What the assistant says after the question."""


def is_chat(value: Any) -> bool:
    """Whether a value is meant as messages: a list of objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(message, dict) for message in value)


def read_chat(value: Sequence[Any]) -> Chat:
    """The parts of a chat. Raises ValueError that says what is wrong with it."""
    messages = [_message(number, message) for number, message in enumerate(value, 1)]
    of_user = [number for number, message in enumerate(messages) if message.role == "user"]
    if not of_user:
        raise ValueError("no message of it is the user's, which would be the question")
    last = of_user[-1]
    solution = messages[last + 1 :]
    if any(message.role == "system" for message in solution):
        raise ValueError("a system message comes after the user's last one, which is the question")
    return Chat(tuple(messages[:last]), messages[last].content, tuple(solution))


def last_of_assistant(value: Sequence[Any]) -> str:
    """What the last message says, which has to be the assistant's. Raises ValueError."""
    message = _message(len(value), value[-1])
    if message.role != "assistant":
        raise ValueError(f"its last message is the {message.role}'s, and an answer would be the assistant's")
    return message.content


def _message(number: int, message: Any) -> Message:
    if not isinstance(message, dict) or not {"role", "content"} <= set(message):
        held = ", ".join(map(str, message)) if isinstance(message, dict) else f"{message!r:.80}"
        raise ValueError(f"message {number} holds {held or 'nothing'}; a message has role and content")
    role = message["role"]
    if role not in _ROLES:
        raise ValueError(f"message {number} has the role {role!r:.80}; {', '.join(_ROLES)} are read")
    return Message(role, _text(number, message["content"]))


def _text(number: int, content: Any) -> str:
    """A message's text, which may come in parts."""
    if isinstance(content, str):
        return content
    text = ""
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise ValueError(f"message {number} holds {part!r:.80}, which is not text")
        text += part["text"]
    return text
