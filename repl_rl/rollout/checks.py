"""What sessions need of this machine and of what the user brings: one list, for every way that leads to a session.

A command and its dry run, a trainer made in Python and a notebook go through it before a model is loaded. What the keys
of a config say of each other is checked where they are read (`repl_rl.config`), and what a model's vocabulary decides
in `RolloutSetup.for_model`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.config import Config, EngineConfig
from repl_rl.dialect import require_dialect
from repl_rl.engine.factory import require_engine
from repl_rl.errors import ConfigError
from repl_rl.kernel.pool import require_backend
from repl_rl.models.find import config_of_model, positions_of, positions_of_rows
from repl_rl.rewards import RewardFunction, RewardTable
from repl_rl.rollout.scoring import reward_table
from repl_rl.rollout.setup import Extensions, limits_of, load_extensions
from repl_rl.rollout.tree import fork_rule


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks have made. It is handed on, so that nothing is made, and no function of a user's tried, twice."""

    extensions: Extensions
    table: RewardTable


def check_rollouts(
    sections: Config | Any, extensions: Extensions | None = None, line_rewards: Sequence[RewardFunction] = ()
) -> Checked:
    """Raises a ReplRLError that says what to change.

    `sections` is a config, whose extensions are those that it names unless they are given; or with `extensions` a
    trainer's arguments, which have its sections. `line_rewards` are further reward functions.
    """
    require_engine(sections.engine)
    require_backend(sections.kernel.backend, sections.kernel.sandbox)
    limits_of(sections.kernel)
    require_dialect(sections.dialect)
    extensions = load_extensions(sections) if extensions is None else extensions
    extensions.require(sections.dialect, sections.kernel, sections.branch)
    table = reward_table(sections.rewards, sections.credit, line_rewards)
    if isinstance(sections, Config):
        require_positions(sections.model.path, sections.engine)
    if sections.branch is not None:
        fork_rule(sections.branch.at)
    return Checked(extensions, table)


def require_positions(model: str, engine: EngineConfig) -> None:
    """Raises ConfigError for a context of more tokens than the model has positions, as far as they are known here.
    Servers and engines of one's own have limits of their own, and vLLM may be told of other positions."""
    if engine.servers or ":" in engine.backend or "hf_overrides" in engine.vllm:
        return
    config = config_of_model(model) or {}
    positions = positions_of(config)
    if positions is not None and engine.context_tokens > positions:
        raise ConfigError(
            f"engine.context_tokens is {engine.context_tokens}, and the model {model} has {positions} positions; set "
            f"it to {positions} or less, or take another model"
        )
    rows_positions = positions_of_rows(config)
    if engine.backend == "transformers" and rows_positions is not None and engine.context_tokens > rows_positions:
        raise ConfigError(
            f"engine.context_tokens is {engine.context_tokens}, and the transformers engine has {rows_positions} "
            f"positions for the model {model}: in longer rows, each would change the numbers of the others; set it to "
            f"{rows_positions} or less, or sample with vLLM (engine: vllm)"
        )
