"""New weights of servers: how they are named and written to a folder, and how a server comes to hold them."""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from repl_rl.engine.server.client import CHECKPOINT, ServerClient
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.folders import scratch_folder

_FILE_BYTES = 4 * 2**30


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
        await begin(client, weights)
        await (_change_adapter if weights.are_adapters else _change_weights)(client, weights)
        await finish(client, weights)
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


async def begin(client: ServerClient, weights: Weights) -> None:
    """Drain a server, and take its label away."""
    await client.post("/pause?mode=wait", wait_s=client.timeouts.weights_s)
    await client.post("/update_weight_version", {"new_version": f"on the way to {weights.label}"})


async def finish(client: ServerClient, weights: Weights) -> None:
    """Forget what was computed with other weights, and say which ones it has."""
    await client.post("/reset_prefix_cache")
    await client.post("/update_weight_version", {"new_version": weights.label})
