"""A policy that types what it is told: stands behind the engine seam, and knows a session by the ids it has sampled.

`rollout_of` makes rollouts of it, and `HookedKernels` are kernels in which a test may do something at each cell.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kernel_fakes import FakeKernelPool
from vocabularies import nano

from repl_rl.config import BudgetConfig, DialectConfig, SamplingConfig, SubcallsConfig
from repl_rl.dialect import Dialect
from repl_rl.engine import SampledLine, Vocabulary
from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scripted import typed_line
from repl_rl.rollout.setup import RolloutSetup, make_extensions
from repl_rl.tasks import grade
from repl_rl.tools.tool import Where
from repl_rl.utils.admission import Admission, Room

LOGPROB = -0.25
Script = Callable[[str], str | Awaitable[str]]
BeforeTurn = Callable[[str, int, SamplingConfig], Awaitable[None]]
"""Called with the prompt of a session, the number of the turn and how it is sampled."""


def scripted_line(vocabulary: Vocabulary, typed: str, max_tokens: int) -> SampledLine:
    """`typed` as a sampled line: text that ends no turn ends with the end-of-text token."""
    line = typed_line(vocabulary, typed, not any(byte in typed.encode() for byte in vocabulary.stops), max_tokens)
    return replace(line, logprobs=(LOGPROB,) * len(line.ids))


class FakeEngine:
    """What an engine has besides lines: nothing to close, and itself as every slot."""

    version = 0

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Any]:
        yield self

    def close(self) -> None:
        """Nothing is held."""


class ScriptedEngine(FakeEngine):
    """Turn n of a session types `script(prompt)[n]`, or `script[n]`, verbatim, after `before` has been called.

    `given` keeps every list of ids that it was handed, `slots` is how many slots are held.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        script: Callable[[str], Sequence[str]] | Sequence[str],
        before: BeforeTurn | None = None,
    ) -> None:
        self.given: list[list[int]] = []
        self.slots = 0
        self.vocabulary = vocabulary
        self._script = script if callable(script) else lambda prompt: script
        self._before = before
        self.sessions: dict[tuple[int, ...], tuple[str, int]] = {}

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Any]:
        self.slots += 1
        try:
            yield self
        finally:
            self.slots -= 1

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        prompt, turn = self.session_of(tuple(ids))
        if self._before is not None:
            await self._before(prompt, turn, sampling)
        self.given.append(list(ids))
        line = scripted_line(self.vocabulary, self._script(prompt)[turn], max_tokens)
        self.sessions[(*ids, *line.ids)] = (prompt, turn + 1)
        return line

    def session_of(self, ids: tuple[int, ...]) -> tuple[str, int]:
        """The prompt and the turn of the session whose ids these go on from; a new one if there is none."""
        past = max((known for known in self.sessions if ids[: len(known)] == known), key=len, default=None)
        return (self.vocabulary.decode(ids), 0) if past is None else self.sessions[past]


Execute = Callable[[], Awaitable[ExecResult]]
AtCell = Callable[[int, int, str, Execute], Awaitable[ExecResult]]
"""Called with the number of the session, that of its cell, the source, and what runs it."""


class HookedKernels:
    """Sessions of other kernels, with `at_cell` around each cell. Counts those that were opened and those that are."""

    def __init__(self, at_cell: AtCell, kernels: Any = None) -> None:
        self.opened = self.open = 0
        self._at_cell = at_cell
        self._kernels = kernels or FakeKernelPool()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        number, cells = self.opened, 0
        self.opened += 1
        self.open += 1
        try:
            async with self._kernels.session() as kernel:

                async def execute(source: str, *host: Any) -> ExecResult:
                    nonlocal cells
                    cells += 1
                    return await self._at_cell(number, cells - 1, source, lambda: kernel.execute(source, *host))

                yield SimpleNamespace(execute=execute, prepare=kernel.prepare)
        finally:
            self.open -= 1


