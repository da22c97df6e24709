"""The worker's program: `python -m repl_rl.rollout.worker.program CONTROL LINES`. Ends when the other side is gone."""

import asyncio
import contextlib
import logging
import pickle
import signal
import socket
import sys
import traceback
from contextlib import AsyncExitStack

from repl_rl.engine.remote import RemoteEngine
from repl_rl.errors import EngineError, ExtensionError, ReplRLError
from repl_rl.rollout.batch import OnEnd, RolloutBatch
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup, make_pool
from repl_rl.rollout.worker.handle import Call, CallDone, CancelCall, TrajectoryDone
from repl_rl.trajectory import Trajectory
from repl_rl.utils.channel import Channel


class Worker:
    """Serves one control channel. `open`, `roll_out`, `kernel_numbers` and `close` are called from the other side, and
    given whom to tell of each trajectory."""

    def __init__(self, lines: socket.socket) -> None:
        self._lines = lines
        self._is_over = asyncio.Event()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    async def serve(self, end: socket.socket) -> None:
        """Serve until the other side closes or is gone, then end the kernels."""
        self._channel = await Channel.open(end, self._on_message, self._is_over.set)
        async with self._stack:
            await self._is_over.wait()
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def open(self, packed: bytes, on_end: OnEnd) -> None:
        """Start kernels for the rollouts of a `RolloutSetup`."""
        setup: RolloutSetup = pickle.loads(packed)
        self._engine = await RemoteEngine.open(self._lines)
        self._stack.callback(self._engine.close)
        self._pool = await self._stack.enter_async_context(make_pool(setup.kernel))
        self._rollout = Rollout(self._engine, setup.kernels(self._pool), setup)

    async def roll_out(self, version: int, packed: bytes, on_end: OnEnd) -> float:
        """Make the trajectories of a `RolloutBatch`, under weights that have been updated `version` times. Returns CPU
        time over wall time."""
        self._engine.version = version
        batch: RolloutBatch = pickle.loads(packed)
        _, share = await self._rollout.run(batch, on_end)
        return share

    async def kernel_numbers(self, on_end: OnEnd) -> dict[str, float]:
        """The pool's statistics."""
        return self._pool.stats.summary()

    async def close(self, on_end: OnEnd) -> None:
        """End the kernels, then the process."""
        self._is_over.set()

    def _on_message(self, message: Call | CancelCall) -> None:
        if isinstance(message, Call):
            self._calls[message.number] = asyncio.create_task(self._answer(message))
            return
        task = self._calls.get(message.number)
        if task is not None:  # else it has ended, and its answer is on its way
            task.cancel()

    async def _answer(self, call: Call) -> None:
        def on_end(index: int, trajectory: Trajectory) -> None:
            self._channel.send(TrajectoryDone(call.number, index, trajectory))

        try:
            method = getattr(self, call.method)
            reply = CallDone(call.number, await method(*call.arguments, on_end))
        except Exception as failure:  # noqa: BLE001 - raised on the other side
            reply = CallDone(call.number, error=as_sent(failure))
        finally:
            del self._calls[call.number]
        self._channel.send(reply)


def as_sent(failure: Exception) -> Exception:
    """The exception to send: the failure itself if it pickles, else an EngineError.

    A note holds the traceback in this process, unless it is a ReplRLError of our own: the exception of a user's code
    does not travel with the ExtensionError that it led to.
    """
    if not isinstance(failure, ReplRLError) or isinstance(failure, ExtensionError):
        failure.add_note("In the process that runs the rollouts:\n" + "".join(traceback.format_exception(failure)))
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:  # noqa: BLE001 - an exception class may do anything
        return EngineError(f"a rollout failed: {failure!r}")
    return failure


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # A scheduler sends it to all processes, and this one ends with its owner. Sessions would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    control, lines = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Worker(lines).serve(control))
