"""The servers of an engine: which can be used, which has the fewest trajectories, and which weights they hold.

A server is up or down. It goes down when it fails its health checks. It comes up again when it answers, still serves
what it has to, and holds the current weights. If servers can move, a server that is down is looked for first.

New weights are safetensors files in a folder that trainer and servers share. All servers switch to them together or not
at all: a server that can't be reached is left out until it has them; a server that refuses them stops the update, and
all return to the previous weights. If servers and trainer have GPUs, weights may be sent to all at once instead
(`repl_rl.engine.server.transfer`); nobody has the previous ones then, and a failed transfer ends the run. Each set of
weights has a label, and a server reports the label with every token that it samples. So a server that was restarted
with its old checkpoint, or updated by somebody else, is noticed at its next answer.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter

from repl_rl.engine.server.client import ServerClient, ServerFacts, ServerSilent, ServerTimeouts, ServerUnreachable
from repl_rl.engine.server.weights import Weights, begin, bring_to, finish
from repl_rl.errors import EngineError, ReplRLError

logger = logging.getLogger(__name__)

_SILENCES = 3
"""A server is marked down after so many unanswered health checks in a row, or one refused connection."""
_GIVE_TRIES = 3
"""How often weights are given, if all servers go away meanwhile."""

Locate = Callable[[str], Awaitable[str]]
"""Takes the URL that a server began with, and returns the one that it has now. Raises ServerUnreachable if there is
none."""


@dataclass(slots=True, eq=False)
class Server:
    client: ServerClient
    requests: asyncio.Semaphore
    """Bounds the requests that it is sent at a time: those that it would hold in a batch. The others wait here, where
    no time limit runs."""
    began_at: str
    """The URL that it began with."""
    up: bool = False
    trouble: ReplRLError | None = None
    """Why it is down, or why it last was."""
    slots: Counter[int] = field(default_factory=Counter)
    """The number of trajectories at each of its engines, by rank."""
    ranks: int = 1
    """How many engines share its work, each with a cache of its own (`vllm serve --data-parallel-size`)."""
    waits: bool = False
    """It answers and has other weights than the others, which only the next transfer can change."""
    silences: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is down: requests that wait for it give up."""
    mending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is checked or given weights."""

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def load(self) -> float:
        """Trajectories per engine."""
        return self.slots.total() / self.ranks

    @property
    def free_rank(self) -> int:
        """The engine with the fewest trajectories."""
        return min(range(self.ranks), key=self.slots.__getitem__)


class Fleet:
    """Servers that hold the same weights; `weights` is what every answer has to be sampled with.

    `most_requests` is how many one server is sent at a time if it does not say how many it takes. `inspect` is called
    on a server that answers again; it raises a ReplRLError if the server can't be used. Without `locate`, servers stay
    at their URLs.
    """

    def __init__(
        self,
        clients: Sequence[ServerClient],
        most_requests: int,
        timeouts: ServerTimeouts,
        inspect: Callable[[ServerClient], Awaitable[ServerFacts]],
        weights: Weights,
        follows: bool = False,
        locate: Locate | None = None,
    ) -> None:
        """A fleet that `follows` gives servers no weights: another process does, and later ones are used as well."""
        self.servers = [Server(client, asyncio.Semaphore(most_requests), client.url) for client in clients]
        self.weights = weights
        self._most_requests = most_requests
        self._follows = follows
        self._locate = locate
        self._timeouts = timeouts
        self._inspect = inspect
        self._requests = 0
        self._is_shut = False
        self._change = asyncio.Condition()
        """Notified when a server, the number of requests under way, or `_is_shut` changes."""

    @property
    def up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    async def wait_for_one(self, avoid: Server | None = None) -> Server:
        """Wait for a server that is up. Of several, returns the one with the fewest trajectories.

        `avoid` is only returned if there is no other. Raises EngineError if all stay down for `no_server_s`.
        """
        try:
            async with asyncio.timeout(self._timeouts.no_server_s), self._change:
                await self._change.wait_for(lambda: bool(self.up))
                candidates = [server for server in self.up if server is not avoid] or self.up
                return min(candidates, key=attrgetter("load"))
        except TimeoutError as error:
            raise EngineError(
                f"no vLLM server came back within {self._timeouts.no_server_s:g} s:\n{self.troubles()}"
            ) from error

    def troubles(self) -> str:
        """One line per server, with its last failure."""
        return "\n".join(f"  {server.url}: {server.trouble}" for server in self.servers)

    async def watch(self, server: Server) -> None:
        """Check a server, forever."""
        while True:
            await asyncio.sleep(self._timeouts.between_checks_s)
            try:
                await self.check(server)
            except Exception:  # the next check may find it well again
                logger.exception("the check of %s failed", server.url)

    async def check(self, server: Server) -> None:
        """Check a server now, and mark it up or down. One that comes up is given the current weights first.

        If it is being checked or given weights already, this only waits for that.
        """
        if server.mending.locked():
            async with server.mending:
                return
        async with server.mending:
            try:
                if not server.up:
                    await self.find(server)
                await server.client.get("/health")
                if not server.up:  # a line may have found it down during the health check
                    await self._admit(server)
            except ReplRLError as error:
                server.silences += 1
                may_be_busy = isinstance(error, ServerSilent) and server.silences < _SILENCES
                if not server.up or not may_be_busy:
                    await self.mark_down(server, error)
            else:
                server.silences = 0
                if not server.up:
                    if server.trouble is not None:
                        logger.warning("%s is back", server.url)
                    await self._mark_up(server)

    async def _admit(self, server: Server) -> None:
        """Inspect a server that answers again, and give it the current weights if it has others.

        Raises ServerUnreachable if it has others and this fleet can't give it weights, or what `inspect` raises.
        """
        facts = await self._inspect(server.client)
        server.ranks = facts.ranks
        server.requests = asyncio.Semaphore(facts.most_requests or self._most_requests)
        if facts.label is None or self.usable(facts.label, self.weights) is not None:
            return  # a server that tells no label shows its weights with its first line
        server.waits = self.weights.is_sent and not self._follows
        if server.waits:
            raise ServerUnreachable(f"{server.url} has other weights, until the next ones are sent")
        if self._follows:
            raise ServerUnreachable(f"{server.url} has other weights, until the trainer has given it its own")
        await self._bring(server, self.weights)

    async def find(self, server: Server) -> None:
        """Turn to the URL that a server has now. Raises ServerUnreachable if it has none."""
        if self._locate is None:
            return
        url = await self._locate(server.began_at)
        if url != server.url:
            logger.warning("%s is gone, and %s takes its place", server.url, url)
            server.client = server.client.at(url)

    async def mark_down(self, server: Server, trouble: ReplRLError) -> None:
        if server.up:
            logger.warning("%s is down, its trajectories go on elsewhere: %s", server.url, trouble)
        server.up = False
        server.trouble = trouble
        server.gone.set()
        await self._notify()

    async def _mark_up(self, server: Server) -> None:
        server.up = True
        server.waits = False
        server.gone.clear()
        await self._notify()

    async def _notify(self) -> None:
        async with self._change:
            self._change.notify_all()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wraps each request. It waits while new weights are loaded; loading waits until no request is under way."""
        async with self._change:
            await self._change.wait_for(lambda: not self._is_shut)
            self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            await self._notify()

    @asynccontextmanager
    async def _without_requests(self) -> AsyncIterator[None]:
        """Hold back new requests, and wait until all others have ended. One caller at a time."""
        async with self._change:
            await self._change.wait_for(lambda: not self._is_shut)
            self._is_shut = True
        try:
            async with self._change:
                await self._change.wait_for(lambda: self._requests == 0)
            yield
        finally:
            self._is_shut = False
            await self._notify()

    async def give_all(self, weights: Weights) -> None:
        """Waits for a server if none is up. Raises EngineError, with all servers back at the previous weights, if a
        server refuses or if none takes them."""
        async with self._without_requests():
            try:
                for _ in range(_GIVE_TRIES):
                    await self.wait_for_one()
                    servers = self.up
                    errors = await self._give_each(servers, weights)
                    for error in errors:
                        if error is not None and not isinstance(error, ServerUnreachable):
                            await self._give_each(servers, self.weights)
                            raise EngineError(str(error)) from error
                    if None in errors:
                        break
                else:  # all have gone away, each time
                    raise EngineError(f"no server took new weights:\n{self.troubles()}")
            except EngineError:
                weights.remove_files()
                raise
            self.weights.remove_files()
            self.weights = weights

    async def give_together(self, weights: Weights, send: Callable[[list[ServerClient]], None]) -> None:
        """As `give_all`, by `send`, which is called in a thread with the servers that can take part.

        Raises EngineError if it fails; no server is up then, because none has weights that are known to be whole.
        """
        async with self._without_requests(), AsyncExitStack() as stack:
            for server in self.servers:
                await stack.enter_async_context(server.mending)
            receivers = [server for server in self.servers if server.up or server.waits]
            clients = [server.client for server in receivers]
            try:
                await asyncio.gather(*(begin(client, weights) for client in clients))
                await asyncio.to_thread(send, clients)
                await asyncio.gather(*(finish(client, weights) for client in clients))
            except ReplRLError as error:
                for server in receivers:
                    await self.mark_down(server, error)
                raise
            finally:
                await asyncio.gather(*(client.post("/resume") for client in clients), return_exceptions=True)
            self.weights.remove_files()
            self.weights = weights
            for server in receivers:
                await self._mark_up(server)

    async def adopt(self, weights: Weights) -> None:
        """Use the weights that another process has given the servers."""
        if self._follows:
            if weights.version > self.weights.version:
                self.weights = weights
            return
        async with self._without_requests():
            self.weights = weights

    def usable(self, label: str, expected: Weights) -> Weights | None:
        """The weights with this label, if they are the expected ones, or later ones of the process that is followed.

        Later ones are `weights` from then on.
        """
        if label == expected.label:
            return expected
        if not self._follows:
            return None
        later = expected.later(label)
        if later is not None and later.version > self.weights.version:
            self.weights = later
        return later

    async def _give_each(self, servers: Sequence[Server], weights: Weights) -> list[BaseException | None]:
        """Give servers weights at the same time; returns what went wrong with each, or None."""
        calls = [self._give(server, weights) for server in servers]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    async def _give(self, server: Server, weights: Weights) -> ReplRLError | None:
        """What went wrong, if anything; the server is down then."""
        async with server.mending:
            try:
                await self._bring(server, weights)
            except ReplRLError as error:
                await self.mark_down(server, error)
                return error
        return None

    async def _bring(self, server: Server, weights: Weights) -> None:
        """`bring_to`, which may take long and is given up once the server no longer answers health checks."""
        loading = asyncio.create_task(bring_to(server.client, weights))
        silences = 0
        try:
            while True:
                await asyncio.wait({loading}, timeout=self._timeouts.between_checks_s)
                if loading.done():
                    loading.result()
                    return
                try:
                    await server.client.get("/health")
                    silences = 0
                except ServerSilent:
                    silences += 1
                    if silences == _SILENCES:
                        raise
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
