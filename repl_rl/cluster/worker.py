"""The line loop as a Ray actor: one `Rollout`, with the kernels of the machine that it runs on.

An actor that Ray starts again elsewhere is empty until it is opened again. A result is all trajectories of a call or
why there are none; a call whose actor dies has no result, so each trajectory counts once.
"""

from __future__ import annotations

import asyncio
import pickle
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repl_rl.config import Config, EngineConfig
from repl_rl.engine import Engine, SharedEngine, Vocabulary, make_engine
from repl_rl.engine.factory import engine_backend
from repl_rl.errors import ConfigError
from repl_rl.rollout import Rollout, RolloutBatch, RolloutSetup, as_sent, make_pool
from repl_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from repl_rl.engine.server.fleet import Locate


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """All that an actor needs. `path` is that of the model, as the trainer has it."""

    config: Config
    path: str
    rollout: bytes
    """The `RolloutSetup`, packed."""
    weights: Any
    """The weights of the trainer's engine, which the worker's engine follows."""
    locate: Locate | None = None
    """Where the engine's servers are now."""


RolloutResult = tuple[list[Trajectory], float]
"""The trajectories of a call, and CPU time of the line loop over wall time."""


class RolloutActor:
    """Ray runs its methods on one event loop, many at a time."""

    def __init__(self) -> None:
        self._rollout: Rollout | None = None
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def open(self, setup: WorkerSetup) -> Exception | None:
        """Connect to the engine and start kernels, unless that has been done. Returns what it raised."""
        async with self._opening:
            if self._rollout is not None:
                return None
            try:
                rollout: RolloutSetup = pickle.loads(setup.rollout)
                engine = await asyncio.to_thread(open_engine, setup, rollout.vocabulary)
                self._stack.callback(engine.close)
                pool = await self._stack.enter_async_context(make_pool(rollout.kernel))
            except Exception as error:  # noqa: BLE001 - raised on the other side
                await self._close()
                return as_sent(error)
            self._pool = pool
            self._rollout = Rollout(engine, rollout.kernels(pool), rollout)
            return None

    async def roll_out(self, batch: RolloutBatch, weights: Any) -> RolloutResult | Exception | None:
        """The batch's trajectories, in the order of the tasks, typed with these weights or later ones, or what was
        raised; None if the actor has not been opened."""
        if self._rollout is None:
            return None
        try:
            engine = self._rollout.engine
            assert isinstance(engine, SharedEngine)
            engine.adopt(weights)
            return await self._rollout.run(batch)
        except Exception as error:  # noqa: BLE001 - raised on the other side
            return as_sent(error)

    async def kernel_numbers(self) -> dict[str, float]:
        """The pool's counters and percentiles; empty before it is open."""
        return {} if self._rollout is None else self._pool.stats.summary()

    async def close(self) -> None:
        """End the kernels. What is under way fails."""
        async with self._opening:
            await self._close()

    async def _close(self) -> None:
        self._rollout = None
        stack = self._stack
        self._stack = AsyncExitStack()
        await stack.aclose()


def open_engine(setup: WorkerSetup, vocabulary: Vocabulary) -> Engine:
    """The engine of a worker, which follows the trainer's. Raises ConfigError if it can't, or what opening raises."""
    config = setup.config
    common = setup.path, vocabulary, config.model, config.engine, config.seed
    if engine_backend(config.engine) == "server":
        from repl_rl.engine.server import VLLMServerEngine

        return VLLMServerEngine(*common, follows=setup.weights, locate=setup.locate)
    engine = make_engine(*common)
    require_shared(engine, config.engine)
    return engine


def require_shared(engine: Engine, config: EngineConfig) -> None:
    """Raises ConfigError if an engine's weights can't be those of an engine in another process."""
    if not isinstance(engine, SharedEngine):
        engine.close()
        raise ConfigError(
            f"engine.backend: {engine_backend(config)} keeps its weights in one process, and a cluster's workers are "
            "others; name vLLM servers in engine.servers, or let the run start some (cluster.replicas)"
        )
