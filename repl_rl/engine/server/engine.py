"""vLLM servers as an `Engine`: one HTTP request per line, with all ids so far.

A trajectory stays on the server that has its prefix in the cache. If that server fails, the line is asked for again
from its ids: there first, then on another one. An answer enters a trajectory once, whole, or not at all. All HTTP runs
on an event loop of the engine's own, so the engine can be used from any loop and closed from any thread.

Not covered: several trainers on the same servers, each with weights of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from repl_rl.config import EngineConfig, SamplingConfig
from repl_rl.engine.base import SampledLine, Slot
from repl_rl.engine.server.client import Patience, ServerClient, ServerUnreachable, base_url, open_session
from repl_rl.engine.server.fleet import Fleet, Server
from repl_rl.engine.server.handshake import WORKER_EXTENSION, Wanted, agree, check, inspect, serve_command
from repl_rl.engine.server.sync import WeightSync
from repl_rl.engine.server.weights import Weights, WeightsFolder
from repl_rl.engine.server.wire import line_request, read_answer
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.background import BackgroundLoop

if TYPE_CHECKING:
    import aiohttp
    import torch

_TRIES_PER_SERVER = 2
_LONGEST_BACKOFF_S = 5.0


class VLLMServerEngine:
    """An `Engine` over the servers in `config.servers`.

    Raises ConfigError, ModelError or EngineError if one of them is down or is not what it has to be. `names` are those
    that the model goes by.
    """

    def __init__(
        self,
        names: Sequence[str],
        vocabulary: Vocabulary,
        dtype: str,
        config: EngineConfig,
        patience: Patience | None = None,
    ) -> None:
        self._wanted = Wanted(tuple(names), dtype, config.context_tokens, vocabulary)
        self._patience = patience or Patience()
        self._stop_ids = sorted(vocabulary.stop_ids | vocabulary.eos_ids)
        self._folder = WeightsFolder(config.weights_folder)
        self._sync = WeightSync(self._folder)
        self._closed = False
        self._session: aiohttp.ClientSession | None = None
        self._loop = BackgroundLoop()
        try:
            self._loop.run(self._open(config.servers, config.places))
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def weights(self) -> Weights:
        """What the servers hold; for `adopt` in another process."""
        return self._sync.current

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[Slot]:
        """Raises ConfigError for a trajectory that is longer than the engine's context. Servers queue by themselves."""
        if tokens > self._wanted.context_tokens:
            raise ConfigError(
                f"a trajectory of {tokens} tokens does not fit into engine.context_tokens "
                f"{self._wanted.context_tokens}; raise it, or lower budget.tokens"
            )
        slot = _ServerSlot(self)
        try:
            yield slot
        finally:
            if not self._closed:
                self._loop.submit(slot.leave())

    def require_weight_updates(self) -> None:
        """Raises ConfigError if the servers can't be given new weights."""
        if self._facts.worker_extension != WORKER_EXTENSION:
            raise ConfigError(
                f"{self._fleet.servers[0].url} can't be given new weights: it has "
                f"{self._facts.worker_extension or 'no worker extension, or no development mode'}; start it with\n"
                f"  {serve_command(self._wanted)}"
            )

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Give all servers new weights, under the checkpoint's names. Lines under way are finished first.

        A server that can't be reached is left out until it has them. Raises EngineError, with all servers at the old
        weights, if one refuses them, and if none is left.
        """
        self._raise_if_closed()
        self.require_weight_updates()
        weights = self._folder.write(self.version + 1, named_weights)
        self._loop.run(self._sync.give_all(self._fleet, weights))

    def adopt(self, weights: Weights) -> None:
        """Go on with weights that another process of the same training has given the servers."""
        self._raise_if_closed()
        self._loop.run(self._sync.adopt(weights))

    def close(self) -> None:
        """Let go of the servers, which run on. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._loop.run(self._end())
        self._loop.close()
        self._folder.close()

    async def sample(
        self, slot: _ServerSlot, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig
    ) -> SampledLine:
        """A line for a slot, on the caller's loop. Raises EngineError."""
        self._raise_if_closed()
        if max_tokens < 1 or not ids or len(ids) + max_tokens > self._wanted.context_tokens:
            raise ConfigError(
                f"a line of at most {max_tokens} tokens behind {len(ids)} does not fit: it needs one token or more, "
                f"and engine.context_tokens is {self._wanted.context_tokens}"
            )
        future = self._loop.submit(self._sample(slot, list(ids), max_tokens, sampling))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise EngineError("the engine was closed while a line was being sampled") from None
            raise

    async def _open(self, urls: Sequence[str], places: int) -> None:
        session = self._session = open_session(self._patience)
        clients = [ServerClient(url, session, self._patience) for url in dict.fromkeys(map(base_url, urls))]
        self._fleet = Fleet(clients, places, self._patience, self._revive)
        try:
            facts = await asyncio.gather(*(inspect(client, self._wanted) for client in clients))
        except ServerUnreachable as error:
            raise EngineError(
                f"{error}\nEvery server in engine.servers has to be up at the start; start one with\n"
                f"  {serve_command(self._wanted)}"
            ) from error
        self._facts = facts[0]
        named = list(zip((client.url for client in clients), facts, strict=True))
        for url, own in named:
            check(url, own, self._wanted)
        agree(named)
        await asyncio.gather(*(self._fleet.check(server) for server in self._fleet.servers))
        if len(self._fleet.up) < len(clients):
            raise EngineError(f"a server failed while it was being checked:\n{self._fleet.troubles()}")
        self._watching = asyncio.create_task(self._fleet.watch())

    async def _revive(self, client: ServerClient) -> None:
        """Make a server that answers fit for use: the right model, and the current weights."""
        facts = await inspect(client, self._wanted)
        check(client.url, facts, self._wanted)
        agree([(self._fleet.servers[0].url, self._facts), (client.url, facts)])
        await self._sync.catch_up(client, facts.label)

    async def _sample(
        self, slot: _ServerSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig
    ) -> SampledLine:
        troubles: list[str] = []
        for tries in range(_TRIES_PER_SERVER * (len(self._fleet.servers) + 1)):
            if tries:
                await asyncio.sleep(min(self._patience.backoff_s * 2 ** (tries - 1), _LONGEST_BACKOFF_S))
            server = await self._place(slot, move=tries > 0 and tries % _TRIES_PER_SERVER == 0)
            try:
                async with server.places, self._sync.gate.passing():
                    return await self._ask(server, ids, max_tokens, sampling)
            except ServerUnreachable as error:
                troubles.append(str(error))
                await self._fleet.check(server)
        raise EngineError(f"no server gave a line after {len(troubles)} tries:\n  " + "\n  ".join(troubles))

    async def _place(self, slot: _ServerSlot, move: bool) -> Server:
        """The server of a slot; another one if that is down or should be left."""
        server = slot.server
        if server is None or not server.up or move:
            slot.take(await self._fleet.wait_for_one(avoid=() if server is None else (server,)))
        assert slot.server is not None
        return slot.server

    async def _ask(self, server: Server, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        weights = self.weights
        body = line_request(ids, max_tokens, sampling, self._stop_ids, weights.label)
        answer = read_answer(server.url, await _unless_gone(server, body))
        if answer.labels != {weights.label}:
            trouble = f"{server.url} sampled with weights {sorted(answer.labels)}, and they should be {weights.label!r}"
            await self._fleet.mark_down(server, trouble)
            raise ServerUnreachable(trouble)
        return answer.to_line(self._wanted.vocabulary)

    async def _end(self) -> None:
        """Requests under way are aborted on their servers: their connections close."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")


class _ServerSlot:
    """A trajectory's place: the server that holds its prefix."""

    def __init__(self, engine: VLLMServerEngine) -> None:
        self._engine = engine
        self.server: Server | None = None

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        return await self._engine.sample(self, ids, max_tokens, sampling)

    def take(self, server: Server) -> None:
        """On the engine's loop, as `leave`."""
        self._leave()
        server.slots += 1
        self.server = server

    async def leave(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self.server is not None:
            self.server.slots -= 1
            self.server = None


async def _unless_gone(server: Server, body: dict[str, object]) -> object:
    """The server's answer. Raises ServerUnreachable as soon as the server is known to be down."""
    asking = asyncio.create_task(server.client.generate(body))
    going = asyncio.create_task(server.gone.wait())
    try:
        await asyncio.wait({asking, going}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise ServerUnreachable(f"{server.url} went down while it sampled a line: {server.trouble}")
    finally:
        asking.cancel()
        going.cancel()
