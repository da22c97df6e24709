"""New weights for servers: safetensors files in a folder that trainer and servers share.

A set of weights has a label. A server tells its label with every token that it samples, so a server that was restarted
with its old checkpoint, or that somebody else has updated, is noticed at its next answer.

Not covered: vLLM's own weight transfer over NCCL, which needs GPUs on both sides.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from repl_rl.engine.server.client import ServerClient
from repl_rl.engine.server.handshake import CHECKPOINT
from repl_rl.errors import ConfigError, EngineError

_FILE_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Weights:
    """One state of the policy. Without files it is the checkpoint that the servers were started with."""

    version: int = 0
    label: str = CHECKPOINT
    files: tuple[str, ...] = ()


class WeightsFolder:
    """Writes weights, and keeps those of the latest update only.

    `folder` None is a temporary one of this machine, which servers on other machines can't read.
    """

    def __init__(self, folder: str | None) -> None:
        self._run = uuid.uuid4().hex[:8]
        self._given = folder
        self._made: str | None = None

    def write(self, version: int, named_params: Iterable[tuple[str, torch.Tensor]]) -> Weights:
        """Copies of the tensors, on disk. Raises ConfigError if the folder can't be written to.

        Reads to the end even then: gathering a sharded weight takes all processes.
        """
        label = f"repl-rl-{self._run}-{version}"
        tensors = iter(named_params)
        try:
            files = [str(path) for path in _write(self._folder(), label, tensors)]
        except (OSError, SafetensorError) as error:
            deque(tensors, maxlen=0)
            raise ConfigError(
                f"new weights can't be written to {self._given or tempfile.gettempdir()!r}: {error}; name a folder "
                "with room that trainer and servers share in engine.weights_folder"
            ) from error
        return Weights(version, label, tuple(files))

    def forget(self, weights: Weights) -> None:
        """Remove the files of weights that no server will be asked to load again."""
        for path in weights.files:
            Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    def _folder(self) -> Path:
        if self._given is not None:
            folder = Path(self._given).expanduser().absolute()
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if self._made is None:
            self._made = tempfile.mkdtemp(prefix="repl-rl-weights-")
        return Path(self._made)


async def bring_to(client: ServerClient, weights: Weights) -> None:
    """Make a server hold `weights`: drain it, load, empty its cache, label it, let it go on.

    Raises EngineError if it can't take them; what it then holds has no label of ours.
    """
    await client.post("/pause?mode=wait", wait_s=client.patience.weights_s)
    try:
        await client.post("/update_weight_version", {"new_version": f"on the way to {weights.label}"})
        await _load(client, weights)
        await client.post("/reset_prefix_cache")
        await client.post("/update_weight_version", {"new_version": weights.label})
    finally:
        await client.post("/resume")


async def _load(client: ServerClient, weights: Weights) -> None:
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
                f"{client.url} can't load {', '.join(weights.files) or 'its checkpoint'}: {reason}; if it can't read "
                "the file, name a folder that trainer and servers share in engine.weights_folder"
            )


def _write(folder: Path, label: str, named_params: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Path]:
    """Files of a few GiB each, so that no copy of the whole model is held in memory."""
    for number, tensors in enumerate(_batches(named_params)):
        path = folder / f"{label}-{number:03d}.safetensors"
        partial = path.with_suffix(".partial")
        save_file(tensors, partial)
        partial.rename(path)
        yield path


def _batches(named_params: Iterable[tuple[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    batch: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in named_params:
        batch[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += batch[name].nbytes
        if size >= _FILE_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch
