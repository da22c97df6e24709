"""transformers in this process: for machines without vLLM, and as the reference that other engines are compared with.

Each slot keeps its keys and values in a row of memory between lines, so a line only computes its new tokens. Each slot
has its own random generator: with a given seed, the n-th slot draws the same numbers whatever runs beside it. The
distributions that it draws from are the same only up to rounding: the last bits of a row's logits depend on the shape
of the batch.

transformers' own continuous batching is not used: it drops a sequence when it ends, draws for all sequences from one
generator, and took 36 s on two cores for tokens that take this loop 0.2 s.

Not covered: several devices, tensor parallelism, recurrent models (they are refused).
"""

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from transformers.generation import RepetitionPenaltyLogitsProcessor

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine.base import Finish, SampledLine, Versions, updated
from repl_rl.engine.environment import engine_threads
from repl_rl.engine.threaded import ThreadedEngine
from repl_rl.engine.transformers.model import RowModel, sample_tokens
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.admission import Admission, Room

_GIB = 2**30
_MOST_FED_TOKENS = 4096
"""Of one forward pass, padding included; a longer sequence is fed in a pass of its own."""
_LEAST_SHARED_TOKENS = 32
"""A sequence waits a step for another one's tokens only if it can copy at least this many."""


@dataclass(slots=True, eq=False)
class RowSequence:
    """One slot's sequence, at most `width` tokens long: `ids`, the first `cached` of which are stored in its row."""

    draws: random.Random
    width: int
    row: int | None = None
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_tokens: int = 0
    """Of the line under way."""
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens sampled so far in the line under way."""
    versions: Versions = ()
    """Of the weights that sampled them."""

    @property
    def pending(self) -> int:
        """How many ids are to be fed."""
        return len(self.ids) - self.cached


class TransformersEngine(ThreadedEngine[RowSequence]):
    """An `Engine` over a model of transformers, on the GPU if there is one."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0
    ) -> None:
        """Raises ModelError if the checkpoint can't be run, ConfigError if there is no room for a single trajectory."""
        self._model = RowModel(path, model.dtype)
        capacity_tokens = _capacity_tokens(self._model, config)
        self._seed = seed
        self._numbers = itertools.count()
        most_rows = capacity_tokens // config.context_tokens
        most_lines = min(config.places, most_rows)
        batch = RowBatch(self._model, vocabulary, most_lines, most_rows, reuses_prefixes=not config.deterministic)
        threads = None
        if self._model.device.type == "cpu":
            threads = engine_threads(self._model.parameter_count)
        admission = Admission(Room(capacity_tokens))
        super().__init__(batch, "the transformers engine", admission, config.context_tokens, threads)

    def make_sequence(self, tokens: int) -> RowSequence:
        number = next(self._numbers)
        return RowSequence(random.Random(f"{self._seed}:{number}"), tokens)

    def reserved_tokens(self, tokens: int) -> int:
        """A whole row."""
        return self._context_tokens

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights between two steps; lines under way go on with the new ones. Raises EngineError."""
        with self.paused():
            self._model.load_weights(named_weights)
            self.update()

    def close(self) -> None:
        super().close()
        self._model.close()


def _capacity_tokens(model: RowModel, config: EngineConfig) -> int:
    """Tokens that the cache may hold. Raises ConfigError if a trajectory of `context_tokens` does not fit."""
    if model.most_positions is not None and config.context_tokens > model.most_positions:
        raise ConfigError(
            f"engine.context_tokens {config.context_tokens} is more than the {model.most_positions} positions that the "
            "transformers engine has for this model; lower it, or take vLLM (engine: vllm) if the model has more"
        )
    if model.device.type == "cuda":
        total = torch.cuda.get_device_properties(model.device).total_memory
        cache_bytes = int(config.gpu_memory_utilization * total) - model.weight_bytes
        key = f"engine.gpu_memory_utilization {config.gpu_memory_utilization}"
    else:
        cache_bytes = config.kv_cache_gib * _GIB
        key = f"engine.kv_cache_gib {config.kv_cache_gib}"
    tokens = cache_bytes // model.bytes_per_token
    if tokens < config.context_tokens:
        raise ConfigError(
            f"{key} leaves room for {max(tokens, 0)} tokens of {model.bytes_per_token} bytes, and "
            f"engine.context_tokens is {config.context_tokens}; raise the first or lower the second"
        )
    return int(tokens)


class RowBatch:
    """A `Stepper` over the rows of a model: which sequences hold them, and which of these run.

    At most `most_lines` lines run, the others wait in order. The running sequences always hold the first rows, so a
    step runs over neighbouring rows. A sequence that starts swaps rows with the one after the last running row; one
    that stops swaps with the last running one. What a stopped sequence has cached stays in its row, so its next line
    only computes new tokens. When several sequences share a prompt, one reads it and the others copy its keys and
    values. With `reuses_prefixes=False`, each line computes its whole prefix, because keys and values from a batch of
    another shape differ in their last bits.

    Each sequence keeps a row until it leaves. There are `most_rows`, at least `most_lines`. If all are taken, a
    sequence that starts takes the row of a stopped one, which then reads its whole text again.
    """

    def __init__(
        self, model: RowModel, vocabulary: Vocabulary, most_lines: int, most_rows: int, reuses_prefixes: bool = True
    ) -> None:
        self._model = model
        # Why a line ends with a token, by its id; other tokens end none.
        self._finishes = dict.fromkeys(vocabulary.stop_ids, Finish.NEWLINE)
        self._finishes |= dict.fromkeys(vocabulary.eos_ids, Finish.EOS)
        self._most_lines = most_lines
        self._most_rows = most_rows
        self._reuses_prefixes = reuses_prefixes
        self._version = 0
        self._waiting: deque[RowSequence] = deque()
        self._rows: list[RowSequence | None] = []
        """The sequence that holds each row."""
        self._running_count = 0
        """How many rows, from the first on, have a running sequence."""

    def add(self, sequence: RowSequence, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> None:
        if self._reuses_prefixes:
            stored_ids = sequence.ids[: sequence.cached]
            # Without the last token: a token has to be fed to see what comes after it.
            sequence.cached = _common_length(stored_ids, ids[:-1])
        else:
            sequence.cached = 0
        if isinstance(sampling, SeededSampling):
            sequence.draws = random.Random(sampling.line_seed(len(ids)))
        sequence.ids = ids
        sequence.max_tokens = max_tokens
        sequence.sampling = sampling
        sequence.width = max(sequence.width, len(ids) + max_tokens)
        sequence.logprobs = []
        sequence.versions = ((0, self._version),)
        self._waiting.append(sequence)

    def step(self) -> Iterator[tuple[RowSequence, SampledLine]]:
        """Raises EngineError if a log-probability is not finite.

        A sequence is left out of a step in which another one reads tokens that it can copy afterwards.
        """
        while self._waiting and self._running_count < self._most_lines:
            self._start(self._waiting.popleft())

        left_out: set[RowSequence] = set()
        if self._reuses_prefixes:
            left_out = self._share_prompts()
        fed = [sequence for sequence in self._running if sequence not in left_out]
        others = [sequence for sequence in self._running if sequence in left_out]
        # The first rows, in the order of what they have pending, so that a pass is over neighbours of similar length.
        fed.sort(key=attrgetter("pending"))
        others.sort(key=attrgetter("pending"))
        for row, sequence in enumerate(fed + others):
            self._move(sequence, row)

        pending_counts = [sequence.pending for sequence in fed]
        for first, end in fed_together(pending_counts, _MOST_FED_TOKENS):
            self._feed(first, fed[first:end])

        for sequence in fed:
            finish = self._finishes.get(sequence.ids[-1])
            if finish is None and len(sequence.logprobs) == sequence.max_tokens:
                finish = Finish.LENGTH
            if finish is not None:
                self._stop(sequence)
                line_ids = sequence.ids[-len(sequence.logprobs) :]
                yield sequence, SampledLine(tuple(line_ids), tuple(sequence.logprobs), finish, sequence.versions)

    def abort(self, sequence: RowSequence) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._stop(sequence)

    def leave(self, sequence: RowSequence) -> None:
        if sequence.row is not None:
            self._rows[sequence.row] = None
            sequence.row = None

    def update(self, version: int) -> None:
        self._version = version
        for sequence in self._rows:
            if sequence is not None:
                sequence.cached = 0
        for sequence in (*self._waiting, *self._running):
            sequence.versions = updated(sequence.versions, len(sequence.logprobs), version)

    @property
    def _running(self) -> list[RowSequence]:
        return [sequence for sequence in self._rows[: self._running_count] if sequence is not None]

    def _start(self, sequence: RowSequence) -> None:
        if sequence.row is None:
            if None not in self._rows and len(self._rows) < self._most_rows:
                self._rows.append(None)
            last = self._rows[-1]
            if None not in self._rows and last is not None:
                # The last row's sequence is a stopped one: running ones have the first rows, and are fewer.
                self.leave(last)
                last.cached = 0
            sequence.row = self._rows.index(None)
            self._rows[sequence.row] = sequence
        # A power of two, since each enlargement copies what is stored.
        row_count = 1 << (len(self._rows) - 1).bit_length()
        self._model.rows.reserve(min(row_count, self._most_rows), sequence.width)
        self._move(sequence, self._running_count)
        self._running_count += 1

    def _stop(self, sequence: RowSequence) -> None:
        """Stop a running sequence, which keeps its row."""
        self._running_count -= 1
        self._move(sequence, self._running_count)

    def _share_prompts(self) -> set[RowSequence]:
        """Copy to new sequences what others have cached of their ids; returns those that wait for more."""
        holders: list[tuple[int, RowSequence]] = []
        for row, holder in enumerate(self._rows):
            if holder is not None and holder.cached:
                holders.append((row, holder))
        readers: list[RowSequence] = []
        left_out = set()
        for row, sequence in enumerate(self._running):
            if sequence.cached:
                continue
            prefix = sequence.ids[:-1]  # its last token is fed in any case
            source_row = row
            for holder_row, holder in holders:
                shared = _common_length(prefix, holder.ids[: holder.cached])
                if shared > sequence.cached:
                    sequence.cached = shared
                    source_row = holder_row
            if sequence.cached:
                self._model.rows.copy(source_row, row, sequence.cached)
            worth_waiting = sequence.cached + _LEAST_SHARED_TOKENS
            if any(_common_length(prefix, reader.ids) >= worth_waiting for reader in readers):
                left_out.add(sequence)
            else:
                readers.append(sequence)
        return left_out

    def _feed(self, first_row: int, sequences: Sequence[RowSequence]) -> None:
        """Compute what neighbouring rows have pending, in one pass, and sample a token for each."""
        pending = [sequence.ids[sequence.cached :] for sequence in sequences]
        lengths = [sequence.cached for sequence in sequences]
        logits = self._model.next_logits(first_row, pending, lengths)  # (B, V)
        for row, sequence in enumerate(sequences):
            penalty = sequence.sampling.repetition_penalty
            if penalty != 1:
                penalize = RepetitionPenaltyLogitsProcessor(penalty)
                seen = torch.tensor([sequence.ids], device=logits.device)
                logits[row : row + 1] = penalize(seen, logits[row : row + 1])
        samplings = [sequence.sampling for sequence in sequences]
        draws = [sequence.draws.random() for sequence in sequences]
        tokens, logprobs = sample_tokens(logits, samplings, draws)
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                raise EngineError(f"a token was sampled with log-probability {logprob}: the weights are broken")
            sequence.cached = len(sequence.ids)
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)

    def _move(self, sequence: RowSequence, row: int) -> None:
        """Swap rows with whatever is in `row`."""
        old_row = sequence.row
        if old_row is None or old_row == row:
            return
        other = self._rows[row]
        length = sequence.cached
        if other is not None:
            length = max(length, other.cached)
            other.row = old_row
        self._model.rows.swap(old_row, row, length)
        self._rows[old_row] = other
        self._rows[row] = sequence
        sequence.row = row


def fed_together(pending: Sequence[int], most_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of neighbouring rows to feed in one pass, padded to the longest; `pending` are the rows' counts, ascending.

    A pass has at most twice the tokens that it needs plus 16 a row and, with several rows, at most `most_tokens`.
    """
    first = 0
    for index, count in enumerate(pending):
        if index == first:
            continue
        least = pending[first]
        has_too_many = (index + 1 - first) * count > most_tokens
        is_much_longer = count > 2 * least + 16
        # Rows in the middle of a line have one token pending. They are fed without padding, and so without the others.
        would_pad_single_tokens = least <= 1 < count
        if has_too_many or is_much_longer or would_pad_single_tokens:
            yield first, index
            first = index
    if pending:
        yield first, len(pending)


def _common_length(ids: Sequence[int], other_ids: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (token, other_token) in enumerate(zip(ids, other_ids, strict=False)):
        if token != other_token:
            return index
    return min(len(ids), len(other_ids))
