"""The parent's side of a worker, a process that turns tasks into trajectories and asks its parent for sampled lines.

The messages between the two are defined here. Lines have a channel of their own (`repl_rl.engine.remote`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import pickletools
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future
from typing import Any, NamedTuple

from repl_rl.engine import Engine, ServesSlots
from repl_rl.engine.environment import cores_beside_engine
from repl_rl.engine.remote import EngineHost, settle
from repl_rl.errors import ConfigError, KernelError
from repl_rl.rollout.batch import OnEnd, RolloutBatch, RolloutService
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Trajectory
from repl_rl.utils.channel import Channel
from repl_rl.utils.threads import BackgroundLoop

_PATIENCE_S = 120.0
"""How long a worker may take to start (imports, and a pool's first kernels), and to end."""


class Generate(NamedTuple):
    """To the worker: make these trajectories, under weights that have been updated `version` times."""

    call: int
    version: int
    batch: RolloutBatch


class TrajectoryDone(NamedTuple):
    """From the worker: one of the trajectories of a call."""

    call: int
    task: int
    trajectory: Trajectory


class CallDone(NamedTuple):
    """From the worker: the call is over, with all trajectories or an error. `loop_share` is CPU time over wall time."""

    call: int
    loop_share: float = 0.0
    error: Exception | None = None


class CancelCall(NamedTuple):
    """To the worker: stop this call; its remaining trajectories are not wanted."""

    call: int


class AskNumbers(NamedTuple):
    """To the worker: send the pool's statistics."""


class Numbers(NamedTuple):
    """From the worker: the pool's statistics, on request and when the pool has opened; or why it can't be opened."""

    kernels: dict[str, float]
    error: Exception | None = None


class Close(NamedTuple):
    """To the worker: end the kernels, then exit."""


class _Call:
    """A call in progress: its trajectories by index, and `loop_share` once all have come."""

    def __init__(self, on_end: OnEnd) -> None:
        self.on_end = on_end
        self.ended: dict[int, Trajectory] = {}
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()


class RolloutWorker(RolloutService):
    """A process that makes the rollouts of `setup`. Raises what opening its kernel pool raised there.

    The process ends with `close`, or with this process. If it dies, all calls raise KernelError.
    """

    def __init__(self, engine: Engine, setup: RolloutSetup) -> None:
        super().__init__(setup)
        _refuse_unsendable(setup)
        self._engine = engine
        self._numbers: asyncio.Future[dict[str, float]] | None = None
        self._calls: dict[int, _Call] = {}
        self._is_gone = False
        self._call_numbers = itertools.count()
        self._loop = BackgroundLoop()
        self._host: EngineHost | None = None
        ours, theirs = socket.socketpair()
        our_lines, their_lines = socket.socketpair()
        with theirs, their_lines:
            descriptors = [theirs.fileno(), their_lines.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "repl_rl.rollout.worker.program", *map(str, descriptors)],
                pass_fds=descriptors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # this process handles interrupts from the terminal
            )
        try:
            if isinstance(engine, ServesSlots) and (cores := cores_beside_engine(engine.threads)):
                os.sched_setaffinity(self._process.pid, cores)
            self._loop.run(self._open(ours, our_lines, setup))
        except BaseException:
            ours.close()
            our_lines.close()
            self.close()
            raise

    def begin(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> Future[list[Trajectory]]:
        """As `RolloutService.begin`. Raises ConfigError for tasks that can't be sent."""
        _refuse_unsendable(batch.tasks)
        return self._loop.submit(self._rolled(batch, on_end))

    def kernel_numbers(self) -> dict[str, float]:
        return self._loop.run(self._ask_numbers(AskNumbers()))

    def close(self) -> None:
        if self._loop.is_closed:
            return
        self._loop.run(self._ask_to_close())
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._loop.run(self._close())
        self._loop.close()

    async def _open(self, end: socket.socket, lines: socket.socket, setup: RolloutSetup) -> None:
        self._channel = await Channel.open(end, self._on_message, self._on_end)
        if isinstance(self._engine, ServesSlots):
            self._engine.serve(lines)
        else:
            self._host = EngineHost(self._engine)
            await self._host.open(lines)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._ask_numbers(setup)
        except TimeoutError as error:
            raise KernelError(f"the process for the rollouts did not come up within {_PATIENCE_S:g} s") from error

    async def _rolled(self, batch: RolloutBatch, on_end: OnEnd) -> list[Trajectory]:
        self._refuse_if_ended()
        number = next(self._call_numbers)
        call = self._calls[number] = _Call(on_end)
        self._channel.send(Generate(number, self._engine.version, batch))
        try:
            self.loop_share = await call.done
        except asyncio.CancelledError:
            self._channel.send(CancelCall(number))
            raise
        finally:
            del self._calls[number]
        return [call.ended[index] for index in range(len(batch.tasks))]

    async def _ask_numbers(self, message: object) -> dict[str, float]:
        self._refuse_if_ended()
        if self._numbers is None or self._numbers.done():
            self._numbers = asyncio.get_running_loop().create_future()
            self._channel.send(message)
        return await asyncio.shield(self._numbers)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, TrajectoryDone):
            if call := self._calls.get(message.call):
                call.ended[message.task] = message.trajectory
                call.on_end(message.task, message.trajectory)
        elif isinstance(message, CallDone):
            if call := self._calls.get(message.call):
                settle(call.done, message.error or message.loop_share)
        else:
            assert isinstance(message, Numbers)
            settle(self._numbers, message.error or message.kernels)

    def _on_end(self) -> None:
        """The worker has ended: everything that waits for it raises KernelError."""
        self._is_gone = True
        for waiting in (self._numbers, *(call.done for call in self._calls.values())):
            settle(waiting, KernelError(self._how_it_ended()))

    def _refuse_if_ended(self) -> None:
        if self._is_gone or self._process.poll() is not None:
            raise KernelError(self._how_it_ended())

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S)  # its sockets close a moment before the process ends
        code = self._process.returncode
        if code is None or code >= 0:
            return (
                f"the process that runs the rollouts has ended (exit status {code}), and its kernels with it; what it "
                "printed before says why"
            )
        return (
            f"the process that runs the rollouts was killed ({signal.strsignal(-code)}), and its kernels with it. "
            "If nobody did that, the machine ran out of memory: `dmesg` says so, and a smaller kernel.size, or "
            "kernel.budget_mb, leaves more of it"
        )

    async def _ask_to_close(self) -> None:
        if hasattr(self, "_channel"):
            self._channel.send(Close())
            self._channel.flush()

    async def _close(self) -> None:
        if self._host is not None:
            await self._host.close()
        if hasattr(self, "_channel"):
            self._channel.close()


def _refuse_unsendable(thing: object) -> None:
    """Raises ConfigError for what can't be pickled, or refers to `__main__`, which is another module in the worker."""
    cause, why = None, ""
    try:
        pickled = pickle.dumps(thing)
        if b"__main__" in pickled and any(text == "__main__" for _, text, _ in pickletools.genops(pickled)):
            why = "it refers to the script that was started (__main__)"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        cause, why = error, str(error) or repr(error)
    if why:
        raise ConfigError(
            f"this can't be sent to the process that runs the rollouts: {why}; define it at the top level of a module "
            "of its own, or run the rollouts in this process with apart=False"
        ) from cause
