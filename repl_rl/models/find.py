"""Finds the checkpoint that a config names: a model that ships, one that comes in packages, a folder, a GGUF file or a
hub id."""

import errno
import json
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from repl_rl.config import SamplingConfig
from repl_rl.errors import ModelError, ReplRLError
from repl_rl.files import open_file, read_file
from repl_rl.models import adapter, gguf
from repl_rl.models.gguf import PACKAGED
from repl_rl.models.nano import SHIPPED
from repl_rl.utils.folders import is_local_path, made_once

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SMALL = (".json", ".txt", ".model", ".jinja")
"""Suffixes of files that are small in an ordinary checkpoint."""
_MOST_BYTES = 256 << 20
_MOST_CHARS = 500
"""Of a library's message, in ours."""
_ASKS_FOR_CODE = "trust_remote_code=True"
"""In transformers' message about a checkpoint that only its own code can read."""
_FAR_ID = re.compile(rb'"(?<!_length")\s*:\s*([0-9]{8,})\s*[,}]')
"""A number of eight digits or more in `tokenizer.json`, unless its key is that of a length."""
_PARTS = re.compile("(layers?|blocks|experts?|heads?|labels|depth)$")
_MOST_PARTS = 10_000
"""Layers, experts and heads that a config may have. transformers makes an object for each before it reads a weight."""
_HUB_SECONDS = 10
"""How long the hub may take to say whether it has a model."""
_SCALED_ALREADY = ("llama3", "longrope", "su", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ways to scale positions of which `max_position_embeddings` is the outcome."""
_ROTATED_BY_THE_LONGEST = ("longrope", "su", "dynamic")
"""Ways to scale positions by which transformers rotates all rows of a forward pass as the longest of them needs it."""
_KNOWN_CONFIGS = Path(__file__).with_name("architectures.json")
"""The part of some models' `config.json` that describes their shapes, by hub id."""


def resolve_model(path: str) -> str:
    """As `find_model`, but makes a checkpoint that has to be converted first, and asks the hub whether it has a
    packaged model whose packages are not here.

    Also raises ModelError if the folder for it can't be written, if neither hub nor packages have the model, and if
    the hub's config can't be read or has parts out of all proportion.
    """
    place = find_model(path)
    if path in PACKAGED and place == PACKAGED[path].hub_id:
        _require_hub(path)
    elif path in PACKAGED or gguf.is_file(path):
        try:
            with loading(f"{path} can't be converted", "from_pretrained"):
                made_once(Path(place), partial(gguf.convert, path))
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{path} can't be converted into {place}: {error}; XDG_CACHE_HOME names another folder"
            ) from error
    elif adapter.is_adapter(Path(os.path.expanduser(path))):
        _merge(Path(os.path.expanduser(path)), Path(place))
    elif not Path(place).exists():
        _require_few_parts(place)
    return place


def checkpoint_of_name(model: str) -> str:
    """The checkpoint of a model that ships or comes in packages, or of a GGUF file. Any other text is returned as it
    is, for transformers to look up.

    Raises what `resolve_model` raises.
    """
    is_ours = model in SHIPPED or model in PACKAGED or gguf.is_file(model)
    return resolve_model(model) if is_ours else model


def _merge(folder: Path, place: Path) -> None:
    base = adapter.base_of(folder)
    where = f"the adapter {folder} can't be merged into {base}"
    if adapter.is_adapter(Path(base)):
        raise ModelError(f"{where}, which is an adapter itself")
    try:
        found = resolve_model(base)
    except ModelError as error:
        raise ModelError(f"{where}, the model that it was trained on: {error}") from error
    try:
        with loading(where):
            made_once(place, lambda empty: adapter.merge(folder, found, empty))
    except OSError as error:
        raise ModelError(f"{where}: {error}; XDG_CACHE_HOME names another folder") from error


def _under_adapter(path: str) -> str:
    """The model that an adapter was trained on; of any other model, itself."""
    folder = Path(os.path.expanduser(path))
    return adapter.base_of(folder) if adapter.is_adapter(folder) else path


