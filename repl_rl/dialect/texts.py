"""What a model reads before its first line: one YAML file per dialect, from `prompts/` or from the user.

    opening: text at the very beginning; under a chat template, the beginning of the assistant's turn
    question: the frame of the problem, with {question}; under a chat template, only if it is in a file of the user's
    system: the system message of chat models
    tools: how functions are presented, with {tools}
    tool: one function among them, with {signature} and {description}
    examples: worked sessions that come before the problem, as many as the config asks for; under a chat template in the
        system message. Each is a mapping of `question` and `session`, or the text of both
    example: how the system message frames one of them, with {question} and {session}; a file with its own text for
        questions frames them by that text
    ends: the sentence on functions that end the session, with {names}
    repeated: shown to chat models after a line whose result an earlier line had already
    unanswered: the user's message to a chat model that ends its turn without code and without an answer

A user's own file names the dialect that it is for (`dialect: fenced`). Keys that it leaves out keep the texts of that
dialect.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from repl_rl.config import DialectConfig
from repl_rl.dialect.base import CellRun, ChatPrompt, OfferedTool, Reader
from repl_rl.errors import ConfigError
from repl_rl.files import read_file
from repl_rl.trajectory import Message
from repl_rl.utils.folders import resource_folder
from repl_rl.utils.text import cut_middle, nearest
from repl_rl.utils.yaml import MOST_BYTES, read_yaml

_DEFAULTS: dict[str, Any] = {
    "opening": "",
    "question": "{question}\n",
    "said": "{role}: {content}\n",
    "system": "",
    "tools": "These functions are there:\n{tools}",
    "tool": "{signature}: {description}",
    "ends": "A call of {names} ends the session, and what it returns is the final answer.",
    "repeated": "",
    "unanswered": "",
    "examples": [],
    "example": "Problem: {question}\n{session}",
}
_OTHER_PROBLEMS = "This is how other problems were solved, with numbers of their own:"
"""Small models work on a problem that an example shows unless they are told that it isn't theirs."""
_EXAMPLE_KEYS = {"question", "session"}

SMALLEST_LIMIT_CHARS = 64


