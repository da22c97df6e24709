"""Questions that are chats: lists of messages, as files and data sets for chat models have them.

The question is the user's last message. The messages before it are the problem's history: system messages, which are
added to the dialect's own, and earlier turns. The assistant's messages after it are a solution, which no session is
shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.trajectory import Message
from repl_rl.utils.text import whole

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Chat:
    history: tuple[Message, ...]
    question: str
    solution: tuple[Message, ...] = ()
    """The assistant's messages after the question."""


def is_chat(value: Any) -> bool:
    """Whether a value is meant as messages: a list of objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(message, dict) for message in value)


def read_chat(value: Sequence[Any]) -> Chat:
    """The parts of a chat. Raises ValueError that says what is wrong with it."""
    messages = [_message(number, message) for number, message in enumerate(value, 1)]
    user_indices = [index for index, message in enumerate(messages) if message.role == "user"]
    if not user_indices:
        raise ValueError("no message of it is the user's, which would be the question")
    question_index = user_indices[-1]
    history = messages[:question_index]
    question = messages[question_index]
    solution = messages[question_index + 1 :]
    if any(message.role == "system" for message in solution):
        raise ValueError("a system message comes after the user's last one, which is the question")
    return Chat(tuple(history), question.content, tuple(solution))


def last_of_assistant(value: Sequence[Any]) -> str:
    """The text of the last message, which has to be the assistant's. Raises ValueError."""
    message = _message(len(value), value[-1])
    if message.role != "assistant":
        raise ValueError(f"its last message is the {message.role}'s, and an answer would be the assistant's")
    return message.content


def _message(number: int, message: Any) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"message {number} holds {message!r:.80}; a message has role and content")
    if "role" not in message or "content" not in message:
        keys = ", ".join(map(str, message)) or "nothing"
        raise ValueError(f"message {number} holds {keys}; a message has role and content")
    role = message["role"]
    if role not in _ROLES:
        raise ValueError(f"message {number} has the role {role!r:.80}; {', '.join(_ROLES)} are read")
    return Message(role, _text(number, message["content"]))


def _text(number: int, content: Any) -> str:
    """A message's text, which may come in parts."""
    if isinstance(content, str):
        return whole(content)
    text = ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise ValueError(f"message {number} holds {part!r:.80}, which is not text")
        text += part["text"]
    return whole(text)
