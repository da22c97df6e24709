"""What is measured, where it is kept, and which estimators are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from repl_rl.config import Config, CreditConfig, load_config
from repl_rl.errors import ConfigError

_OWN = "studies.credit_noise.estimators"
ESTIMATORS = {
    "place": CreditConfig(),
    "state": CreditConfig(baseline="state"),
    "shrunk": CreditConfig(estimator=f"{_OWN}:shrunk"),
    "none": CreditConfig(baseline="none"),
}
"""Of which the gradient of all adapters is taken. `place`, the first, is what the others are compared with."""
EXPLORED = ESTIMATORS | {
    "shrunk by four": CreditConfig(estimator=f"{_OWN}:shrunk_by_four"),
    "by session": CreditConfig(estimator=f"{_OWN}:by_session"),
    "shrunk by session": CreditConfig(estimator=f"{_OWN}:shrunk_by_session"),
    "leave_one_out": CreditConfig(baseline="leave_one_out"),
    "gigpo": CreditConfig(estimator="gigpo", scale="none"),
    "turn": CreditConfig(estimator="turn"),
    "critic": CreditConfig(estimator="critic"),
}
"""Of which that of the last `down_proj` is taken."""
GROUPS = 2
"""Independent groups of a problem."""


@dataclass(frozen=True)
class NoiseSettings:
    """Raises ConfigError for invalid counts and config values."""

    folder: Path = Path("noise")
    config: str = "qwen-coder-0.5b"
    adapter: Path | None = None
    """A checkpoint of a run with LoRA; None for fresh adapters."""
    problems: int = 100
    first: int = 0
    """The number of the first of the problems: other numbers are fresh ones."""
    rewards: str = "none"
    """The preset of what is paid besides the outcome. The sessions are the same whatever it is."""
    settings: str = ""

    def __post_init__(self) -> None:
        if self.problems < 1 or self.first < 0:
            raise ConfigError(f"--problems {self.problems} from --first {self.first}: give at least 1, from 0 or more")
        if self.adapter is not None and not (self.adapter / "adapter_config.json").is_file():
            raise ConfigError(f"--adapter {self.adapter}: no adapter_config.json there; give a checkpoint with LoRA")
        if self.loaded.train.lora is None:
            raise ConfigError(f"--config {self.config}: gradients are those of adapters, and train.lora is not set")

    @cached_property
    def loaded(self) -> Config:
        return load_config(self.config, (f"rewards={self.rewards}", *self.settings.split()))

    @property
    def sessions(self) -> Path:
        return self.folder / "sessions.jsonl"

    def products(self, number: int) -> Path:
        """The file with the inner products of a problem, by its number among those of this call."""
        return self.folder / f"products-{self.rewards}" / f"{self.first + number:04}.npz"


DEFAULT = NoiseSettings()
QUICK = NoiseSettings(
    config="quickstart",
    problems=2,
    settings="train.lora.r=4 train.group_size=4 engine.backend=transformers kernel.size=4",
)