class TextDialect:
    """Everything of a `Dialect` but its reader. A subclass sets `texts_name` and defines `reader`."""

    texts_name = ""
    """The file in `prompts/` that its texts are in; "" for none."""
    unused: tuple[str, ...] = ()
    """Texts that it never shows."""
    stops = b"\n"
    needs_kernel = True
    needs_chat = False
    setup = ""

    def __init__(self, config: DialectConfig | None = None, tools: Sequence[OfferedTool] = ()) -> None:
        """Raises ConfigError if the texts can't be read, or hold fewer examples than the config asks for."""
        self.config = config or DialectConfig()
        self.tools = tuple(tools)
        self.texts = load_texts(self.texts_name, self.config)
        self.own_texts = _own_texts(self.config)
        for key in self.unused:
            if key in self.own_texts:
                raise ConfigError(
                    f"the texts of a dialect, {self.config.name}: {self.texts_name} never shows {key}; leave it out"
                )
        available = len(self.texts["examples"])
        if (self.config.examples or 0) > available:
            where = f"prompts/{self.texts_name}.yaml" if self.texts_name else type(self).__name__
            raise ConfigError(f"dialect.examples is {self.config.examples}, but {where} holds {available}")

    def completion_prompt(self, question: str, history: Sequence[Message] = ()) -> str:
        """System prompt if the config has one, opening, examples, functions, earlier messages, and the problem."""
        system = f"{self.config.system.strip()}\n\n" if self.config.system else ""
        earlier = "".join(map(self.framed_message, history))
        return f"{system}{self.opening()}{self.tools_opening()}{earlier}{self.framed(question)}"

    def chat_prompt(self, question: str, history: Sequence[Message] = ()) -> ChatPrompt:
        """The messages for a chat template. The conversation's own system messages are appended to the dialect's."""
        system = self.texts["system"] if self.config.system is None else self.config.system
        paragraphs = [system.strip(), self.presented_tools(), self.told_of_ends(), self.shown_examples()]
        messages = []
        for message in history:
            if message.role == "system":
                paragraphs.append(message.content)
            else:
                messages.append({"role": message.role, "content": message.content})
        if "question" in self.own_texts:
            # TextDialect's frame: that of a subclass makes comments of it, for an interpreter.
            question = TextDialect.framed(self, question).strip()
        messages.append({"role": "user", "content": question})
        content = "\n\n".join(text for text in paragraphs if text)
        if content:
            messages.insert(0, {"role": "system", "content": content})
        return ChatPrompt(tuple(messages), self.chat_opening())

    def reader(self) -> Reader:
        """A reader for a fresh transcript."""
        raise NotImplementedError(f"{type(self).__name__} has no reader")

    def framed(self, question: str) -> str:
        """The problem as it appears at the end of a base model's prompt."""
        return filled(self.texts["question"], question=question.strip())

    def framed_message(self, message: Message) -> str:
        """An earlier message as it appears in a base model's prompt."""
        return filled(self.texts["said"], role=message.role, content=message.content)

    def opening(self) -> str:
        """The beginning of a session, with as many worked examples as the config asks for."""
        opening = str(self.texts["opening"])
        for example in self.texts["examples"][: self.config.examples or 0]:
            if isinstance(example, str):
                opening += example
            else:
                opening += self.framed(example["question"]) + example["session"]
        return opening

    def chat_opening(self) -> str:
        """The text that begins the assistant's turn after a chat template."""
        return str(self.texts["opening"])

    def shown_examples(self) -> str:
        """The worked examples as the system message of a chat holds them, all of them if the config asks for no number.
        In the assistant's turn, after the question, they would be taken for its beginning."""
        frame = self.texts["example"]
        if "question" in self.own_texts and "example" not in self.own_texts:
            frame = f"{self.texts['question']}{{session}}"
        paragraphs = [_OTHER_PROBLEMS]
        for example in self.texts["examples"][: self.config.examples]:
            text = example if isinstance(example, str) else filled(frame, **example)
            paragraphs.append(text.strip())
        return "\n\n".join(paragraphs) if len(paragraphs) > 1 else ""

    def tools_opening(self) -> str:
        """The functions as presented in a base model's prompt."""
        parts = [self.presented_tools(), self.told_of_ends()]
        return "".join(f"{text}\n" for text in parts if text)

    def presented_tools(self) -> str:
        """The functions with their signatures; "" where there are none, or the dialect never shows them."""
        if not self.tools or "tools" in self.unused:
            return ""
        lines = []
        for tool in self.tools:
            description = " ".join(tool.description.split())
            lines.append(filled(self.texts["tool"], signature=tool.signature, description=description))
        return filled(self.texts["tools"], tools="\n".join(lines)).strip()

    def told_of_ends(self) -> str:
        """Which functions end the session; "" if none does, or the dialect never says it."""
        names = [tool.name for tool in self.tools if getattr(tool, "ends", False)]
        if not names or "ends" in self.unused:
            return ""
        return filled(self.texts["ends"], names=" or ".join(names)).strip()

    def plain_output(self, run: CellRun) -> str:
        """What a record keeps of a cell's output."""
        return self.truncate(run.text)

    def truncate(self, output: str) -> str:
        """`output` within the limit, cut in the middle."""
        return truncate_middle(output, self.config.max_output_chars)


class PromptDialect(TextDialect):
    """A dialect with an interpreter's prompts, where all other text of ours is a comment (`as_comments`)."""

    first_prompt = ""

    def as_comments(self, text: str) -> str:
        """`text` as comments, one a line."""
        raise NotImplementedError

    def completion_prompt(self, question: str, history: Sequence[Message] = ()) -> str:
        return super().completion_prompt(question, history) + self.first_prompt

    def framed(self, question: str) -> str:
        return self.as_comments(super().framed(question) if "question" in self.own_texts else question)

    def framed_message(self, message: Message) -> str:
        return self.as_comments(super().framed_message(message))

    def tools_opening(self) -> str:
        parts = [self.presented_tools(), self.told_of_ends()]
        return "".join(self.as_comments(text) for text in parts if text)

    def chat_opening(self) -> str:
        return super().chat_opening() + self.first_prompt


