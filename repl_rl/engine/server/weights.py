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
    """They were sent to the servers without files, and this process keeps no copy."""

    @property
    def label(self) -> str:
        """The name that a server gives with each token that these weights sampled."""
        if self.version == 0:
            return CHECKPOINT
        return f"{self.run}-{self.version}"

    @property
    def adapter(self) -> str | None:
        """The name of the adapter to sample with, if there is one."""
        return self.label if self.are_adapters and self.version else None

    def later(self, label: str) -> Weights | None:
        """The weights with this label, if they are later ones of the same trainer."""
        run, _, number = label.rpartition("-")
        if run != self.run or not number.isdecimal() or int(number) <= self.version:
            return None
        return replace(self, version=int(number), files=())

    def remove_files(self) -> None:
        """Delete the files; no server will be asked to load them again."""
        for file in self.files:
            path = Path(file)
            path.unlink(missing_ok=True)
            folder = path.parent
            if self.are_adapters and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


class WeightsFolder:
    """Writes weights to files, of which the fleet keeps those of the latest update.

    They lie in a folder of their own in `folder`; if that is None, in a temporary one of this machine, which servers on
    other machines can't read. If a run is killed and leaves its folder, the next run on this machine removes it.
    """

    def __init__(self, folder: str | None) -> None:
        self.run = f"repl-rl-{uuid.uuid4().hex[:8]}"
        self._parent = None if folder is None else Path(folder).expanduser().absolute()
        self._stack = ExitStack()

    def write(self, version: int, named_params: Iterable[tuple[str, torch.Tensor]]) -> Weights:
        """Write copies of the tensors to disk. Raises ConfigError if the folder can't be written to.

        Reads `named_params` to the end even then, because gathering a sharded weight takes all processes.
        """
        weights = Weights(self.run, version)
        tensors = iter(named_params)
        try:
            files = tuple(_write(self._folder, weights.label, tensors))
        except (OSError, SafetensorError) as error:
            deque(tensors, maxlen=0)  # reads the rest
            raise self._unwritable(error) from error
        return replace(weights, files=files)

    def write_adapter(self, version: int, save: Callable[[Path], None]) -> Weights:
        """Let `save` write an adapter to a folder. Raises ConfigError if it can't."""
        weights = Weights(self.run, version, are_adapters=True)
        try:
            folder = self._folder / weights.label
            save(folder)
            files = tuple(str(path) for path in sorted(folder.iterdir()))
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from error
        return replace(weights, files=files)

    def _unwritable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"new weights can't be written to '{self._parent or tempfile.gettempdir()}': {error}; name a folder "
            "with room that trainer and servers share in engine.weights_folder"
        )

    @cached_property
    def _folder(self) -> Path:
        # The umask decides who may read in a folder that servers share. A temporary one is for this user alone.
        mode = 0o700 if self._parent is None else 0o777
        return self._stack.enter_context(scratch_folder("repl-rl-weights-", self._parent, mode))

    def close(self) -> None:
        self._stack.close()


def _write(folder: Path, label: str, named_params: Iterator[tuple[str, torch.Tensor]]) -> Iterator[str]:
    """Write files of a few GiB each, so that no copy of the whole model is held in memory; yields their paths."""
    for number in itertools.count():
        batch: dict[str, torch.Tensor] = {}
        batch_bytes = 0
        for name, tensor in named_params:
            batch[name] = tensor.detach().to("cpu", copy=True).contiguous()
            batch_bytes += batch[name].nbytes
            if batch_bytes >= _FILE_BYTES:
                break
        if not batch:
            return
        path = folder / f"{label}-{number:03d}.safetensors"
        partial_path = path.with_suffix(".partial")
        save_file(batch, partial_path)
        partial_path.rename(path)
        yield str(path)


async def bring_to(client: ServerClient, weights: Weights) -> None:
    """Make a server hold `weights`: drain it, load them, empty its cache, set the label, and resume it.

    Raises EngineError if it can't load them; its label is then that of no `Weights`.
    """
    try:
        await begin(client, weights)
        if weights.are_adapters:
            await _change_adapter(client, weights)
        else:
            await _change_weights(client, weights)
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
        is_report = isinstance(answer, dict)
        if is_report and answer.get("loaded"):
            continue
        reason = answer.get("error", "it loaded no tensor") if is_report else repr(answer)
        raise EngineError(
            f"{client.url} can't load {', '.join(weights.files) or 'its checkpoint'}: {reason}; if it can't "
            "read the file, name a folder that trainer and servers share in engine.weights_folder"
        )
    await client.worker_call("repl_rl_require_loaded")


async def _change_adapter(client: ServerClient, weights: Weights) -> None:
    """Each version has a name of its own, because vLLM loads an adapter that it was told to replace for every batch
    again."""
    previous = replace(weights, version=max(0, weights.version - 1))
    for version in (previous, weights):
        if version.adapter is not None:
            await client.unload_adapter(version.adapter)
    if weights.adapter is not None:
        folder = Path(weights.files[0]).parent
        await client.load_adapter(weights.adapter, str(folder))


async def begin(client: ServerClient, weights: Weights) -> None:
    """Drain a server, and take its label away."""
    await client.post("/pause?mode=wait", wait_s=client.timeouts.weights_s)
    await client.post("/update_weight_version", {"new_version": f"on the way to {weights.label}"})


async def finish(client: ServerClient, weights: Weights) -> None:
    """Let a server forget what was computed with other weights, and set its label to these."""
    await client.post("/reset_prefix_cache")
    await client.post("/update_weight_version", {"new_version": weights.label})
