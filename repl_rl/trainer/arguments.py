"""TRL's arguments, extended by the sections of our config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from trl import GRPOConfig

from repl_rl.config import (
    BudgetConfig,
    CreditConfig,
    DialectConfig,
    EngineConfig,
    KernelConfig,
    RewardsConfig,
    SamplingConfig,
    Section,
    parse_config,
)
from repl_rl.errors import ConfigError

SECTIONS: dict[str, type[Section]] = {
    "dialect": DialectConfig,
    "kernel": KernelConfig,
    "engine": EngineConfig,
    "budget": BudgetConfig,
    "rewards": RewardsConfig,
    "credit": CreditConfig,
}


@dataclass
class ReplGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's arguments, and the sections of our YAML file, each as its model or as a mapping.

    Differs from TRL's defaults: token-level importance sampling between sampler and trainer (TRL's sequence level
    drops long sessions), `max_completion_length` follows `budget.tokens`, and memory is pinned where there is a GPU.
    """

    dialect: Any = field(default_factory=DialectConfig)
    kernel: Any = field(default_factory=KernelConfig)
    engine: Any = field(default_factory=EngineConfig)
    budget: Any = field(default_factory=BudgetConfig)
    rewards: Any = field(default_factory=RewardsConfig)
    credit: Any = field(default_factory=CreditConfig)
    chat: bool | None = None
    rollout_dir: str | None = None
    """Folder for `step_00012.jsonl` files; None keeps no rollouts."""
    redraws: int = 0
    """How many times a step's groups without variance are rolled out again with other tasks; each time costs another
    rollout of those groups. See `repl_rl.trainer.redraw`."""
    mask_overlong: bool = False
    """Leave trajectories that a budget ended out of the loss, but not out of their group's baseline (Yu et al. 2025,
    DAPO, section 3.4). TRL's `mask_truncated_completions` is refused."""
    vllm_importance_sampling_mode: str = "token_truncate"
    dataloader_pin_memory: bool = field(default_factory=torch.cuda.is_available)

    def __post_init__(self) -> None:
        for name, model in SECTIONS.items():
            value = getattr(self, name)
            setattr(self, name, value if isinstance(value, model) else getattr(parse_config({name: value}), name))
        parse_config({name: getattr(self, name) for name in SECTIONS})  # checks across sections
        if self.redraws < 0:
            raise ConfigError(f"redraws is {self.redraws}; it has to be 0 (off) or more")
        self.max_completion_length = self.budget.tokens
        if self.mask_truncated_completions:
            raise ConfigError(
                "mask_truncated_completions masks whatever doesn't end in an end token, which is nearly every session; "
                "set mask_overlong (train.mask_overlong in the file): it masks what a budget ended"
            )
        if self.use_vllm:
            raise ConfigError("use_vllm=True asks for TRL's own engine; leave it out, repl_rl brings vLLM itself")
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        """JSON types only, as the Hugging Face trainer stores it."""
        record = {**super().to_dict()}
        return {**record, **{name: getattr(self, name).model_dump(mode="json") for name in SECTIONS}}

    @property
    def sampling(self) -> SamplingConfig:
        return SamplingConfig(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