def load_texts(name: str, config: DialectConfig) -> dict[str, Any]:
    """The texts of `prompts/NAME.yaml`, overridden by those of the file at `dialect.name` if that is a path.

    Raises ConfigError naming the file. Without a NAME, unknown keys are left to the user's own dialect.
    """
    known = dict(_DEFAULTS)
    if name:
        known |= _read(resource_folder("prompts") / f"{name}.yaml")
    own_texts = _own_texts(config)
    where = f"the texts of a dialect, {config.name}"
    for key, value in own_texts.items():
        if key not in known:
            if not name:
                continue
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(str(key), list(known))}")
        if key == "examples":
            _check_examples(where, value)
        elif not _has_type_of(known[key], value):
            needed = "a list" if isinstance(known[key], list) else "text"
            raise ConfigError(f"{where}: {key} is {value!r:.100}; it has to be {needed}")
    if "{question}" not in own_texts.get("question", "{question}"):
        raise ConfigError(f"{where}: question has no {{question}} in it, where the problem goes")
    return known | own_texts


def _has_type_of(known: Any, value: Any) -> bool:
    """Whether a user's text is of the same type as the shipped one, and the items of a list of the same type as its
    items."""
    if not isinstance(known, list):
        return isinstance(value, type(known))
    item_type = type(known[0]) if known else str
    return isinstance(value, list) and all(isinstance(item, item_type) for item in value)


def _check_examples(where: str, examples: Any) -> None:
    """Raises ConfigError unless each is a text, or a question and a session."""
    if not isinstance(examples, list):
        raise ConfigError(f"{where}: examples is {examples!r:.100}; it has to be a list")
    for example in examples:
        texts = [example]
        if isinstance(example, dict) and set(example) == _EXAMPLE_KEYS:
            texts = list(example.values())
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError(
                f"{where}: examples holds {example!r:.100}; each is text, or a mapping of question and session to text"
            )


def _own_texts(config: DialectConfig) -> dict[str, Any]:
    """The texts of a user's own file; none if the config names no file."""
    if not config.name.endswith(".yaml"):
        return {}
    return {key: value for key, value in _read(_file_of(config.name)).items() if key != "dialect"}


def base_of(path: str) -> str:
    """The dialect that a file of texts is for."""
    return str(_read(_file_of(path)).get("dialect", "python"))


def _file_of(path: str) -> Path:
    """The file that a `dialect.name` ending in .yaml names. `prompts/short.yaml` is also looked up in the package."""
    file = Path(path)
    if file.parent == Path("prompts") and not file.exists():
        return resource_folder("prompts") / file.name
    return file


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = read_yaml(read_file(path, most_bytes=MOST_BYTES).decode()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the texts of a dialect, {path}, can't be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"the texts of a dialect, {path}, are not a mapping of names to texts")
    return values


def truncate_middle(text: str, limit_chars: int) -> str:
    """`text` in at most `limit_chars` characters. In longer text a marker replaces the middle and says how much is cut.

    Raises ValueError for a limit below `SMALLEST_LIMIT_CHARS`, which has no room for the marker.
    """
    if limit_chars < SMALLEST_LIMIT_CHARS:
        raise ValueError(f"outputs can't be cut to {limit_chars} characters, only to {SMALLEST_LIMIT_CHARS} or more")
    return cut_middle(text, limit_chars, "\n... [{} characters left out] ...\n", marker_counts=True)


def filled(frame: str, **values: str) -> str:
    """`frame` with its {names} filled in; all other braces are kept."""
    for name, value in values.items():
        frame = frame.replace(f"{{{name}}}", value)
    return frame
