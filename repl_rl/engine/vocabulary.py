"""A tokenizer as the line loop needs it: which tokens end a line, ids to bytes, interpreter output to ids."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from repl_rl.engine.strangers import require_tame
from repl_rl.engine.token_bytes import bytes_of_tokens
from repl_rl.errors import ConfigError, ModelError
from repl_rl.models.find import generation_settings, loading
from repl_rl.models.nano import SHIPPED

_NEWLINE_PROBE = 'x = f("a")\n\nfor i in y:\n    pass\n'
_SYSTEM_PROBE = "reprl_system"
_ANSWER_PROBE = "reprl_answer"
_STAND_IN = re.compile("reprl_special_([0-9]{1,9})_")
"""Holds the place of the special token of this id, whose name is to stay text."""
LINE_KEY = "repl_rl_line"
"""The name in a request's `extra_args` under which a server is asked to end it with the line."""


class Vocabulary:
    """Wraps a Hugging Face tokenizer. Raises ModelError if no token holds a newline, or if it changes text."""

    def __init__(
        self,
        tokenizer: Any,
        eos_ids: Sequence[int] = (),
        stops: bytes = b"\n",
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """A turn ends with a token that holds one of the bytes `stops`; they are ASCII, and a newline is among them.

        `template_kwargs` go to the chat template. Raises ConfigError for those that it does not name.
        """
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        for name in self.template_kwargs:
            if not self.template_names(name):
                raise ConfigError(
                    f"model.chat_template_kwargs: this model's chat template has no {name!r}, which would do nothing; "
                    "leave it out"
                )
        self.stops = stops
        self.eos_ids = frozenset(eos_ids)
        if tokenizer.eos_token_id is not None:
            self.eos_ids |= {tokenizer.eos_token_id}
        if not self.newline_ids:
            raise ModelError("no token of this tokenizer holds a newline, so no line would ever end; use another model")
        if self.decode(self.encode_output(_NEWLINE_PROBE)) != _NEWLINE_PROBE:
            raise ModelError(
                f"this tokenizer does not give back {_NEWLINE_PROBE!r} after encoding it; use another model"
            )

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The bytes of every id, by id."""
        return bytes_of_tokens(self.tokenizer)

    @cached_property
    def newline_ids(self) -> frozenset[int]:
        """Ids of the tokens whose bytes hold a newline. A newline byte is never part of a longer UTF-8 character."""
        return self._holding(b"\n")

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn, without `eos_ids`, which end the text."""
        return self.newline_ids if self.stops == b"\n" else self._holding(self.stops)

    def _holding(self, wanted: bytes) -> frozenset[int]:
        """Ids of the tokens that hold one of these bytes, without `eos_ids`."""
        wanted_bytes = set(wanted)
        ids = set()
        for index, token in enumerate(self.token_bytes):
            if not wanted_bytes.isdisjoint(token):
                ids.add(index)
        return frozenset(ids - self.eos_ids)

    @cached_property
    def digest(self) -> str:
        """Tells whether another process has the same `stop_ids` and `eos_ids`."""
        ends = json.dumps([sorted(self.stop_ids), sorted(self.eos_ids)])
        return hashlib.sha256(ends.encode()).hexdigest()[:16]

    @cached_property
    def turn_end_id(self) -> int:
        """The one of `eos_ids` with which the model ends a turn of its own: the chat template's if it writes one, else
        the tokenizer's. A checkpoint may name others, such as Qwen's `<|endoftext|>` beside `<|im_end|>`."""
        if self.has_chat_template:
            conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER_PROBE}]
            try:
                text = self._rendered(conversation, tools=(), opens=False)
            except ModelError:
                text = ""
            for index in self.encode_frame(text.rpartition(_ANSWER_PROBE)[2]):
                if index in self.eos_ids:
                    return index
        own: int | None = self.tokenizer.eos_token_id
        return min(self.eos_ids) if own is None else own

    @property
    def pad_id(self) -> int:
        """The padding id; the end-of-text id where the tokenizer has no padding."""
        pad: int | None = self.tokenizer.pad_token_id
        return min(self.eos_ids) if pad is None else pad

    def held_as_text(self, text: str) -> str:
        """A text from outside, such as a question, in which the names of special tokens are to stay text.

        A stand-in takes the place of each name, until `encode_prompt` or `encode_chat` encodes the prompt or chat that
        the text became a part of.
        """
        special_ids = self._special_tokens
        if not special_ids:  # the pattern of no names would match everywhere
            return text

        def stand_in(name: re.Match[str]) -> str:
            return f"reprl_special_{special_ids[name[0]]}_"

        return self._special_names.sub(stand_in, text)

    def released(self, text: str) -> str:
        """The text with the names again in the places of their stand-ins."""
        names = self._names_by_digits

        def name_of(stand_in: re.Match[str]) -> str:
            return names.get(stand_in[1], stand_in[0])

        return _STAND_IN.sub(name_of, text)

    @cached_property
    def _special_tokens(self) -> dict[str, int]:
        """The ids of special tokens by their names."""
        added: Mapping[int, Any] = self.tokenizer.added_tokens_decoder
        return {token.content: index for index, token in added.items() if token.special and token.content}

    @property
    def _names_by_digits(self) -> dict[str, str]:
        """The names of special tokens by their ids, as these are written in stand-ins."""
        return {str(index): name for name, index in self._special_tokens.items()}

    @cached_property
    def _special_names(self) -> re.Pattern[str]:
        """Matches the name of any special token."""
        # An alternation takes the first name that matches, and names may begin with one another.
        longest_first = sorted(self._special_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    def _encode_around_stand_ins(self, text: str, begins_with_special: bool) -> tuple[int, ...]:
        """Ids of a text. The names in the places of stand-ins are encoded as text, by themselves."""
        names = self._names_by_digits
        ids: list[int] = []
        # A split at a pattern with one group gives, in turn, the text between two matches and the digits of a match.
        for place, piece in enumerate(_STAND_IN.split(text)):
            is_first = place == 0
            is_stand_in = place % 2 == 1
            if is_stand_in:
                ids += self.encode_output(names.get(piece, piece))
            elif piece or is_first:
                ids += self.tokenizer.encode(piece, add_special_tokens=begins_with_special and is_first)
        return tuple(ids)

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt that a base model continues, with the tokenizer's own opening tokens (BOS)."""
        return self._encode_around_stand_ins(text, begins_with_special=True)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], prefill: str, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Ids of the messages in the model's chat template; `prefill` begins the assistant's turn."""
        text = self.render_chat(messages, tools, opens=True) + prefill
        return self._encode_around_stand_ins(text, begins_with_special=False)

    @property
    def has_chat_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    def template_names(self, argument: str) -> bool:
        """Whether the chat template mentions an argument of this name."""
        template = str(self.tokenizer.chat_template or "")
        return re.search(rf"\b{re.escape(argument)}\b", template) is not None

    def with_template_kwargs(self, arguments: Mapping[str, Any]) -> Vocabulary:
        """The same vocabulary, whose chat template gets these arguments besides."""
        vocabulary = copy.copy(self)
        vocabulary.template_kwargs = {**self.template_kwargs, **arguments}
        return vocabulary

    @cached_property
    def has_system_role(self) -> bool:
        """Whether the chat template shows a system message.

        The templates of Gemma 1 and 2 and of the first Mistral 7B raise an error instead, and others leave the message
        out. A template that refuses even a question counts as one with the role.
        """
        system = {"role": "system", "content": _SYSTEM_PROBE}
        question = {"role": "user", "content": "?"}
        try:
            self._rendered([question], tools=(), opens=True)
        except ModelError:
            return True
        try:
            text = self._rendered([system, question], tools=(), opens=True)
        except ModelError:
            return False
        return _SYSTEM_PROBE in text

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool
    ) -> str:
        """The text of a conversation in the model's chat template. Raises ModelError if the template refuses it.

        If the template has no system role, system messages stand at the head of the first question.
        """
        if any(message["role"] == "system" for message in messages) and not self.has_system_role:
            messages = _system_in_question(messages)
        return self._rendered(messages, tools, opens)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=opens,
                **self.template_kwargs,
            )
        except Exception as error:
            raise ModelError(f"this model's chat template refuses the conversation: {error}") from error
        return text

    def encode_frame(self, text: str) -> tuple[int, ...]:
        """Ids of a template's own text, in which the names of special tokens become these tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def encode_output(self, text: str) -> tuple[int, ...]:
        """Ids of interpreter text on its own; text that looks like a special token stays text."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes of `ids`. An id that the tokenizer does not know (a padding row) has none."""
        token_bytes = self.token_bytes
        return b"".join(token_bytes[index] for index in ids if index < len(token_bytes))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` on their own: U+FFFD for bytes that are not UTF-8, halves of characters included."""
        return self.bytes_of(ids).decode("utf-8", "replace")


def _system_in_question(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages without system messages, whose text goes to the head of the user's first message."""
    system_texts: list[str] = []
    conversation: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            system_texts.append(str(message["content"]))
        else:
            conversation.append(message)
    for index, message in enumerate(conversation):
        if message["role"] == "user":
            text = "\n\n".join([*system_texts, str(message["content"])])
            conversation[index] = {**message, "content": text}
            return conversation
    question = {"role": "user", "content": "\n\n".join(system_texts)}
    return [question, *conversation]


def load_vocabulary(
    path: str,
    stops: bytes = b"\n",
    template_kwargs: Mapping[str, Any] | None = None,
    is_tried: bool = False,
    tokenizer: Any = None,
) -> Vocabulary:
    """The vocabulary of a checkpoint folder or hub id, turns ending at `stops`.

    `tokenizer` takes the place of the checkpoint's; texts also end at the ids that the checkpoint's generation settings
    name. `is_tried` says that the caller has tried the tokenizer before (`require_tame`). Raises ModelError naming the
    path, and ConfigError for `template_kwargs` that the chat template does not name.
    """
    is_shipped = False
    problem = f"the given tokenizer can't be used with {path!r}"
    if tokenizer is None:
        is_shipped = path in [str(folder) for folder in SHIPPED.values()]
        problem = f"no tokenizer at {path!r}"
        if is_shipped:  # AutoTokenizer would take this class too, after seconds for loading torch
            from transformers import PreTrainedTokenizerFast as Tokenizer
        else:
            from transformers import AutoTokenizer as Tokenizer

    with loading(problem):
        if tokenizer is None:
            tokenizer = Tokenizer.from_pretrained(path, trust_remote_code=False)
        if not is_tried and not is_shipped:
            require_tame(tokenizer, template_kwargs)
        return Vocabulary(tokenizer, _eos_ids(path), stops, template_kwargs)


def _eos_ids(path: str) -> list[int]:
    """The end-of-text ids that the checkpoint's generation settings name: one id, a list, or none."""
    setting = generation_settings(path).get("eos_token_id")
    if isinstance(setting, int):
        return [setting]
    ids = list(setting or [])
    for index in ids:
        if not isinstance(index, int):
            raise ValueError(f"eos_token_id of its generation settings is {setting!r}, which are not ids")
    return ids