def find_model(path: str) -> str:
    """The folder or hub id that transformers and vLLM load for `path`: a model that ships, a folder, an adapter's
    folder, a GGUF file or a hub id.

    A path that begins with `.`, `/` or `~`, or ends with `/`, is local. A packaged model (`repl_rl.models.gguf`) comes
    from its packages if they are installed, else from the hub. Makes and fetches nothing: for a file that is converted
    first, or an adapter that is merged first, it returns the folder where the checkpoint is or will be. Raises
    ModelError for a folder that is missing or has no `config.json`, for a missing file and for a name that is none of
    these, and DependencyError if the package that reads the file, or merges the adapter, is missing.
    """
    if path in SHIPPED:
        return str(SHIPPED[path])
    if path in PACKAGED:
        if PACKAGED[path].is_installed:
            return str(gguf.folder_of(path))
        return PACKAGED[path].hub_id
    folder = Path(os.path.expanduser(path))  # Path.expanduser raises for an unknown user's home
    if folder.is_dir():
        if adapter.is_adapter(folder):
            return str(adapter.folder_of(folder))
        if not (folder / "config.json").is_file():
            raise ModelError(f"{path!r} is a folder without config.json, so not a checkpoint of transformers' kind")
        _require_plain(folder)
        return str(folder)
    if gguf.is_file(path):
        if not folder.is_file():
            raise ModelError(f"there is no file {path!r}")
        gguf.require_reader()
        return str(gguf.folder_of(path))
    names = " or ".join([*SHIPPED, *PACKAGED])
    give = f"give a checkpoint folder, a .gguf file, a hub id (owner/name), or {names}"
    if not folder.exists() and is_local_path(path):
        raise ModelError(f"there is no folder {path!r}: {give}")
    if folder.exists() or not _HUB_ID.fullmatch(path):
        raise ModelError(f"{path!r} is not a model: {give}")
    return path


def _require_hub(name: str) -> None:
    """Raises ModelError unless the hub, or its cache, has the packaged model."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    packaged = PACKAGED[name]
    cached_config = try_to_load_from_cache(packaged.hub_id, "config.json")
    if isinstance(cached_config, str):
        return
    with loading(
        f"{name} comes from the hub (hf download {packaged.hub_id}), or in packages of PyPI, quantised "
        f"({packaged.command}); the packages are not here, and the hub does not give it"
    ):
        HfApi().model_info(packaged.hub_id, timeout=_HUB_SECONDS)


def _require_few_parts(hub_id: str) -> None:
    """Raises ModelError for a config of the hub that would keep its reader busy for ever, and if neither the hub nor
    its cache gives one."""
    from huggingface_hub import hf_hub_download

    with loading(f"the config of {hub_id} can't be read"):
        file = hf_hub_download(hub_id, "config.json")
        excess = _too_many_parts(read_file(Path(file)))
    if excess:
        raise ModelError(f"config.json of {hub_id} can't be used: {excess}, and a model may have {_MOST_PARTS:,}")


def config_of_model(path: str) -> dict[str, Any] | None:
    """transformers' config of a model, or of the language model in it. Asks no hub.

    It is read from the model's folder or from the hub's cache. For the models of configs that ship, the part of it that
    is known here takes its place. None where there is none of these.
    """
    path = _under_adapter(path)
    file = Path(find_model(path)) / "config.json"
    if not file.is_file():
        from huggingface_hub import try_to_load_from_cache

        hub_id = PACKAGED[path].hub_id if path in PACKAGED else path
        cached_file = None if gguf.is_file(path) else try_to_load_from_cache(hub_id, "config.json")
        if not isinstance(cached_file, str):
            known_configs: dict[str, dict[str, Any]] = json.loads(_KNOWN_CONFIGS.read_text(encoding="utf-8"))
            return known_configs.get(hub_id)
        file = Path(cached_file)
    try:
        config: dict[str, Any] = json.loads(read_file(file))
        return config.get("text_config") or config
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ModelError(f"{file} can't be read: {error}; save the model again") from error


def positions_of(config: Mapping[str, Any]) -> int | None:
    """How many tokens a model has positions for, after the scaling that the config of its language model names; None if
    that does not tell."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return positions
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in _SCALED_ALREADY:
        return positions
    factor = scaling.get("factor") or 1
    original_positions = scaling.get("original_max_position_embeddings") or positions
    return max(positions, int(factor * original_positions))


