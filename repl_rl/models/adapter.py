"""Adapters that stand alone, as the checkpoints of a run with `train.lora` do: merged once into the model that they
were trained on, and kept in the cache, so that any engine loads them.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib.util import find_spec
from pathlib import Path

from repl_rl.errors import DependencyError, ModelError
from repl_rl.files import read_file
from repl_rl.models.whole import whole_weights
from repl_rl.utils.folders import cache_home

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_MERGE = 2
"""Counts up with each change to what is made of an adapter: what earlier ones made is not used."""


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, and no model of its own."""
    return (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()


def folder_of(adapter: Path) -> Path:
    """Where the checkpoint with the adapter merged is or will be: another place for other settings, and for other
    weights of the adapter or of a base in a local folder.

    Raises ModelError for an adapter without weights or a readable config, and DependencyError without PEFT.
    """
    if find_spec("peft") is None:
        raise DependencyError(
            f"{adapter} is an adapter, which PEFT merges; in the checkout, bring it with: pip install -e '.[lora]'"
        )
    weights = (adapter / _WEIGHTS).resolve()
    if not weights.is_file():
        raise ModelError(f"{adapter} is an adapter without {_WEIGHTS}; save it again")
    base = Path(os.path.expanduser(base_of(adapter)))
    base_weights = sorted([*base.glob("*.safetensors"), *base.glob("*.bin")])  # none of a base on the hub
    parts = [read_file(adapter / _CONFIG).decode(errors="replace")]
    for file in (weights, *base_weights):
        status = file.stat()
        parts.append(f"{file}\0{status.st_size}\0{status.st_mtime_ns}")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_home() / f"merged-{digest[:12]}-{_MERGE}"


def base_of(adapter: Path) -> str:
    """The folder or hub id of the model that the adapter was trained on. Raises ModelError."""
    try:
        base = json.loads(read_file(adapter / _CONFIG)).get("base_model_name_or_path")
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ModelError(f"{adapter / _CONFIG} can't be read: {error}; save the adapter again") from error
    if not isinstance(base, str) or not base:
        raise ModelError(f"{adapter / _CONFIG} does not say which model the adapter is for (base_model_name_or_path)")
    return base


def merge(adapter: Path, base: str, folder: Path) -> None:
    """Fill `folder`, which is empty, with the checkpoint of `base` with the adapter merged into it, and the tokenizer.

    Raises what transformers and PEFT raise.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with whole_weights():
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", trust_remote_code=False)
        adapted = PeftModel.from_pretrained(model, str(adapter))
        adapted.merge_and_unload().save_pretrained(folder)
    has_tokenizer = (adapter / "tokenizer_config.json").is_file()
    source = str(adapter) if has_tokenizer else base
    AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(folder)
