"""The servers of an engine: which of them can be used, and which of those has the fewest trajectories.

A server is up or down. It goes down when it does not answer its health check, and comes up again when it does, still is
what it has to be, and holds the current weights. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from repl_rl.engine.server.client import Patience, ServerClient, ServerSilent
from repl_rl.errors import EngineError, ReplRLError

logger = logging.getLogger(__name__)

_SILENCES = 3
"""Health checks in a row that a busy server may leave unanswered. A connection that is refused counts at once."""


@dataclass(slots=True, eq=False)
class Server:
    client: ServerClient
    places: asyncio.Semaphore
    """Requests that it is sent at a time."""
    up: bool = False
    trouble: str = "not asked yet"
    """Why it is down, or was last."""
    slots: int = 0
    """Trajectories that stay here."""
    silences: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is down: requests that wait for it give up."""
    mending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is checked or given weights."""

    @property
    def url(self) -> str:
        return self.client.url


class Fleet:
    """`places` bounds the requests at one server. `revive` has to make a server that answers again fit for use, or
    raise a ReplRLError."""

    def __init__(
        self,
        clients: Sequence[ServerClient],
        places: int,
        patience: Patience,
        revive: Callable[[ServerClient], Awaitable[None]],
    ) -> None:
        self.servers = [Server(client, asyncio.Semaphore(places)) for client in clients]
        self._patience = patience
        self._revive = revive
        self._change = asyncio.Condition()

    @property
    def up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    def least_loaded(self, avoid: Collection[Server] = ()) -> Server | None:
        """Of the servers that are up; one to avoid only if there is no other."""
        up = self.up
        rest = [server for server in up if server not in avoid] or up
        return min(rest, key=lambda server: server.slots, default=None)

    async def wait_for_one(self, avoid: Collection[Server] = ()) -> Server:
        """A server that is up. Raises EngineError if all stay down for longer than patience lasts."""
        try:
            async with asyncio.timeout(self._patience.no_server_s), self._change:
                await self._change.wait_for(lambda: bool(self.up))
        except TimeoutError as error:
            raise EngineError(
                f"no vLLM server came back within {self._patience.no_server_s:g} s:\n{self.troubles()}"
            ) from error
        server = self.least_loaded(avoid)
        return server if server is not None else await self.wait_for_one(avoid)

    def troubles(self) -> str:
        """One line per server: what it last suffered from."""
        return "\n".join(f"  {server.url}: {server.trouble}" for server in self.servers)

    async def watch(self) -> None:
        """Check every server for ever; a slow one holds up no other."""
        async with asyncio.TaskGroup() as group:
            for server in self.servers:
                group.create_task(self._watch(server))

    async def check(self, server: Server) -> None:
        """Ask a server now, and mark it up or down."""
        async with server.mending:
            try:
                await server.client.get("/health")
                if not server.up:
                    await self._revive(server.client)
            except ServerSilent as error:
                server.silences += 1
                if server.silences >= _SILENCES:
                    await self.mark_down(server, str(error))
            except ReplRLError as error:
                await self.mark_down(server, str(error))
            else:
                await self._mark_up(server)

    async def mark_down(self, server: Server, trouble: str) -> None:
        if server.up:
            logger.warning("%s is down, its trajectories go on elsewhere: %s", server.url, trouble)
        server.up, server.trouble = False, trouble
        server.gone.set()
        async with self._change:
            self._change.notify_all()

    async def _mark_up(self, server: Server) -> None:
        server.silences = 0
        if server.up:
            return
        if server.gone.is_set():
            logger.warning("%s is back", server.url)
        server.up = True
        server.gone.clear()
        async with self._change:
            self._change.notify_all()

    async def _watch(self, server: Server) -> None:
        while True:
            await asyncio.sleep(self._patience.between_checks_s)
            await self.check(server)
