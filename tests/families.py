"""Small random models of the families that people train (`families.yaml`)."""

from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from transformers import AutoModelForCausalLM

_FILE = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
FAMILIES = list(_FILE["families"])


def random_model(name: str, **arguments: Any) -> Any:
    """One of `FAMILIES` or another one of the file, always with the same weights."""
    kind, values = (_FILE["families"] | _FILE["others"])[name]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(getattr(transformers, kind)(**values), **arguments)
