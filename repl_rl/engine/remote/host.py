"""Any engine's side of slots in another process: a task per slot, on an event loop of this one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import Engine, Slot
from repl_rl.engine.remote.messages import AskLine, CancelLine, LeaveSlot, Refused, Sampled, SlotTaken, TakeSlot
from repl_rl.errors import EngineError, ReplRLError
from repl_rl.utils.channel import Channel


class EngineHost:
    """Serves each slot by a task of its own. Belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._channel: Channel | None = None
        self._slots: dict[int, _HostedSlot] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, end: socket.socket) -> None:
        """Serve the process at the other end, as long as it is there."""
        self._channel = await Channel.open(end, self._on_message, self._give_back)

    def _on_message(self, message: TakeSlot | AskLine | CancelLine | LeaveSlot) -> None:
        if isinstance(message, TakeSlot):
            assert self._channel is not None
            self._slots[message.slot] = slot = _HostedSlot(message, self._engine, self._channel.send)
            self._tasks.add(slot.task)
            slot.task.add_done_callback(self._tasks.discard)
        elif isinstance(message, LeaveSlot):
            self._slots.pop(message.slot).task.cancel()
        elif isinstance(message, AskLine):
            self._slots[message.slot].ask(message)
        else:
            self._slots[message.slot].cancel_line(message.number)

    async def close(self) -> None:
        """Give all slots back, and wait until they are."""
        tasks = list(self._tasks)
        self._give_back()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()

    def _give_back(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class _HostedSlot:
    def __init__(self, wanted: TakeSlot, engine: Engine, send: Callable[[Any], None]) -> None:
        self._wanted = wanted
        self._engine = engine
        self._send = send
        self._ids: list[int] = []
        self._sampling: SamplingConfig | None = None
        self._asked: AskLine | None = None
        self._has_come = asyncio.Event()
        self._under_way: int | None = None
        """The number of the line that is being sampled."""
        self._is_unwanted = False
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def ask(self, message: AskLine) -> None:
        self._sampling = message.sampling or self._sampling  # told once, be the line cancelled or not
        self._asked = message
        self._has_come.set()

    def cancel_line(self, number: int) -> None:
        if self._under_way == number:
            self._is_unwanted = True
            self.task.cancel()
        elif self._asked is not None and self._asked.number == number:
            self._asked = None

    async def _serve(self) -> None:
        try:
            async with self._engine.slot(self._wanted.tokens) as slot:
                self._send(SlotTaken(self._wanted.slot))
                while True:
                    await self._has_come.wait()
                    self._has_come.clear()
                    asked, self._asked = self._asked, None
                    if asked is not None:
                        await self._answer(slot, asked)
        except Exception as error:  # noqa: BLE001 - the worker has to hear of it, whatever it is
            self._send(Refused(self._wanted.slot, 0, _as_ours(error)))

    async def _answer(self, slot: Slot, asked: AskLine) -> None:
        del self._ids[asked.keep :]
        self._ids.extend(asked.ids)
        assert self._sampling is not None
        self._under_way = asked.number
        try:
            line = await slot.sample_line(self._ids, asked.max_tokens, self._sampling)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_unwanted or task is None or task.uncancel():
                raise
        except Exception as error:  # noqa: BLE001 - as above
            self._send(Refused(self._wanted.slot, asked.number, _as_ours(error)))
        else:
            self._ids.extend(line.ids)
            self._send(Sampled(self._wanted.slot, asked.number, line))
        finally:
            self._under_way, self._is_unwanted = None, False


def _as_ours(error: Exception) -> ReplRLError:
    return error if isinstance(error, ReplRLError) else EngineError(f"the engine failed: {error!r}")
