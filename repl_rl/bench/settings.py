"""How much each bench measures. Importing this loads nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from repl_rl.errors import ConfigError

Say = Callable[[str], None]
"""Is told of the progress."""
FEW = 16
"""The number of sessions that many sessions are compared with."""
LINE_S = 1.0
"""Time limit of a line that a model typed. Now and then nano types something like `9 ** 9 ** 9`, and the whole batch
would wait for it."""


def _setting(usual: Any, quick: Any, about: str = "", least: int = 1) -> Any:
    """A setting, and its value under `--quick`. With a text about it, it has a flag, for numbers from `least` on."""
    return field(default=usual, metadata={"quick": quick, "about": about, "least": least})


@dataclass(frozen=True, slots=True)
class KernelsSettings:
    """Sessions of a kernel pool beside stock Jupyter kernels. Raises ConfigError for an invalid `many`."""

    sessions: int = _setting(64, 8, "live sessions")
    rounds: int = _setting(5, 2, "how often both take their turn")
    stock_kernels: int | None = _setting(None, 2, "default: as many as cores and memory allow")
    many: int = _setting(512, 32, "sessions of the last part, 0: none", least=0)
    starts: int = _setting(3, 1)
    """Per round, like all that follow. Lines are per session."""
    solo_lines: int = _setting(225, 45)
    raises: int = _setting(20, 5)
    fleet_lines: int = _setting(90, 27)
    many_lines: int = _setting(18, 9)
    many_rounds: int = _setting(3, 1)
    forks: int = _setting(30, 5)
    """In all, as of the lines run again."""

    def __post_init__(self) -> None:
        if self.many != 0 and self.many <= FEW:
            raise ConfigError(f"--many {self.many}: give more than {FEW}, or 0 to leave that part out")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Rollouts beside plain generation."""

    trajectories: int = _setting(256, 16, "in a batch")
    concurrency: int = _setting(64, 8, "lines in the engine's batch")
    """For both sides."""
    kernels: int = _setting(128, 12, "trajectories in flight")
    """While one runs a line, another samples in its slot."""
    lines: int = _setting(16, 4, "of each trajectory")
    line_tokens: int = _setting(48, 48)
    rounds: int = _setting(5, 1, "how often both take their turn")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Loss and gradient beside TRL's own."""

    trajectories: int = _setting(16, 4, "in a batch")
    group_size: int = _setting(1, 1, "how many of them have the same prompt")
    prompt_tokens: int = _setting(40, 40, "of the longest prompt")
    """The shortest has half of it."""
    tokens: int = _setting(256, 80, "of the longest completion", least=40)
    """The shortest has a quarter of it, a line at least."""
    rounds: int = _setting(3, 1, "how often both take their turn")
    vocabularies: tuple[int | None, ...] = _setting((None, 150_000), (None, 2_000))
    """Vocabulary sizes. None is nano's own; a larger one gets new, random rows."""
