"""Requests to a kernel and what comes back, by the Jupyter messaging protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient

_SUBSCRIBED_S = 0.2
"""How long the first messages may take; a kernel that is up before our subscription has reached it sends none."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Exchange:
    reply: asyncio.Future[dict[str, Any]]
    idle: asyncio.Future[None]


class Wire:
    """The shell and the iopub channel of one kernel. Belongs to one event loop.

    `show` is called with the type and content of each iopub message that answers a request of ours, an earlier one
    included: background threads. What other clients have run is theirs. Without `show` there is no iopub channel.
    """

    def __init__(self, client: AsyncKernelClient, show: Callable[[str, Mapping[str, Any]], None] | None) -> None:
        self._client = client
        self._show = show
        self._exchanges: dict[str, _Exchange] = {}
        client.start_channels(iopub=show is not None, stdin=False, hb=False, control=False)
        self._tasks = [asyncio.create_task(self._receive(client.shell_channel, self._on_reply))]
        if show is not None:
            self._tasks.append(asyncio.create_task(self._receive(client.iopub_channel, self._on_message)))

    async def greet(self) -> dict[str, Any]:
        """The kernel_info of a kernel that answers and, if there is an iopub channel, is heard."""
        while True:
            exchange, content = await self._exchange("kernel_info_request", {}, _SUBSCRIBED_S)
            if self._show is None or exchange.idle.done():
                return content

    async def request(self, msg_type: str, content: dict[str, Any], idle_s: float) -> dict[str, Any]:
        """The content of the reply, once all messages before it are shown; for those it waits `idle_s` at most.

        A request that the kernel drops because one of another client failed is sent again.
        """
        while True:
            _, reply = await self._exchange(msg_type, content, idle_s)
            if reply.get("status") not in ("aborted", "abort"):
                return reply
            await asyncio.sleep(_SUBSCRIBED_S)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.stop_channels()

    async def _exchange(
        self, msg_type: str, content: dict[str, Any], idle_s: float
    ) -> tuple[_Exchange, dict[str, Any]]:
        loop = asyncio.get_running_loop()
        message = self._client.session.msg(msg_type, content)
        exchange = _Exchange(loop.create_future(), loop.create_future())
        self._exchanges[message["header"]["msg_id"]] = exchange
        try:
            self._client.shell_channel.send(message)
            reply = await exchange.reply
            if self._show is not None:
                await asyncio.wait({exchange.idle}, timeout=idle_s)
            return exchange, reply
        finally:
            del self._exchanges[message["header"]["msg_id"]]

    async def _receive(self, channel: Any, take_in: Callable[[dict[str, Any]], None]) -> None:
        while True:
            try:
                take_in(await channel.get_msg())
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                _log.debug("a kernel sent what is no Jupyter message: %r", error)
            await asyncio.sleep(0)  # a flood of messages is no reason to let everybody else wait

    def _on_reply(self, message: dict[str, Any]) -> None:
        exchange = self._exchanges.get(message["parent_header"].get("msg_id"))
        if exchange is not None and not exchange.reply.done():
            exchange.reply.set_result(dict(message["content"]))

    def _on_message(self, message: dict[str, Any]) -> None:
        parent, content = message["parent_header"], message["content"]
        if message["msg_type"] == "status":
            exchange = self._exchanges.get(parent.get("msg_id"))
            if content["execution_state"] == "idle" and exchange is not None and not exchange.idle.done():
                exchange.idle.set_result(None)
        elif self._show is not None and parent.get("session") == self._client.session.session:
            self._show(message["msg_type"], content)
