"""The tokens of a trajectory one by one: id, text, logprob, and whether the policy sampled it.

Texts come from the bytes of tokens, so that each token shows exactly what it put into the sequence: a byte that is no
whole character by itself is written `\\xNN`. Loading texts reads `tokenizer.json` and nothing else: no weights, no
torch, no network.

Not covered: checkpoints without `tokenizer.json` have ids and no texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_rl.errors import ModelError, ReplRLError
from repl_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenTexts = Callable[[Sequence[int]], list[str]]
"""From ids to their texts, one each; "" for an id that the vocabulary has no token for."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token of the completion. `line` is the index of the line that it is part of, or whose output it is part of.

    `text` is None where it isn't known, or the texts at hand contradict the lines; `logprob` (nats) is None where the
    token was not sampled; `line` is None before the first line.
    """

    index: int
    id: int
    text: str | None
    logprob: float | None
    sampled: bool
    line: int | None


def token_rows(trajectory: Trajectory, texts: TokenTexts | None) -> list[TokenRow]:
    """The completion's tokens in order. Raises ValueError if `texts` gives another number of texts than of ids."""
    ids = trajectory.completion_ids
    known: Sequence[str | None] = [None] * len(ids)
    if texts is not None and texts_fit(trajectory, texts):
        known = texts(ids)
    columns = zip(ids, known, trajectory.logprobs, trajectory.sampled_mask, _lines(trajectory), strict=True)
    return [
        TokenRow(index, token, text or None, logprob if sampled else None, sampled, line)
        for index, (token, text, logprob, sampled, line) in enumerate(columns)
    ]


def texts_fit(trajectory: Trajectory, texts: TokenTexts) -> bool:
    """False where the texts contradict those of the lines: they are of another vocabulary than the one that sampled.

    A line tells nothing where bytes of its tokens are no whole characters; what ended the text may stand behind it.
    """
    spelled = (("".join(texts(trajectory.completion_ids[line.start : line.end])), line) for line in trajectory.lines)
    return all(text.startswith(line.text) for text, line in spelled if text.isascii() and "\\x" not in text)


def load_token_texts(model: str) -> TokenTexts | None:
    """Texts by the tokenizer of a model: a name that ships (`nano`), a checkpoint folder, or a hub id.

    A hub id is looked for among what has been downloaded before. None where there is no `tokenizer.json` to be found,
    or none that can be read.
    """
    try:
        path = _tokenizer_file(model)
        return None if path is None else _texts(_read_tokenizer(path))
    except ReplRLError:
        return None


def _lines(trajectory: Trajectory) -> list[int | None]:
    """Which line each token belongs to. (T,)"""
    owners: list[int | None] = []
    starts = [line.start for line in trajectory.lines]
    for index, (start, end) in enumerate(zip([0, *starts], [*starts, len(trajectory.completion_ids)], strict=True)):
        owners += [index - 1 if index else None] * (end - start)
    return owners


def _tokenizer_file(model: str) -> Path | None:
    from repl_rl.models import find_model

    found = find_model(model)
    path = Path(found) / "tokenizer.json"
    return path if path.is_file() else _downloaded(found)


def _downloaded(hub_id: str) -> Path | None:
    """The file in huggingface_hub's cache. Asks no server."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(hub_id, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None


def _read_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises nothing narrower.
        raise ModelError(f"{path} can't be read as a tokenizer: {error}") from error


def _texts(tokenizer: Tokenizer) -> TokenTexts:
    from repl_rl.engine.vocabulary import bytes_of_tokens

    spelled = [data.decode("utf-8", "backslashreplace") for data in bytes_of_tokens(_AsTransformers(tokenizer))]
    return lambda ids: [spelled[index] if 0 <= index < len(spelled) else "" for index in ids]


class _AsTransformers:
    """What `bytes_of_tokens` asks of transformers' tokenizers, which would load torch."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend_tokenizer = tokenizer

    def get_vocab(self) -> Mapping[str, int]:
        vocabulary: Mapping[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        added: Mapping[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return added

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """Cleaning up is transformers' own habit and stays off."""
        text: str = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text
