"""The parent's side of a worker, a process that turns tasks into trajectories and asks its parent for sampled lines.

The messages between the two are defined here. Lines have a channel of their own (`repl_rl.engine.remote`).
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future
from typing import Any, NamedTuple

from repl_rl.engine import Engine, ServesSlots
from repl_rl.engine.environment import cores_beside_engine
from repl_rl.engine.remote import EngineHost, settle
from repl_rl.errors import KernelError
from repl_rl.rollout.batch import OnEnd, RolloutBatch, RolloutService
from repl_rl.rollout.setup import RolloutSetup, packed
from repl_rl.trajectory import Trajectory
from repl_rl.utils.channel import Channel
from repl_rl.utils.processes import start_process
from repl_rl.utils.threads import BackgroundLoop

_PATIENCE_S = 120.0
"""How long a worker may take to start (imports, and a pool's first kernels), and to end."""


class Call(NamedTuple):
    """To the worker: call a method of `Worker` with these arguments."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class CancelCall(NamedTuple):
    """To the worker: nobody waits for this call any more."""

    number: int


class TrajectoryDone(NamedTuple):
    """From the worker: one of the trajectories of a call."""

    call: int
    task: int
    trajectory: Trajectory


class CallDone(NamedTuple):
    """From the worker: what the method has returned or raised."""

    call: int
    result: Any = None
    error: Exception | None = None


class _WaitingCall(NamedTuple):
    """Who waits for a call: what is told of its trajectories, and the future of its result."""

    on_end: OnEnd
    result: asyncio.Future[Any]


class RolloutWorker(RolloutService):
    """A process that makes the rollouts of `setup`. Raises what opening its kernel pool raised there.

    The process ends with `close`, or with this process. If it dies, all calls raise KernelError.
    """

    def __init__(self, engine: Engine, setup: RolloutSetup) -> None:
        super().__init__(setup)
        setup_bytes = packed(setup, setup)
        self._setup = setup
        self._engine = engine
        self._calls: dict[int, _WaitingCall] = {}
        self._call_numbers = itertools.count()
        self._is_gone = False
        self._loop = BackgroundLoop()
        self._channel: Channel | None = None
        self._host: EngineHost | None = None
        ours, theirs = socket.socketpair()
        our_lines, their_lines = socket.socketpair()
        with theirs, their_lines:
            descriptors = [theirs.fileno(), their_lines.fileno()]
            command = [sys.executable, "-m", "repl_rl.rollout.worker.program"]
            command += [str(descriptor) for descriptor in descriptors]
            import_path = os.pathsep.join(filter(None, sys.path))  # the other process has to find the same modules
            self._process = start_process(
                command,
                pass_fds=descriptors,
                env={**os.environ, "PYTHONPATH": import_path},
                start_new_session=True,  # this process handles interrupts from the terminal
            )
        try:
            cores = cores_beside_engine(engine.threads) if isinstance(engine, ServesSlots) else None
            if cores:
                os.sched_setaffinity(self._process.pid, cores)
            self._loop.run(self._open(ours, our_lines, setup_bytes))
        except BaseException:
            ours.close()
            our_lines.close()
            self.close()
            raise

    def begin(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> Future[list[Trajectory]]:
        """As `RolloutService.begin`. Raises ConfigError for tasks that can't be sent."""
        batch_bytes = packed(batch, self._setup)
        return self._loop.submit(self._roll_out(batch_bytes, len(batch.tasks), on_end))

    def kernel_numbers(self) -> dict[str, float]:
        numbers: dict[str, float] = self._loop.run(self._call("kernel_numbers"))
        return numbers

    def close(self) -> None:
        if self._loop.is_closed:
            return
        self._loop.run(self._end())
        self._loop.close()

    async def _open(self, end: socket.socket, lines: socket.socket, setup: bytes) -> None:
        self._channel = await Channel.open(end, self._on_message, self._on_end)
        if isinstance(self._engine, ServesSlots):
            self._engine.serve(lines)
        else:
            self._host = await EngineHost.open(self._engine, lines)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._call("open", setup)
        except TimeoutError as error:
            raise KernelError(f"the process for the rollouts did not come up within {_PATIENCE_S:g} s") from error

    async def _end(self) -> None:
        if self._channel is not None:
            self._channel.send(Call(next(self._call_numbers), "close", ()))
        try:
            await asyncio.to_thread(self._process.wait, _PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._host is not None:
            await self._host.close()
        if self._channel is not None:
            self._channel.close()

    async def _roll_out(self, batch: bytes, count: int, on_end: OnEnd) -> list[Trajectory]:
        trajectories: dict[int, Trajectory] = {}

        def keep(index: int, trajectory: Trajectory) -> None:
            trajectories[index] = trajectory
            on_end(index, trajectory)

        self.loop_share = await self._call("roll_out", self._engine.version, batch, on_end=keep)
        return [trajectories[index] for index in range(count)]

    async def _call(self, method: str, *arguments: Any, on_end: OnEnd = lambda index, trajectory: None) -> Any:
        """What the worker's method returns. Raises what it raises, and KernelError if the worker has ended."""
        if self._is_gone or self._process.poll() is not None:
            raise KernelError(self._how_it_ended())
        assert self._channel is not None
        number = next(self._call_numbers)
        result = asyncio.get_running_loop().create_future()
        self._calls[number] = _WaitingCall(on_end, result)
        self._channel.send(Call(number, method, arguments))
        try:
            return await result
        except asyncio.CancelledError:
            self._channel.send(CancelCall(number))
            raise
        finally:
            del self._calls[number]

    def _on_message(self, message: TrajectoryDone | CallDone) -> None:
        call = self._calls.get(message.call)
        if call is None:  # cancelled
            return
        if isinstance(message, TrajectoryDone):
            call.on_end(message.task, message.trajectory)
        else:
            settle(call.result, message.error or message.result)

    def _on_end(self) -> None:
        """The worker has ended: everything that waits for it raises KernelError."""
        self._is_gone = True
        for call in self._calls.values():
            settle(call.result, KernelError(self._how_it_ended()))

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
