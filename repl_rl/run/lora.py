"""`train.lora`: adapters in place of all weights, checked before a model is loaded."""

import importlib.util
from dataclasses import fields
from typing import Any

from repl_rl.config import Config, TrainConfig
from repl_rl.engine.environment import has_gpu_driver
from repl_rl.errors import ConfigError, DependencyError
from repl_rl.models.skeleton import Adapted, require_adapted
from repl_rl.utils.text import nearest


def lora_config(config: TrainConfig) -> Any:
    """PEFT's LoraConfig for `train.lora`; None without one. Raises DependencyError, or ConfigError for what PEFT
    refuses."""
    if config.lora is None:
        return None
    if importlib.util.find_spec("peft") is None:
        raise DependencyError("train.lora needs PEFT; in the checkout, bring it with: pip install -e '.[lora]'")
    from peft import LoraConfig

    known = [field.name for field in fields(LoraConfig)]
    for name in config.lora:
        if name not in known:
            raise ConfigError(f"train.lora: PEFT's LoraConfig has no argument {name!r}; {nearest(name, known)}")
    try:
        return LoraConfig(**{"task_type": "CAUSAL_LM", "target_modules": "all-linear", **config.lora})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train.lora: PEFT refuses these arguments: {error}") from error


def require_adapter(config: Config, is_dry: bool = False) -> Adapted | None:
    """What the adapters reach of the model, as far as that is known; None without adapters.

    Raises ConfigError for an adapter that PEFT or vLLM refuses, that leaves experts frozen and does not say so, and if
    vLLM waits for one in vain. A dry run may be on another machine than the run.
    """
    adapter = lora_config(config.train)
    options = config.engine.vllm
    vllm_takes_adapters = bool(options.get("enable_lora"))  # beside weights that stay; else they are merged
    if adapter is None:
        if vllm_takes_adapters:
            raise ConfigError("engine.vllm: enable_lora is for adapters, and none are trained; set train.lora as well")
        return None
    if vllm_takes_adapters:
        _require_of_vllm(adapter, options)
    adapted = require_adapted(config.model.path, adapter)
    if adapted is None or not vllm_takes_adapters:
        return adapted
    if adapted.parameters:
        raise _merge(f"tensors that are not linear layers: {', '.join(adapted.parameters)}")
    if adapted.frozen_experts and not is_dry and not has_gpu_driver():
        raise _merge("of a model with experts, it takes adapters on a GPU only")
    return adapted


def _require_of_vllm(adapter: Any, options: dict[str, Any]) -> None:
    from vllm.config.lora import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    limits = {"max_lora_rank": options["max_lora_rank"]} if "max_lora_rank" in options else {}
    rank = max(adapter.r, *adapter.rank_pattern.values(), 0)
    settings = {**adapter.to_dict(), "r": rank}  # of the largest layer: vLLM looks at one rank
    try:
        PEFTHelper.from_dict(settings).validate_legal(LoRAConfig(**limits))
    except ValueError as error:
        raise _merge(str(error)) from error


def _merge(reason: str) -> ConfigError:
    return ConfigError(
        f"train.lora: vLLM can't sample with this adapter ({reason}); leave engine.vllm: {{enable_lora: ...}} out, "
        "and it gets merged weights"
    )
