"""The worker's program: `python -m repl_rl.rollout.worker.program CONTROL LINES`. Ends when the other side is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import signal
import socket
import sys
import traceback
from contextlib import AsyncExitStack
from typing import Any

from repl_rl.engine.remote import RemoteEngine
from repl_rl.errors import EngineError, ReplRLError
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup, make_pool
from repl_rl.rollout.worker.handle import AskNumbers, CallDone, CancelCall, Close, Generate, Numbers, TrajectoryDone
from repl_rl.trajectory import Trajectory
from repl_rl.utils.channel import Channel


class Worker:
    """Serves one control channel."""

    def __init__(self) -> None:
        self._is_over = asyncio.Event()
        self._setup: asyncio.Future[RolloutSetup] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def serve(self, end: socket.socket, lines: socket.socket) -> None:
        """Serve until the other side closes or is gone, then end the kernels."""
        self._channel = await Channel.open(end, self._on_message, self._is_over.set)
        self._engine = await RemoteEngine.open(lines)
        over = asyncio.ensure_future(self._is_over.wait())
        either: list[asyncio.Future[Any]] = [self._setup, over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._setup.done():
            return
        async with AsyncExitStack() as stack:
            try:
                setup = self._setup.result()
                self._pool = await stack.enter_async_context(make_pool(setup.kernel, setup.subcalls))
                self._rollout = Rollout(self._engine, setup.kernels(self._pool), setup)
            except Exception as error:  # noqa: BLE001 - raised on the other side
                self._channel.send(Numbers({}, as_sent(error)))
            else:
                self._channel.send(Numbers(self._pool.stats.summary()))
                await over
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        self._engine.close()
        self._channel.close()

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Generate):
            self._calls[message.call] = asyncio.create_task(self._generate(message))
        elif isinstance(message, AskNumbers):
            self._channel.send(Numbers(self._pool.stats.summary()))
        elif isinstance(message, CancelCall):
            if call := self._calls.get(message.call):
                call.cancel()
        elif isinstance(message, Close):
            self._is_over.set()
        else:
            self._setup.set_result(message)

    async def _generate(self, asked: Generate) -> None:
        self._engine.version = asked.version

        def on_end(index: int, trajectory: Trajectory) -> None:
            self._channel.send(TrajectoryDone(asked.call, index, trajectory))

        try:
            _, share = await self._rollout.run(asked.batch, on_end)
            done = CallDone(asked.call, share)
        except Exception as failure:  # noqa: BLE001 - raised on the other side
            done = CallDone(asked.call, error=as_sent(failure))
        finally:
            del self._calls[asked.call]
        self._channel.send(done)


def as_sent(failure: Exception) -> Exception:
    """The exception to send: the failure itself if it pickles, else an EngineError. If it is not a ReplRLError, a note
    holds its traceback in this process."""
    if not isinstance(failure, ReplRLError):
        failure.add_note("In the process that runs the rollouts:\n" + "".join(traceback.format_exception(failure)))
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:  # noqa: BLE001 - an exception class may do anything
        return EngineError(f"a rollout failed: {failure!r}")
    return failure


async def main(control: int, lines: int) -> None:
    """Serve the inherited sockets with these file descriptors."""
    await Worker().serve(socket.socket(fileno=control), socket.socket(fileno=lines))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # A scheduler sends it to all processes, and this one ends with its owner. Sessions would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*map(int, sys.argv[1:])))
