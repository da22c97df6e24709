"""The engine interface: one call samples one line."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from repl_rl.config import SamplingConfig
from repl_rl.errors import ConfigError
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, failure, is_shipped

if TYPE_CHECKING:
    import torch


SAMPLING = tuple(SamplingConfig.model_fields)
"""The names of the sampling settings. vLLM has the same ones."""


_MOST_LOGPROB = 0.01
"""Of a token of a user's engine: short types round that of a certain token to a little more than 0."""


class Finish(StrEnum):
    """Why a line ended."""

    NEWLINE = "newline"
    """Its last token holds a newline."""
    EOS = "eos"
    """Its last token ends the text."""
    LENGTH = "length"
    """It used up `max_tokens`."""


Versions = tuple[tuple[int, int], ...]
"""Which weights sampled a run of tokens: pairs of a token's index and the version from there on, indices ascending."""


def updated(versions: Versions, index: int, version: int) -> Versions:
    """`versions`, and another one for the tokens from `index` on, of which none has been sampled yet."""
    # A version that has begun at `index` as well has sampled nothing.
    earlier = tuple(pair for pair in versions if pair[0] < index)
    return (*earlier, (index, version))


@dataclass(frozen=True, slots=True)
class SampledLine:
    """One line of the policy: at least one id, and each id's log-probability in nats under the sampler."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    versions: Versions = ()
    """The weights that sampled its tokens, from index 0 on. Empty: those that the engine had when the line began."""

    def __post_init__(self) -> None:
        if not 0 < len(self.ids) == len(self.logprobs):
            raise ValueError(f"a sampled line of {len(self.ids)} ids and {len(self.logprobs)} logprobs")


def check_trajectory(tokens: int, context_tokens: int) -> None:
    """Raises ConfigError for a trajectory that is longer than an engine's context."""
    if tokens > context_tokens:
        raise ConfigError(
            f"a trajectory of {tokens} tokens does not fit into engine.context_tokens {context_tokens}; "
            "raise it, or lower budget.tokens"
        )


def check_line(length: int, max_tokens: int, context_tokens: int) -> None:
    """Raises ConfigError for a line after `length` tokens that an engine has no room for."""
    if max_tokens < 1 or not length or length + max_tokens > context_tokens:
        raise ConfigError(
            f"a line of at most {max_tokens} tokens after {length} does not fit: it needs one token or more, "
            f"and engine.context_tokens is {context_tokens}"
        )


class TensorFacts(NamedTuple):
    """What is known about a weight before it is gathered: its name in the checkpoint, type and whole shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Slot(Protocol):
    """Room for one trajectory in an engine, which also keeps its keys and values, or its place on a server, until the
    slot is left."""

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """Continue `ids` (all of prompt and completion so far) up to and including a token that holds a newline.

        Raises EngineError if the engine can't go on. Cancelling the call frees its sequence. One call at a time.
        """


class Engine(Protocol):
    """A policy that samples lines. Slots work concurrently; a line being sampled is one sequence of the batch."""

    @property
    def version(self) -> int:
        """How many weight updates the policy has seen."""

    def slot(self, tokens: int, is_subcall: bool = False) -> AbstractAsyncContextManager[Slot]:
        """A slot for a trajectory of at most `tokens` tokens, prompt included. Waits in order until there is room.

        A trajectory waits for its sub-calls, which go first, so that the two can't wait for each other. Callers give
        `is_subcall` by position, and only for a sub-call, so an engine may call it otherwise, or leave it out.
        """

    def close(self) -> None:
        """Release the model; a second call does nothing."""


@asynccontextmanager
async def slot_of(engine: Engine, tokens: int, is_subcall: bool = False) -> AsyncIterator[Slot]:
    """A slot of the engine. What an engine of the user's raises is an ExtensionError."""
    async with AsyncExitStack() as stack:
        with boundary(Seam.ENGINE, engine, "slot"):
            # By position, and only for a sub-call: as `Engine.slot` promises.
            entered = engine.slot(tokens, is_subcall) if is_subcall else engine.slot(tokens)
            slot = await stack.enter_async_context(entered)
        yield slot if is_shipped(engine) else _UsersSlot(slot)


class _UsersSlot:
    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        with boundary(Seam.ENGINE, self._slot, "sample_line"):
            line = await self._slot.sample_line(ids, max_tokens, sampling)
        problem = _problem_of(line, max_tokens)
        if problem:
            raise failure(Seam.ENGINE, self._slot, problem, "sample_line")
        return line


def _problem_of(line: Any, max_tokens: int) -> str:
    """What is wrong with what an engine of the user's has returned for a line; "" if nothing is."""
    if not isinstance(line, SampledLine):
        return f"returned {shown(line)}, which is not a SampledLine"
    if len(line.ids) > max_tokens:
        return f"returned a line of {len(line.ids)} tokens, and was asked for {max_tokens} at most"
    finish: Any = line.finish
    if not isinstance(finish, Finish):
        return f"returned a line whose finish is {shown(finish)}, which is not a Finish"
    for index in line.ids:
        if not isinstance(index, int) or index < 0:
            return f"returned a line with the token {shown(index)}, which is not an int from 0 up"
    for logprob in line.logprobs:
        if not isinstance(logprob, int | float) or not -math.inf < logprob <= _MOST_LOGPROB:
            return f"returned a line with the log-probability {shown(logprob)}, which is not a float of 0 at most"
    return ""


@runtime_checkable
class ServesSlots(Protocol):
    """An engine that can serve slots to another process without an event loop in this one."""

    @property
    def threads(self) -> int | None:
        """How many cores it computes on; None: all of them, or a GPU."""

    def serve(self, end: socket.socket) -> None:
        """Answer the `RemoteEngine` at the other end until it closes. The engine takes over `end`."""


@runtime_checkable
class Sleeps(Protocol):
    """An engine that can give its memory to the trainer between two rollouts."""

    def sleep(self) -> bool:
        """Give up weights and cache until the next weights come. Returns False if it stays awake."""


@runtime_checkable
class CountsPrompts(Protocol):
    """An engine that tells how much of the transcripts that lines continue it had to compute."""

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        """Since its start: the tokens that lines were to continue, and how many of these it has computed for them."""


@runtime_checkable
class CountsSteps(Protocol):
    """An engine that samples lines in steps, a token for each line that runs."""

    @property
    def steps(self) -> int:
        """How many it has done since its start."""

    @property
    def step_lines(self) -> int:
        """The lines of all these steps together."""


@runtime_checkable
class RecordsGraphs(Protocol):
    """An engine that may replay CUDA graphs."""

    @property
    def graphs(self) -> str:
        """The graphs that it has recorded, in words; "none" without any."""


@runtime_checkable
class KnowsFacts(Protocol):
    """Weights that say what will come before they are read."""

    def facts(self) -> Sequence[TensorFacts] | None:
        """In the order of the weights; None if that is not known."""


@runtime_checkable
class TakesAdapters(Protocol):
    """An engine that can sample with an adapter beside its weights."""

    @property
    def takes_adapters(self) -> bool:
        """Whether it was started for adapters. It then gets these in place of weights."""

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        """Sample with the PEFT adapter that `save` writes to a folder."""


@runtime_checkable
class TrainableEngine(Engine, Protocol):
    """An engine that loads the trainer's weights itself."""

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights, named as in the checkpoint, and sample with them from now on; `version` goes up by one.

        Nothing that was computed with the old weights is used again. Raises EngineError if the weights are not those of
        the engine's model.
        """


@runtime_checkable
class SharedEngine(TrainableEngine, Protocol):
    """An engine whose weights lie outside this process: one of several trainer processes loads them for all."""

    @property
    def weights(self) -> Any:
        """The loaded weights, for `adopt` in the other processes. Can be pickled."""

    def adopt(self, weights: Any) -> None:
        """Use the weights that another process has loaded."""

    def require_weight_updates(self) -> None:
        """Raises ConfigError if weights can't be loaded into it."""
