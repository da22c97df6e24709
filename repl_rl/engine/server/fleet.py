"""The servers of an engine: which can be used, which has the fewest trajectories, and which weights they hold.

A server is up or down. It goes down when it fails its health checks. It comes up again when it answers, still serves
what it has to, and holds the current weights. If servers can move, a server that is down is looked for where it is now.

New weights are safetensors files in a folder that trainer and servers share. All servers switch to them together or not
at all: a server that can't be reached is left out until it has them; a server that refuses them stops the update, and
all return to the previous weights. If servers and trainer have GPUs, weights may be sent to all at once instead
(`repl_rl.engine.server.transfer`); nobody has the previous ones then, and a failed transfer ends the run. Each set of
weights has a label, and a server reports the label with every token that it samples. So a server that was restarted
with its old checkpoint, or updated by somebody else, is noticed at its next answer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from repl_rl.engine.server.client import (
    CHECKPOINT,
    ServerClient,
    ServerFacts,
    ServerSilent,
    ServerTimeouts,
    ServerUnreachable,
)
from repl_rl.errors import ConfigError, EngineError, ReplRLError
from repl_rl.utils.folders import scratch_folder

logger = logging.getLogger(__name__)

_SILENCES = 3
"""A server is marked down after so many unanswered health checks in a row, or one refused connection."""
_FILE_BYTES = 4 * 2**30
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
                rest = [server for server in self.up if server is not avoid] or self.up
                return min(rest, key=lambda server: server.slots.total() / server.ranks)
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
            await self.check(server)

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
                if not server.up:
                    facts = await self._inspect(server.client)
                    label, server.ranks = facts.label, facts.ranks
                    server.requests = asyncio.Semaphore(facts.most_requests or self._most_requests)
                    if label is not None and self.usable(label, self.weights) is None:  # None: it doesn't say
                        server.waits = self.weights.is_sent and not self._follows
                        if server.waits or self._follows:
                            until = "the next ones are sent" if server.waits else "the trainer has given it its own"
                            raise ServerUnreachable(f"{server.url} has other weights, until {until}")
                        await self._bring(server, self.weights)
            except ReplRLError as error:
                server.silences += 1
                if not (server.up and isinstance(error, ServerSilent) and server.silences < _SILENCES):
                    await self.mark_down(server, error)
            else:
                server.silences = 0
                if not server.up:
                    if server.trouble is not None:
                        logger.warning("%s is back", server.url)
                    await self._mark_up(server)

    async def find(self, server: Server) -> None:
        """Turn to the URL that a server has now. Raises ServerUnreachable if it has none."""
        if self._locate is not None:
            url = await self._locate(server.began_at)
            if url != server.url:
                logger.warning("%s is gone, and %s takes its place", server.url, url)
                server.client = server.client.at(url)

    async def mark_down(self, server: Server, trouble: ReplRLError) -> None:
        if server.up:
            logger.warning("%s is down, its trajectories go on elsewhere: %s", server.url, trouble)
        server.up, server.trouble = False, trouble
        server.gone.set()
        await self._tell()

    async def _mark_up(self, server: Server) -> None:
        server.up, server.waits = True, False
        server.gone.clear()
        await self._tell()

    async def _tell(self) -> None:
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
            await self._tell()

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
            await self._tell()

    async def give_all(self, weights: Weights) -> None:
        """Waits for a server if none is up. Raises EngineError, with all servers back at the previous weights, if a
        server refuses or if none takes them."""
        async with self._without_requests():
            try:
                for _ in range(_GIVE_TRIES):
                    await self.wait_for_one()
                    taking = self.up
                    given = (self._give(server, weights) for server in taking)
                    failures = await asyncio.gather(*given, return_exceptions=True)
                    refusals = [error for error in failures if error and not isinstance(error, ServerUnreachable)]
                    if refusals:
                        returned = (self._give(server, self.weights) for server in taking)
                        await asyncio.gather(*returned, return_exceptions=True)
                        raise EngineError(str(refusals[0])) from refusals[0]
                    if None in failures:
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
            taking = [server for server in self.servers if server.up or server.waits]
            clients = [server.client for server in taking]
            try:
                await asyncio.gather(*(_begin(client, weights) for client in clients))
                await asyncio.to_thread(send, clients)
                await asyncio.gather(*(_finish(client, weights) for client in clients))
            except ReplRLError as error:
                for server in taking:
                    await self.mark_down(server, error)
                raise
            finally:
                resumed = (client.post("/resume") for client in clients)
                await asyncio.gather(*resumed, return_exceptions=True)
            self.weights.remove_files()
            self.weights = weights
            for server in taking:
                await self._mark_up(server)

    async def adopt(self, weights: Weights) -> None:
        """Use the weights that another process has given the servers."""
        if self._follows:
            if weights.version > self.weights.version:
                self.weights = weights
            return
        async with self._without_requests():
            self.weights = weights

    def usable(self, label: str, asked: Weights) -> Weights | None:
        """The weights with this label, if they are those that were asked for, or later ones of the process that is
        followed, which are then asked for from now on."""
        if label == asked.label:
            return asked
        later = asked.later(label) if self._follows else None
        if later is not None and later.version > self.weights.version:
            self.weights = later
        return later

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
        bringing = asyncio.create_task(bring_to(server.client, weights))
        silences = 0
        try:
            while not (await asyncio.wait({bringing}, timeout=self._timeouts.between_checks_s))[0]:
                try:
                    await server.client.get("/health")
                    silences = 0
                except ServerSilent:
                    silences += 1
                    if silences == _SILENCES:
                        raise
            bringing.result()
        finally:
            bringing.cancel()
            await asyncio.gather(bringing, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Weights:
    """One state of the policy. The first one is the checkpoint that the servers were started with."""

    run: str
    """A name for all weights of one trainer."""
    version: int = 0
    files: tuple[str, ...] = ()
    are_adapters: bool = False
    """All but the first are PEFT adapters beside the checkpoint, each in a folder of its own."""
    is_sent: bool = False
    """They have been sent to the servers, and nothing here keeps them."""

    @property
    def label(self) -> str:
        """By which a server names them with each token."""
        return f"{self.run}-{self.version}" if self.version else CHECKPOINT

    @property
    def adapter(self) -> str | None:
        """The name of the adapter to sample with."""
        return self.label if self.are_adapters and self.version else None

    def later(self, label: str) -> Weights | None:
        """The weights with this label, if they are later ones of the same trainer."""
        start, _, number = label.rpartition("-")
        is_later = start == self.run and number.isdecimal() and int(number) > self.version
        return replace(self, version=int(number), files=()) if is_later else None

    def remove_files(self) -> None:
        """Delete the files; no server will be asked to load them again."""
        for path in map(Path, self.files):
            path.unlink(missing_ok=True)
            if self.are_adapters and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()


class WeightsFolder:
    """Writes weights to files, of which the fleet keeps those of the latest update.

    They lie in a folder of their own in `folder`; if that is None, in a temporary one of this machine, which servers on
    other machines can't read. The next run on this machine removes what one that was killed has left there.
    """

    def __init__(self, folder: str | None) -> None:
        self.run = f"repl-rl-{uuid.uuid4().hex[:8]}"
        self._given = None if folder is None else Path(folder).expanduser().absolute()
        self._stack = ExitStack()

    def write(self, version: int, named_params: Iterable[tuple[str, torch.Tensor]]) -> Weights:
        """Write copies of the tensors to disk. Raises ConfigError if the folder can't be written to.

        Reads `named_params` to the end even then, because gathering a sharded weight takes all processes.
        """
        weights = Weights(self.run, version)
        tensors = iter(named_params)
        try:
            return replace(weights, files=tuple(_write(self._own, weights.label, tensors)))
        except (OSError, SafetensorError) as error:
            deque(tensors, maxlen=0)
            raise self._unwritable(error) from error

    def write_adapter(self, version: int, save: Callable[[Path], None]) -> Weights:
        """Let `save` write an adapter to a folder. Raises ConfigError if it can't."""
        weights = Weights(self.run, version, are_adapters=True)
        try:
            folder = self._own / weights.label
            save(folder)
            return replace(weights, files=tuple(map(str, sorted(folder.iterdir()))))
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"new weights can't be written to '{self._given or tempfile.gettempdir()}': {error}; name a folder "
            "with room that trainer and servers share in engine.weights_folder"
        )

    @cached_property
    def _own(self) -> Path:
        made = scratch_folder("repl-rl-weights-", self._given, 0o700 if self._given is None else 0o777)
        return self._stack.enter_context(made)

    def close(self) -> None:
        self._stack.close()


