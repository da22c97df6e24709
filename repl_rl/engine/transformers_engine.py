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
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from repl_rl.config import EngineConfig, SamplingConfig, SeededSampling
from repl_rl.engine.admission import Admission
from repl_rl.engine.base import Finish, SampledLine
from repl_rl.engine.line_thread import LineThread
from repl_rl.engine.row_batch import RowBatch, RowSequence
from repl_rl.engine.row_model import RowModel
from repl_rl.engine.threaded_engine import ThreadedEngine
from repl_rl.engine.threads import engine_threads
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError

_GIB = 2**30


class TransformersEngine(ThreadedEngine["_Place"]):
    """An `Engine` over a model of transformers, on the GPU if there is one."""

    def __init__(self, path: str, vocabulary: Vocabulary, dtype: str, config: EngineConfig, seed: int = 0) -> None:
        """Raises ModelError if the checkpoint can't be run, ConfigError if not one trajectory has room."""
        self._model = RowModel(path, dtype)
        capacity_tokens = _capacity_tokens(self._model, config)
        self._seed = seed
        self._numbers = itertools.count()
        most_rows = capacity_tokens // config.context_tokens
        self._batch = RowBatch(self._model, most_rows, reuses_prefixes=not config.deterministic)
        stepper = _RowStepper(self._batch, vocabulary, config.places)
        openmp_threads = engine_threads(self._model.parameter_count) if self._model.device.type == "cpu" else None
        thread = LineThread(stepper, "the transformers engine", openmp_threads)
        super().__init__(thread, Admission(capacity_tokens, learns=False), config.context_tokens)

    def make_place(self, tokens: int) -> _Place:
        return _Place(RowSequence(random.Random(f"{self._seed}:{next(self._numbers)}"), tokens))

    def reserved_tokens(self, tokens: int) -> int:
        """A whole row."""
        return self._context_tokens

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights between two steps; lines under way go on with the new ones. Raises EngineError."""
        with self._thread.quiet():
            self._model.load_weights(named_weights)
            self._batch.forget()
            self.version += 1

    def close(self) -> None:
        self._thread.close()
        self._model.close()


@dataclass(slots=True, eq=False)
class _Place:
    """One slot, and the line that it has asked for."""

    sequence: RowSequence
    max_tokens: int = 0
    logprobs: list[float] = field(default_factory=list)


class _RowStepper:
    """A `Stepper` over rows: at most `places` lines run, the others wait in order."""

    def __init__(self, batch: RowBatch, vocabulary: Vocabulary, places: int) -> None:
        self._batch = batch
        self._finishes = dict.fromkeys(vocabulary.stop_ids, Finish.NEWLINE)
        self._finishes |= dict.fromkeys(vocabulary.eos_ids, Finish.EOS)
        self._places = places
        self._running: dict[RowSequence, _Place] = {}
        self._waiting: deque[_Place] = deque()

    def add(self, slot: _Place, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> None:
        slot.sequence.go_on_from(ids, sampling)
        if isinstance(sampling, SeededSampling):
            slot.sequence.draws = random.Random(sampling.line_seed(len(ids)))
        slot.sequence.width = max(slot.sequence.width, len(ids) + max_tokens)
        slot.max_tokens, slot.logprobs = max_tokens, []
        self._waiting.append(slot)

    def step(self) -> Iterator[tuple[_Place, SampledLine]]:
        while self._waiting and len(self._running) < self._places:
            place = self._waiting.popleft()
            self._running[place.sequence] = place
            self._batch.start(place.sequence)
        for sequence, logprob in self._batch.step():
            place = self._running[sequence]
            place.logprobs.append(logprob)
            finish = self._finish(place)
            if finish is not None:
                self._stop(place)
                yield place, SampledLine(tuple(sequence.ids[-len(place.logprobs) :]), tuple(place.logprobs), finish)

    def abort(self, slot: _Place) -> None:
        if slot.sequence in self._running:
            self._stop(slot)
        else:
            self._waiting.remove(slot)

    def leave(self, slot: _Place) -> None:
        self._batch.release(slot.sequence)

    def _stop(self, place: _Place) -> None:
        del self._running[place.sequence]
        self._batch.stop(place.sequence)

    def _finish(self, place: _Place) -> Finish | None:
        finish = self._finishes.get(place.sequence.ids[-1])
        return Finish.LENGTH if finish is None and len(place.logprobs) == place.max_tokens else finish


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
