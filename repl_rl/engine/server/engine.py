"""vLLM servers as an `Engine`: one HTTP request per line, with all ids so far.

A trajectory stays on the server that has its prefix in the cache. If that server fails, the line is requested again,
with the same ids: from that server first, then from another one. A trajectory takes an answer as a whole or not at all.
All HTTP runs on the engine's own event loop, so the engine can be used from any loop and closed from any thread.

Several processes may use the same servers, as long as one of them gives these their weights: the others follow it
(`follows`). A server may move to another machine, if somebody knows where it is then (`locate`). Not covered: several
trainers on the same servers, each with weights of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine.base import KnowsFacts, SampledLine, Slot, check_line, check_trajectory
from repl_rl.engine.server.client import (
    GENERATE,
    WORKER_EXTENSION,
    ServerClient,
    ServerFacts,
    ServerTimeouts,
    ServerUnreachable,
    Wanted,
    agree,
    base_url,
    inspect,
    line_end,
    line_request,
    read_answer,
    serve_command,
    takes_seeds,
)
from repl_rl.engine.server.fleet import Fleet, Locate, Server
from repl_rl.engine.server.transfer import Transfer, can_transfer
from repl_rl.engine.server.weights import Weights, WeightsFolder
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.threads import BackgroundLoop, cancel_others

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_REMEMBERED_PREFIXES = 4096
_TRIES_PER_SERVER = 2
_LONGEST_BACKOFF_S = 5.0
_KEEP_ALIVE_S = 4.0
"""vLLM closes idle connections after 5 s; a request on a connection that is being closed is lost."""


class VLLMServerEngine:
    """An `Engine` over the servers in `config.servers`.

    Raises ConfigError, ModelError or EngineError if one of them is down or is not what it has to be. An engine that
    follows another one takes those that are up, one at least. A server may name the model by its path or as the config
    does. `seed` is not used: each line has a seed of its own, by its sampling or at random; with `line_seeds: false` it
    has none.
    """

    def __init__(
        self,
        path: str,
        vocabulary: Vocabulary,
        model: ModelConfig,
        config: EngineConfig,
        seed: int = 0,
        timeouts: ServerTimeouts | None = None,
        follows: Weights | None = None,
        locate: Locate | None = None,
    ) -> None:
        """`follows` are the weights of another process's engine on the same servers. This one then loads none itself,
        and goes on with that engine's later ones as they come. `locate` says where a server is now that began at one of
        `config.servers`; without it, servers stay where they are."""
        self._wanted = Wanted((path, model.path), model.dtype, config.context_tokens, vocabulary)
        self._timeouts = timeouts or ServerTimeouts()
        self._folder = WeightsFolder(config.weights_folder)
        self._follows = follows
        self._closed = False
        self._transfer: Transfer | None = None
        self._first: tuple[str, ServerFacts] | None = None
        """The server that the others have to agree with: its URL, and what it has told about itself."""
        self._takes_seeds = True
        self._asks_with_seeds = config.line_seeds
        self._session: aiohttp.ClientSession | None = None
        self._places: dict[int, Place] = {}
        """By the hash of ids that begin a session: the place that has them in its cache."""
        self._loop = BackgroundLoop()
        try:
            self._loop.run(self._open(config, locate))
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def weights(self) -> Weights:
        """The weights that the servers hold; for `adopt` in another process."""
        return self._fleet.weights

    @property
    def servers(self) -> Sequence[Server]:
        """The servers, each with its URL, whether it is up, and why it is down or last was."""
        return self._fleet.servers

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Slot]:
        """Raises ConfigError for a trajectory that is longer than the engine's context. The servers queue lines."""
        check_trajectory(tokens, self._wanted.context_tokens)
        slot = _ServerSlot(self)
        try:
            yield slot
        finally:
            if not self._closed:
                self._loop.submit(slot.leave())

    async def sample(self, slot: _ServerSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """As `Slot.sample_line`, for one of its slots."""
        self._raise_if_closed()
        check_line(len(ids), max_tokens, self._wanted.context_tokens)
        line = self._loop.submit(self._sample(slot, ids, max_tokens, sampling))
        try:
            return await asyncio.wrap_future(line)
        except asyncio.CancelledError:
            # `close` cancels the lines under way. Where the caller itself was cancelled, it has to stay so.
            task = asyncio.current_task()
            is_cancelled = task is not None and task.cancelling() > 0
            if self._closed and not is_cancelled:
                raise EngineError("the engine was closed while a line was being sampled") from None
            raise

    def require_weight_updates(self) -> None:
        """Raises ConfigError if the servers can't be given new weights."""
        assert self._first is not None
        url, facts = self._first
        if facts.worker_extension != WORKER_EXTENSION:
            raise ConfigError(
                f"{url} can't be given new weights: it has "
                f"{facts.worker_extension or 'no worker extension, or no development mode'}; start it with\n"
                f"  {serve_command(self._wanted)}"
            )
        if facts.quantization is not None and not facts.takes_adapters:
            raise ConfigError(
                f"{url} serves weights that are quantised ({facts.quantization}), and new ones can't be loaded into "
                "these; start it without --quantization, with a checkpoint that isn't quantised"
            )

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Give all servers new weights, under the checkpoint's names. Lines under way are finished first.

        A server that can't be reached is left out until it has them; if none is up, this waits for one. Raises
        EngineError if a server refuses them or if none takes them; the servers then hold the old weights again. If the
        servers were started for vLLM's transfer, and `named_weights.facts()` says what will come (`TensorFacts`), they
        are sent without files; if that fails, no server can be used until it is started again.
        """
        version = self._next_version()
        facts = None
        if self._transfer is not None and isinstance(named_weights, KnowsFacts):
            facts = named_weights.facts()
        if self._transfer is None or facts is None:
            weights = self._folder.write(version, named_weights)
            self._loop.run(self._fleet.give_all(weights))
        else:
            weights = Weights(self._folder.run, version, is_sent=True)
            send = partial(self._transfer.send, facts=facts, named_weights=named_weights)
            self._loop.run(self._fleet.give_together(weights, send))

    @property
    def takes_adapters(self) -> bool:
        """Whether the servers were started with `--enable-lora`."""
        return self.weights.are_adapters

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        """As `load_weights`, for a PEFT adapter beside the checkpoint, which `save` writes to a folder."""
        weights = self._folder.write_adapter(self._next_version(), save)
        self._loop.run(self._fleet.give_all(weights))

    def adopt(self, weights: Weights) -> None:
        """Use the weights that another process of the same training run has given the servers."""
        self._raise_if_closed()
        self._loop.run(self._fleet.adopt(weights))

    def _next_version(self) -> int:
        self._raise_if_closed()
        if self._follows is not None:
            raise EngineError("this engine follows the weights of another one, and can't be given any itself")
        self.require_weight_updates()
        return self.version + 1

    def close(self) -> None:
        """Disconnect from the servers, which keep running. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._transfer is not None:
            self._transfer.close()
        self._loop.run(self._end())
        self._loop.close()
        self._folder.close()

    async def _open(self, config: EngineConfig, locate: Locate | None) -> None:
        headers = {}
        key = os.environ.get("VLLM_API_KEY")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        # As many connections as there are lines under way: the fleet bounds these.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        session = aiohttp.ClientSession(connector=connector, headers=headers)
        self._session = session

        urls = dict.fromkeys(base_url(url) for url in config.servers)  # each once
        clients = [ServerClient(url, session, self._timeouts) for url in urls]
        weights = self._follows or Weights(self._folder.run)
        follows = self._follows is not None
        self._fleet = Fleet(clients, config.places, self._timeouts, self._inspect, weights, follows, locate)
        first, *others = self.servers
        await self._fleet.check(first)  # alone, because the others are compared with it
        await asyncio.gather(*(self._fleet.check(server) for server in others))
        troubles = [server.trouble for server in self.servers if not server.up and server.trouble is not None]
        for trouble in troubles:
            if not isinstance(trouble, ServerUnreachable):
                raise trouble
        if self._first is None or (troubles and not follows):
            raise EngineError(
                f"{troubles[0]}\nEvery server in engine.servers has to be up at the start; start one with\n"
                f"  {serve_command(self._wanted)}"
            ) from troubles[0]

        _, facts = self._first
        if facts.cache_dtype not in (None, "auto", facts.dtype):
            logger.warning(
                "the servers keep keys and values in %s: their log-probabilities are off by what that rounds away, and "
                "training says by how much (drift/logprob_mean); start them without --kv-cache-dtype to end it",
                facts.cache_dtype,
            )
        if can_transfer(facts.transfer):
            self._transfer = Transfer(str(facts.transfer), self._loop.run)
        if not self._takes_seeds and len(clients) > 1:
            logger.warning(
                "the servers run on CPUs without our worker extension, so lines can't have seeds, and servers that "
                "were started alike give the same sessions; start them with --worker-extension-cls %s",
                WORKER_EXTENSION,
            )
        self._end_of_line = line_end(facts, self._wanted.vocabulary)
        self._watching = [asyncio.create_task(self._fleet.watch(server)) for server in self.servers]

    async def _inspect(self, client: ServerClient) -> ServerFacts:
        """Raises a ReplRLError if a server's model is wrong or it differs from the others."""
        facts = await inspect(client, self._wanted)
        if self._first is None:
            self._first = client.url, facts
            self._fleet.weights = replace(self.weights, are_adapters=facts.takes_adapters)
        agree(self._first, client.url, facts)
        self._takes_seeds = self._takes_seeds and takes_seeds(facts)
        return facts

    async def _sample(
        self, slot: _ServerSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig
    ) -> SampledLine:
        seed: int | None = None
        if self._asks_with_seeds:
            seed = sampling.line_seed(len(ids)) if isinstance(sampling, SeededSampling) else secrets.randbits(63)
        beginning = hash(tuple(ids))
        troubles: list[str] = []
        for tries in range(_TRIES_PER_SERVER * (len(self._fleet.servers) + 1)):
            if tries > 0:
                backoff_s = self._timeouts.backoff_s * 2 ** (tries - 1)
                await asyncio.sleep(min(backoff_s, _LONGEST_BACKOFF_S))
            place = slot.place or self._places.get(beginning)
            is_to_be_left = tries > 0 and tries % _TRIES_PER_SERVER == 0
            if place is None or not place.server.up or is_to_be_left:
                server = await self._fleet.wait_for_one(avoid=None if place is None else place.server)
                place = Place(server, server.free_rank)
            server = place.server
            slot.move(place)
            if slot.has_typed:  # sessions that branch off here begin with these ids, which are cached there
                self._places[beginning] = place
                if len(self._places) > _REMEMBERED_PREFIXES:
                    oldest = next(iter(self._places))
                    del self._places[oldest]
            try:
                async with server.requests, self._fleet.request():
                    line = await self._request_line(place, ids, max_tokens, sampling, seed)
                    slot.has_typed = True
                    return line
            except ServerUnreachable as error:
                troubles.append(str(error))
                await self._fleet.check(server)
        raise EngineError(f"no server gave a line after {len(troubles)} tries:\n  " + "\n  ".join(troubles))

    async def _request_line(
        self, place: Place, ids: list[int], max_tokens: int, sampling: SamplingConfig, seed: int | None
    ) -> SampledLine:
        """Raises ServerUnreachable if the server fails, or has sampled with other weights, which marks it down."""
        server = place.server
        weights = self.weights
        permitted_seed = seed if self._takes_seeds else None
        body = line_request(
            ids, max_tokens, sampling, self._end_of_line, weights.label, permitted_seed, weights.adapter
        )
        answer = await _unless_gone(place, body)
        line, labels = read_answer(server.url, answer, self._wanted.vocabulary)
        used = None
        if len(labels) == 1:  # no update is given while a request is under way, so all tokens have the same weights
            (label,) = labels
            used = self._fleet.usable(label, weights)
        if used is not None:
            return replace(line, versions=((0, used.version),))
        trouble = ServerUnreachable(
            f"{server.url} sampled with weights {sorted(labels)}, and they should be {weights.label!r}"
        )
        await self._fleet.mark_down(server, trouble)
        raise trouble

    async def _end(self) -> None:
        """Close all connections; the servers then abort the requests under way."""
        await cancel_others()
        if self._session is not None:
            await self._session.close()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")


class Place(NamedTuple):
    """Where a prefix is cached: a server, and the rank of its engine."""

    server: Server
    rank: int


class _ServerSlot:
    """A trajectory's slot: the place that holds its prefix."""

    def __init__(self, engine: VLLMServerEngine) -> None:
        self._engine = engine
        self.place: Place | None = None
        self.has_typed = False

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        return await self._engine.sample(self, list(ids), max_tokens, sampling)

    def move(self, place: Place | None) -> None:
        """Has to be called on the engine's loop."""
        if self.place is not None:
            self.place.server.slots[self.place.rank] -= 1
        if place is not None:
            place.server.slots[place.rank] += 1
        self.place = place

    async def leave(self) -> None:
        self.move(None)


async def _unless_gone(place: Place, body: dict[str, object]) -> object:
    """The server's answer. Raises ServerUnreachable as soon as the server is known to be down."""
    server = place.server
    client = server.client
    headers = None
    if server.ranks > 1:
        rank = place.rank % server.ranks  # a server that came back may have fewer
        headers = {"X-data-parallel-rank": str(rank)}
    answer = asyncio.create_task(client.post(GENERATE, body, client.timeouts.request_s, headers=headers))
    gone = asyncio.create_task(server.gone.wait())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ServerUnreachable(f"{server.url} went down while it sampled a line: {server.trouble}")
    finally:
        answer.cancel()
        gone.cancel()