def _write(folder: Path, label: str, named_params: Iterator[tuple[str, torch.Tensor]]) -> Iterator[str]:
    """Write files of a few GiB each, so that no copy of the whole model is held in memory; yields their paths."""
    for number in itertools.count():
        batch: dict[str, torch.Tensor] = {}
        for name, tensor in named_params:
            batch[name] = tensor.detach().to("cpu", copy=True).contiguous()
            if sum(each.nbytes for each in batch.values()) >= _FILE_BYTES:
                break
        if not batch:
            return
        path = folder / f"{label}-{number:03d}.safetensors"
        partial = path.with_suffix(".partial")
        save_file(batch, partial)
        partial.rename(path)
        yield str(path)


async def bring_to(client: ServerClient, weights: Weights) -> None:
    """Make a server hold `weights`: drain it, load them, empty its cache, set the label, and resume it.

    Raises EngineError if it can't load them; its label is then that of no `Weights`.
    """
    try:
        await _begin(client, weights)
        await (_change_adapter if weights.are_adapters else _change_weights)(client, weights)
        await _finish(client, weights)
    finally:
        await client.post("/resume")


async def _change_weights(client: ServerClient, weights: Weights) -> None:
    if weights.files:
        answers = await client.worker_call("repl_rl_load_weights", files=list(weights.files))
    else:
        answers = await client.worker_call("repl_rl_restore_checkpoint")
    if not answers:
        raise EngineError(f"{client.url} has no worker that loads weights")
    for answer in answers:
        if not isinstance(answer, dict) or not answer.get("loaded"):
            reason = answer.get("error", "it loaded no tensor") if isinstance(answer, dict) else repr(answer)
            raise EngineError(
                f"{client.url} can't load {', '.join(weights.files) or 'its checkpoint'}: {reason}; if it can't "
                "read the file, name a folder that trainer and servers share in engine.weights_folder"
            )
    await client.worker_call("repl_rl_require_loaded")


async def _change_adapter(client: ServerClient, weights: Weights) -> None:
    """Adapters have names of their own, because vLLM reloads one that it was told to replace for every batch."""
    for known in (replace(weights, version=max(0, weights.version - 1)), weights):
        if known.adapter is not None:
            await client.unload_adapter(known.adapter)
    if weights.adapter is not None:
        await client.load_adapter(weights.adapter, str(Path(weights.files[0]).parent))


async def _begin(client: ServerClient, weights: Weights) -> None:
    """Drain a server, and take its label away."""
    await client.post("/pause?mode=wait", wait_s=client.timeouts.weights_s)
    await client.post("/update_weight_version", {"new_version": f"on the way to {weights.label}"})


async def _finish(client: ServerClient, weights: Weights) -> None:
    """Forget what was computed with other weights, and say which ones it has."""
    await client.post("/reset_prefix_cache")
    await client.post("/update_weight_version", {"new_version": weights.label})