def positions_of_rows(config: Mapping[str, Any]) -> int | None:
    """How long all rows of a forward pass may be for none to change the numbers of another one in transformers, by the
    config of a language model; None if they never do.

    Above its original length, a model with longrope or dynamic positions has other rotations, and a forward pass has
    one of the two for all its rows.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return None
    lengths = []
    for part in (scaling, *scaling.values()):  # one for each kind of layer in some models
        if not isinstance(part, dict) or part.get("rope_type", part.get("type")) not in _ROTATED_BY_THE_LONGEST:
            continue
        holders = (part, config)  # Phi-3 has it outside
        named = [holder.get("original_max_position_embeddings") for holder in holders]
        lengths += [length for length in (*named, config.get("max_position_embeddings")) if length][:1]
    return min(lengths, default=None)


def generation_settings(path: str) -> dict[str, Any]:
    """The `generation_config.json` of a checkpoint folder or hub id; {} where there is none."""
    file = Path(path) / "generation_config.json"
    if not Path(path).exists():
        from huggingface_hub import hf_hub_download, is_offline_mode, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            file = Path(hf_hub_download(path, file.name))
        except LocalEntryNotFoundError:  # the hub was not asked, or not reached
            is_cached = isinstance(try_to_load_from_cache(path, "config.json"), str)
            if not (is_offline_mode() and is_cached):
                raise
            return {}
        except EntryNotFoundError:
            return {}
    if not file.is_file():
        return {}
    settings: dict[str, Any] = json.loads(read_file(file))
    return settings


def own_sampling(path: str) -> dict[str, Any]:
    """The sampling settings of a model's generation config, by the names of the section `sampling`, as `vllm serve`
    takes them. Raises ModelError."""
    path = _under_adapter(path)
    place = find_model(path)
    if path in PACKAGED:  # a GGUF file holds none
        return dict(PACKAGED[path].sampling)
    if gguf.is_file(path):
        return {}
    with loading(f"the generation settings of {path!r} can't be read"):
        settings = generation_settings(place)
        return {name: settings[name] for name in SamplingConfig.model_fields if settings.get(name) is not None}


@contextmanager
def loading(what: str, *only_from: str) -> Iterator[None]:
    """Turns any exception of a library that can't load a checkpoint into a ModelError that begins with `what`.

    With `only_from`, it turns only those that passed through a function of one of these names.
    """
    try:
        yield
    except ReplRLError:
        raise
    except BaseException as error:  # a panic of tokenizers is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        functions = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
        if only_from and functions.isdisjoint(only_from):
            raise
        if _ASKS_FOR_CODE in str(error):  # transformers' way out, to trust the code, is not one here
            raise ModelError(
                f"{what}: it comes with code of its own, and no code of a checkpoint is run here; take a model whose "
                "classes transformers itself has"
            ) from error
        message = " ".join(str(error).split())[:_MOST_CHARS]
        if not isinstance(error, OSError | ValueError | RuntimeError):  # a KeyError's message, say, is only the key
            message = f"{type(error).__name__}: {message}"
        raise ModelError(f"{what}: {message}") from error


def _too_many_parts(config: bytes) -> str:
    """The first number in a config that is out of all proportion, as "name is number"; "" if there is none.

    A file that is not a config is left to its readers to refuse.
    """
    try:
        parts = [json.loads(config)]
    except (ValueError, RecursionError):
        return ""
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += part.values()
            for name, value in part.items():
                is_count = isinstance(value, int | float) and _PARTS.search(name)
                if is_count and value > _MOST_PARTS:
                    return f"{name} is {value:,}"
    return ""


def _require_plain(folder: Path) -> None:
    """Raises ModelError for a checkpoint whose reader would wait for ever, or whose small files are not small."""
    for path in folder.iterdir():
        if path.is_dir() or not path.exists():
            continue
        try:
            with open_file(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if path.suffix in _SMALL and size_bytes > _MOST_BYTES:
                    raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES >> 20} MiB")
                if path.name == "tokenizer.json":
                    far = _FAR_ID.search(file.read())
                    if far is not None:
                        far_id = far[1].decode()
                        raise OSError(errno.EINVAL, f"a token has the id {far_id:.20}, and readers count up to it")
                if path.name == "config.json":
                    excess = _too_many_parts(file.read())
                    if excess:
                        raise OSError(errno.EINVAL, f"{excess}, and a model may have {_MOST_PARTS:,}")
        except OSError as error:
            raise ModelError(f"{path} of a checkpoint can't be used: {error.strerror}") from error