def failing_kernels(broken: int, cells: int = 0) -> HookedKernels:
    """Kernels of which the first few break: before their first cell, or after `cells` of them."""

    async def at_cell(session: int, cell: int, source: str, execute: Execute) -> ExecResult:
        if session < broken and cell == cells:
            raise KernelDiedError("the connection broke")
        return await execute()

    return HookedKernels(at_cell)


class Gate:
    """Kernels that run nothing before it is opened."""

    def __init__(self) -> None:
        self.is_asked, self.may_run = asyncio.Event(), asyncio.Event()
        self.kernels = HookedKernels(self._hold)

    async def _hold(self, session: int, cell: int, source: str, execute: Execute) -> ExecResult:
        self.is_asked.set()
        await self.may_run.wait()
        return await execute()


def rollout_of(
    engine: Any,
    kernels: Any = None,
    *,
    vocabulary: Vocabulary | None = None,
    dialect: Dialect | DialectConfig | str = "python",
    context_tokens: int = 1024,
    budget: BudgetConfig | Mapping[str, Any] | None = None,
    subcalls: Mapping[str, Any] | None = None,
    tools: Iterable[Any] = (),
    where: Where = "sandbox",
    environment: Any = None,
    sampler: Any = None,
    guests: Iterable[Any] = (),
    grader: Any = grade,
    **setup: Any,
) -> Rollout:
    """Rollouts at this engine, in kernels that isolate nothing if no others are given."""
    made = RolloutSetup(
        vocabulary or getattr(engine, "vocabulary", None) or nano(),
        DialectConfig(name=dialect) if isinstance(dialect, str) else dialect,
        context_tokens=context_tokens,
        budget=budget if isinstance(budget, BudgetConfig) else BudgetConfig(**(budget or {})),
        subcalls=SubcallsConfig(**(subcalls or {})),
        extensions=make_extensions(tools, where, environment, sampler, grader, guests),
        **setup,
    )
    return Rollout(engine, kernels or FakeKernelPool(), made)


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return a * b


class AskedEngine(FakeEngine):
    """Trajectories type `typed`, and each sub-call gets `answer(prompt)`.

    Both wait for room as at a real engine. `held` is how many slots are held now, under True those of sub-calls, and
    `most` the most that were. `note` is called with how each line is sampled.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        typed: Sequence[str],
        answer: Script = "about {}".format,
        capacity_tokens: int = 1 << 30,
        note: Callable[[Any], None] = lambda sampling: None,
    ) -> None:
        self.admission = Admission(Room(capacity_tokens), learns=True)
        self.held: Counter[bool] = Counter()
        self.most: Counter[bool] = Counter()
        self.given: list[tuple[int, ...]] = []
        """Every list of ids that it was handed."""
        self.vocabulary = vocabulary
        self.note = note
        self._typed = typed
        self._answer = answer

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Any]:
        left: list[str] | None = None

        async def sample_line(ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
            nonlocal left
            self.given.append(tuple(ids))
            self.note(sampling)
            if left is None:
                left = await self._answered(ids) if is_subcall else list(self._typed)
            await asyncio.sleep(0)
            return scripted_line(self.vocabulary, left.pop(0), max_tokens)

        async with self.admission.reserve(tokens, is_subcall):
            self.held[is_subcall] += 1
            self.most[is_subcall] = max(self.most[is_subcall], self.held[is_subcall])
            try:
                yield SimpleNamespace(sample_line=sample_line)
            finally:
                self.held[is_subcall] -= 1

    async def _answered(self, ids: Sequence[int]) -> list[str]:
        answer = self._answer(self.vocabulary.decode(ids))
        text = answer if isinstance(answer, str) else await answer
        return [f" {text}\n"]


def locked() -> Callable[[int], int]:
    """A tool that no process can be sent."""
    lock = threading.Lock()

    def guarded(a: int) -> int:
        """Guarded."""
        with lock:
            return a

    return guarded
