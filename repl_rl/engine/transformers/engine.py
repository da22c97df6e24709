"""transformers in this process: for machines without vLLM, and as the reference that other engines are held against.

Each slot keeps its keys and values in a row of memory between lines, so a line costs its new tokens only. Every slot
draws random numbers of its own: with one seed, the n-th slot draws the same numbers whatever runs beside it. They meet
the same distributions only up to rounding: the last bits of a row's logits depend on the shape of the batch.

transformers' own continuous batching lets go of a sequence when it ends, draws for all from one generator, and took
36 s on two cores for the tokens that take this loop 0.2 s.

Not covered: several devices, tensor parallelism, recurrent models (they are refused).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine.admission import Admission
from repl_rl.engine.base import Finish, SampledLine
from repl_rl.engine.environment import engine_threads
from repl_rl.engine.threaded import ThreadedEngine
from repl_rl.engine.transformers.model import RowModel, sample_tokens
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError, EngineError

_GIB = 2**30
_MOST_FED_TOKENS = 4096
"""Of one forward pass, padding included; one longer sequence is fed in one pass of its own."""
_LEAST_SHARED_TOKENS = 32
"""What has to be spared for a sequence to wait a step for it."""


@dataclass(slots=True, eq=False)
class RowSequence:
    """One slot's sequence, at most `width` tokens long: `ids`, the first `cached` of them in its row."""

    draws: random.Random
    width: int
    row: int | None = None
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_tokens: int = 0
    """Of the line under way."""
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens that the line under way has so far."""

    @property
    def pending(self) -> int:
        """How many ids are to be fed."""
        return len(self.ids) - self.cached

    def go_on_from(self, ids: Sequence[int], sampling: SamplingConfig) -> None:
        """Continue `ids`; of what is cached, the common beginning stays. One token at least is fed again."""
        self.cached = _common_length(self.ids[: self.cached], ids[:-1])
        self.ids = list(ids)
        self.sampling = sampling
        self.logprobs = []


class TransformersEngine(ThreadedEngine[RowSequence]):
    """An `Engine` over a model of transformers, on the GPU if there is one."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0
    ) -> None:
        """Raises ModelError if the checkpoint can't be run, ConfigError if not one trajectory has room."""
        self._model = RowModel(path, model.dtype)
        capacity_tokens = _capacity_tokens(self._model, config)
        self._seed = seed
        self._numbers = itertools.count()
        most_rows = capacity_tokens // config.context_tokens
        self._batch = RowBatch(self._model, most_rows, reuses_prefixes=not config.deterministic)
        super().__init__(
            _RowStepper(self._batch, vocabulary, config.places),
            "the transformers engine",
            Admission(capacity_tokens, learns=False),
            config.context_tokens,
            engine_threads(self._model.parameter_count) if self._model.device.type == "cpu" else None,
        )

    def make_sequence(self, tokens: int) -> RowSequence:
        return RowSequence(random.Random(f"{self._seed}:{next(self._numbers)}"), tokens)

    def reserved_tokens(self, tokens: int) -> int:
        """A whole row."""
        return self._context_tokens

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights between two steps; lines under way go on with the new ones. Raises EngineError."""
        with self.paused():
            self._model.load_weights(named_weights)
            self._batch.forget()
            self.version += 1

    def close(self) -> None:
        super().close()
        self._model.close()


def _capacity_tokens(model: RowModel, config: EngineConfig) -> int:
    """Tokens that the cache may hold. Raises ConfigError if one trajectory of the longest does not fit."""
    if model.most_positions is not None and config.context_tokens > model.most_positions:
        raise ConfigError(
            f"engine.context_tokens {config.context_tokens} is more than the {model.most_positions} positions of the "
            "model; lower it"
        )
    if model.device.type == "cuda":
        total = torch.cuda.get_device_properties(model.device).total_memory
        cache_bytes = int(config.gpu_memory_utilization * total) - model.weight_bytes
        key = f"engine.gpu_memory_utilization {config.gpu_memory_utilization}"
    else:
        cache_bytes, key = config.kv_cache_gib * _GIB, f"engine.kv_cache_gib {config.kv_cache_gib}"
    tokens = cache_bytes // model.bytes_per_token
    if tokens < config.context_tokens:
        raise ConfigError(
            f"{key} leaves room for {max(tokens, 0)} tokens of {model.bytes_per_token} bytes, and "
            f"engine.context_tokens is {config.context_tokens}; raise the first or lower the second"
        )
    return int(tokens)


class _RowStepper:
    """A `Stepper` over rows: at most `places` lines run, the others wait in order."""

    def __init__(self, batch: RowBatch, vocabulary: Vocabulary, places: int) -> None:
        self._batch = batch
        self._finishes = dict.fromkeys(vocabulary.stop_ids, Finish.NEWLINE)
        self._finishes |= dict.fromkeys(vocabulary.eos_ids, Finish.EOS)
        self._places = places
        self._waiting: deque[RowSequence] = deque()

    def add(self, sequence: RowSequence, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> None:
        sequence.go_on_from(ids, sampling)
        if isinstance(sampling, SeededSampling):
            sequence.draws = random.Random(sampling.line_seed(len(ids)))
        sequence.width = max(sequence.width, len(ids) + max_tokens)
        sequence.max_tokens = max_tokens
        self._waiting.append(sequence)

    def step(self) -> Iterator[tuple[RowSequence, SampledLine]]:
        while self._waiting and len(self._batch.running) < self._places:
            self._batch.start(self._waiting.popleft())
        for sequence in self._batch.step():
            finish = self._finishes.get(sequence.ids[-1])
            if finish is None and len(sequence.logprobs) == sequence.max_tokens:
                finish = Finish.LENGTH
            if finish is not None:
                self._batch.stop(sequence)
                ids = sequence.ids[-len(sequence.logprobs) :]
                yield sequence, SampledLine(tuple(ids), tuple(sequence.logprobs), finish)

    def abort(self, sequence: RowSequence) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._batch.stop(sequence)

    def leave(self, sequence: RowSequence) -> None:
        self._batch.release(sequence)


class RowBatch:
    """Which sequences of a model's rows run, and one step of them.

    The running sequences always stand in the first rows, so a step runs over neighbouring rows. A sequence that starts
    changes places with the one after the last running row; one that stops, with the last running one. What a stopped
    sequence has cached stays in its row: its next line costs the new tokens only. Of a prompt that several sequences
    share, one reads it and the others copy. With `reuses_prefixes=False` a line computes all of its prefix: keys and
    values that came out of a batch of another shape differ in their last bits.

    Not thread-safe. Each sequence keeps a row until `release`; the caller sees that `most_rows` are enough.
    """

    def __init__(self, model: RowModel, most_rows: int, reuses_prefixes: bool = True) -> None:
        self._model = model
        self._most_rows = most_rows
        self._reuses_prefixes = reuses_prefixes
        self._rows: list[RowSequence | None] = []
        self._running_count = 0

    @property
    def running(self) -> list[RowSequence]:
        return [sequence for sequence in self._rows[: self._running_count] if sequence is not None]

    def start(self, sequence: RowSequence) -> None:
        """Let a sequence run, from the next step on."""
        if not self._reuses_prefixes:
            sequence.cached = 0
        if sequence.row is None:
            if None not in self._rows:
                self._rows.append(None)
            sequence.row = self._rows.index(None)
            self._rows[sequence.row] = sequence
        row_count = 1 << (len(self._rows) - 1).bit_length()
        self._model.rows.reserve(min(row_count, self._most_rows), sequence.width)
        self._move(sequence, self._running_count)
        self._running_count += 1

    def stop(self, sequence: RowSequence) -> None:
        """A sequence that runs stops, and keeps its row."""
        self._running_count -= 1
        self._move(sequence, self._running_count)

    def release(self, sequence: RowSequence) -> None:
        """Give the row of a stopped sequence back."""
        if sequence.row is not None:
            self._rows[sequence.row] = None
            sequence.row = None

    def forget(self) -> None:
        """Nothing is cached any more: the weights are others."""
        for sequence in self._rows:
            if sequence is not None:
                sequence.cached = 0

    def step(self) -> list[RowSequence]:
        """Append one token, and its log-probability, to running sequences; returns those.

        A sequence is left out for a step if another one reads most of its prompt in it. Raises EngineError if a
        log-probability is not finite.
        """
        left_out = self._share_prompts() if self._reuses_prefixes else set()
        ordered = sorted(self.running, key=lambda sequence: (sequence in left_out, sequence.pending))
        for row, sequence in enumerate(ordered):
            self._move(sequence, row)
        grown = ordered[: len(ordered) - len(left_out)]
        for first, last in fed_together([sequence.pending for sequence in grown], _MOST_FED_TOKENS):
            self._feed(first, grown[first:last])
        return grown

    def _share_prompts(self) -> set[RowSequence]:
        """Give new sequences what others hold of their ids; returns those that wait for what one will hold."""
        holders = [sequence for sequence in self._rows if sequence is not None and sequence.cached]
        readers: list[RowSequence] = []
        left_out = set()
        for sequence in self.running:
            if not sequence.cached:
                common = [_common_length(sequence.ids[:-1], holder.ids[: holder.cached]) for holder in holders]
                sequence.cached = max(common, default=0)
                if sequence.cached:
                    self._model.rows.copy(_row(holders[common.index(sequence.cached)]), _row(sequence), sequence.cached)
                worth = sequence.cached + _LEAST_SHARED_TOKENS
                if any(_common_length(sequence.ids[:-1], reader.ids) >= worth for reader in readers):
                    left_out.add(sequence)
                else:
                    readers.append(sequence)
        return left_out

    def _feed(self, first_row: int, sequences: Sequence[RowSequence]) -> None:
        pending = [sequence.ids[sequence.cached :] for sequence in sequences]
        logits = self._model.next_logits(first_row, pending, [sequence.cached for sequence in sequences])
        tokens, logprobs = sample_tokens(logits, [s.sampling for s in sequences], [s.draws.random() for s in sequences])
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                raise EngineError(f"a token was sampled with log-probability {logprob}: the weights are broken")
            sequence.cached = len(sequence.ids)
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)

    def _move(self, sequence: RowSequence, row: int) -> None:
        """Change places with whatever is in `row`."""
        other, own = self._rows[row], sequence.row
        if own is None or own == row:
            return
        length = max(sequence.cached, 0 if other is None else other.cached)
        self._model.rows.swap(own, row, length)
        self._rows[own], self._rows[row] = other, sequence
        sequence.row = row
        if other is not None:
            other.row = own


def fed_together(pending: Sequence[int], most_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of neighbours to feed in one pass, each padded to its longest: `pending` counts, ascending, in a row.

    No pass has more than twice the tokens that it needs (and 16 a row), or more than `most_tokens` with several rows.
    """
    first = 0
    for index, count in enumerate(pending):
        too_many = (index + 1 - first) * count > most_tokens
        if index > first and (too_many or (count > 1) != (pending[first] > 1) or count > 2 * pending[first] + 16):
            yield first, index
            first = index
    if pending:
        yield first, len(pending)


def _row(sequence: RowSequence) -> int:
    assert sequence.row is not None
    return sequence.row


def _common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common beginning; by bisection, for Python compares slices fast."""
    low, high = 0, min(len(ids), len(others))
    if list(ids[:high]) == list(others[:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if list(ids[low:middle]) == list(others[low:middle]):
            low = middle
        else:
            high = middle
    return low
