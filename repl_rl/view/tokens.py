"""The tokens of a trajectory one by one (id, text, logprob, and whether the policy sampled it), and as chips on a page.

Texts come from the bytes of tokens, so that each token shows exactly what it put into the sequence: a byte that is not
a whole character by itself is written `\\xNN`. Loading texts reads `tokenizer.json` and nothing else: no weights, no
torch, no network. A stranger's tokenizer is read in a confined process, with limits on time and memory.

Not covered: for checkpoints without `tokenizer.json` there are only ids, no texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from repl_rl.errors import ReplRLError
from repl_rl.trajectory import Trajectory
from repl_rl.utils.text import Excerpt, excerpt
from repl_rl.view.transcript import Origin
from repl_rl.view.words import short

STRETCH_TOKENS = 400
TOKEN_CHARS = 200
_STEPS = (-0.1, -0.7, -1.6, -3.0)
"""A token's shade counts those of these logprobs that it is below: probabilities of 90%, 50%, 20% and 5%."""
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})

TokenTexts = Callable[[Sequence[int]], list[str]]
"""Maps ids to texts, one for each id; "" for an id that is not in the vocabulary."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token of the completion. `line` is the index of the line that it is part of, or whose output it is part of.

    `text` is None if it isn't known, or if the vocabulary contradicts the lines; `logprob` (nats) is None if the token
    was not sampled; `line` is None before the first line.
    """

    id: int
    text: str | None
    logprob: float | None
    sampled: bool
    line: int | None

    @property
    def chip(self) -> str:
        """What its chip shows: the text with signs for blanks, or the id."""
        if self.text is None:
            return str(self.id)
        return short(self.text, TOKEN_CHARS).translate(_BLANKS)

    @property
    def shade(self) -> int:
        """From 0 to 4: the less likely the token was, the more."""
        if self.logprob is None:
            return 0
        return sum(self.logprob < step for step in _STEPS)


def token_rows(trajectory: Trajectory, texts: TokenTexts | None) -> list[TokenRow]:
    """The completion's tokens in order. Raises ValueError if `texts` doesn't return one text for each id."""
    ids = trajectory.completion_ids
    bounds = [*(line.start for line in trajectory.lines), len(ids)]
    owners: list[int | None] = [None] * bounds[0]  # (T,)
    for index, (start, end) in enumerate(pairwise(bounds)):
        owners += [index] * (end - start)
    token_texts: Sequence[str | None] = [None] * len(ids)
    if texts is not None and texts_fit(trajectory, texts):
        token_texts = texts(ids)
    rows = []
    columns = zip(ids, token_texts, trajectory.logprobs, trajectory.sampled_mask, owners, strict=True)
    for token, text, logprob, sampled, owner in columns:
        rows.append(TokenRow(token, text or None, logprob if sampled else None, sampled, owner))
    return rows


def texts_fit(trajectory: Trajectory, texts: TokenTexts) -> bool:
    """False if the texts contradict those of the lines: they belong to another vocabulary than the one that sampled.

    Only lines whose tokens spell ASCII are compared. After a line's text, its tokens may also spell what ended it.
    """
    for line in trajectory.lines:
        spelled = "".join(texts(trajectory.completion_ids[line.start : line.end]))
        is_ascii = spelled.isascii() and "\\x" not in spelled
        if is_ascii and not spelled.startswith(line.text):
            return False
    return True


def load_token_texts(model: str) -> TokenTexts | None:
    """Load the token texts of a model: a shipped one's name (`nano`), a checkpoint folder, or a hub id.

    A hub id is looked up only among earlier downloads. None if there is no `tokenizer.json`, it can't be read, or
    reading it takes too much time or memory.
    """
    from repl_rl.engine.strangers import TOKENIZER_CPU_S, spelled_file
    from repl_rl.models.nano import SHIPPED
    from repl_rl.utils.confined import compute

    try:
        path = _tokenizer_file(model)
        if path is None:
            return None
        if path.parent in SHIPPED.values():
            spelled = spelled_file(str(path))
        else:
            computed = compute("repl_rl.engine.strangers:spelled_file", [str(path)], TOKENIZER_CPU_S)
            if computed.problem:
                return None
            spelled = computed.value
    except (ReplRLError, OSError, ValueError):  # the name may be a stranger's
        return None

    def token_texts(ids: Sequence[int]) -> list[str]:
        return [spelled[index] if 0 <= index < len(spelled) else "" for index in ids]

    return token_texts


def _tokenizer_file(model: str) -> Path | None:
    """Look in the model's folder or, for a hub id, in huggingface_hub's cache. Never uses the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from repl_rl.models import find_model

    source = find_model(model)
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        return path
    try:
        downloaded = try_to_load_from_cache(source, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(downloaded) if isinstance(downloaded, str) else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive tokens of one line, all sampled or all written by the interpreter. `number` is the line's, from 1."""

    origin: Origin
    number: int | None
    tokens: Excerpt[TokenRow]


def stretches(trajectory: Trajectory, texts: TokenTexts | None) -> list[Stretch]:
    """The completion's tokens in order, those of long stretches cut in the middle."""

    def line_and_origin(row: TokenRow) -> tuple[int | None, bool]:
        return row.line, row.sampled

    parts = []
    for (line, sampled), rows in groupby(token_rows(trajectory, texts), line_and_origin):
        origin = Origin.TYPED if sampled else Origin.INTERPRETER
        number = None if line is None else line + 1
        parts.append(Stretch(origin, number, excerpt(list(rows), STRETCH_TOKENS)))
    return parts
