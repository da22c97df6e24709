"""Facts that follow from a model's config alone, before its weights are loaded: its layers, and which of them adapters
reach.

A router chooses the experts of each token. transformers keeps the experts of a layer in two tensors, which are not
linear layers. In some models, PEFT knows them as the linear layers that they once were, and `all-linear` adapts them.
"""

import copy
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.models.find import config_of_model, positions_of_rows
from repl_rl.models.whole import whole_weights

_UNKNOWN_KIND = (ValueError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True, slots=True)
class Adapted:
    """What LoRA reaches of a model."""

    share: float
    """Of the model's weights."""
    parameters: tuple[str, ...]
    """Adapted tensors that are not layers by themselves (experts, routers), named as in one layer of the model."""
    frozen_experts: tuple[str, ...]
    """Experts without adapters, named in the same way."""


def config_alone(path: str) -> Any:
    """transformers' config of the model; None where it is not here, or of a kind that this transformers does not know.
    Raises ModelError."""
    settings = config_of_model(path)
    if settings is None:
        return None
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(**settings)
    except _UNKNOWN_KIND:
        return None


def skeleton(path: str) -> Any:
    """The model without weights, on torch's meta device; None where `config_alone` is. Raises ModelError."""
    config = config_alone(path)
    if config is None:
        return None
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with whole_weights(), torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except _UNKNOWN_KIND:
        return None


def require_trainable(
    model: Any, context_tokens: int, tokens: int | None, coefficient: float | None, adapter: Any
) -> None:
    """`require_one_rotation`, `require_one_loss` and, with an adapter, `require_adapted`, of a model or of the name of
    one to load."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=False) if isinstance(model, str) else model.config
    require_one_rotation(config.get_text_config().to_dict(), context_tokens)
    require_one_loss(config, tokens, coefficient)
    if isinstance(model, str) and getattr(adapter, "peft_type", None) == "LORA":
        require_adapted(model, adapter)


def require_adapted(path: str, adapter: Any) -> Adapted | None:
    """The part of the model at `path` that PEFT's LoraConfig reaches; None if that is not known before it is loaded.

    Raises ConfigError if PEFT refuses the model, and if `all-linear` would leave its experts frozen.
    """
    model = skeleton(path)
    if model is None:
        return None
    import torch
    from peft import get_peft_model

    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    experts = {name for name, weight in model.named_parameters() if "expert" in name and weight.dim() == 3}
    adapter = copy.deepcopy(adapter)
    is_every_layer = adapter.target_modules == "all-linear" and not adapter.target_parameters
    adapter.init_lora_weights = False
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuner = get_peft_model(model, adapter).base_model
    except (ValueError, TypeError) as error:
        if type(error).__name__ == "NoMatchingPeftModuleError":  # the model, once loaded, may have more layers
            return None
        raise ConfigError(f"train.lora: PEFT refuses these arguments for this model: {error}") from error
    total = sum(sizes.values())
    parameters = set(tuner.targeted_parameter_names)
    adapted = parameters | {f"{name}.weight" for name in tuner.targeted_module_names}
    share = sum(sizes[name] for name in adapted & sizes.keys()) / total
    frozen = experts - adapted
    if frozen and is_every_layer:
        frozen_share = sum(sizes[name] for name in frozen) / total
        raise ConfigError(
            f"train.lora: all-linear leaves {frozen_share:.1%} of this model's weights frozen, its experts, because "
            "they are no linear layers; adapt them too with target_parameters: "
            f"[{', '.join(_in_a_layer(frozen))}], or name in target_modules what is to be adapted"
        )
    return Adapted(share, _in_a_layer(parameters), _in_a_layer(frozen))


def require_one_rotation(config: Mapping[str, Any], context_tokens: int) -> None:
    """Raises ConfigError for sessions of so many tokens with a model that the longest row of a batch gives other
    positions. `config` is that of a language model.

    A row's log-probabilities would depend on the rows beside it, and vLLM, which decides by the longest context that it
    may get, would have sampled by others.
    """
    positions = positions_of_rows(config)
    if positions is not None and context_tokens > positions:
        raise ConfigError(
            f"engine.context_tokens is {context_tokens}, and above {positions} tokens the positions of this model are "
            "scaled by the longest session of a batch, so that log-probabilities of all others would change; set it to "
            f"{positions} or less, or train another model"
        )


def require_one_loss(config: Any, tokens: int | None, coefficient: float | None) -> None:
    """Raises ConfigError for passes of so many tokens with the auxiliary loss of a router, which is defined for a whole
    batch.

    `config` is transformers' config of the model. With a coefficient of None, the model's config has it, as in TRL.
    """
    config = config.get_text_config()
    if coefficient is None:
        coefficient = getattr(config, "router_aux_loss_coef", 0.0)
    has_router = hasattr(config, "output_router_logits")
    if tokens is not None and coefficient and has_router:
        raise ConfigError(
            f"micro_batch_tokens={tokens} with the auxiliary loss of this model's router, which is one "
            "of a whole batch: leave that out (train.trl: {router_aux_loss_coef: 0}), or set micro_batch"
        )


def _in_a_layer(names: set[str]) -> tuple[str, ...]:
    """The names without the part up to the number of their layer, each once."""
    names_in_layer = {re.sub(r"^.*?\.\d+\.", "", name) for name in names}
    return tuple(sorted(names_in_layer))
