"""Our credit in verl: importing this module registers our estimators, as `repl_rl/rloo` and so on.

    VERL_USE_EXTERNAL_MODULES=repl_rl.integrations.verl python -m verl.trainer.main_ppo \\
        algorithm.adv_estimator=repl_rl/return_to_go +algorithm.repl_rl.baseline=place ...

verl imports the modules of that variable in every process that imports verl, its Ray workers among them, before a
config is read. The keys of our section `credit` stand in `algorithm.repl_rl`.

verl gives an estimator rewards on tokens, the mask of sampled tokens, and the uid of each row's prompt. A turn is a run
of sampled tokens, and earned what stands on its tokens and on those after it, up to the next turn. That of the last
turn is taken for the outcome.

Not covered: `gigpo` and `baseline: state`, because verl gives no states, and `branch`. `critic` sees the other prompts
of a batch and forgets them after it. A right answer is taken to earn 1.

Written against verl 0.9.1 (`verl/trainer/ppo/ray_trainer.py:compute_advantage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError
from verl.trainer.ppo.core_algos import register_adv_est

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import ESTIMATOR_RECORDS, Trees
from repl_rl.errors import ConfigError
from repl_rl.integrations.credit import token_advantages, turn_rewards_of, turn_spans

PREFIX = "repl_rl/"
SECTION = "repl_rl"
"""The key of verl's section `algorithm` that holds ours."""


def verl_advantages(
    estimator: str,
    *,
    token_level_rewards: Any,
    response_mask: Any,
    index: Any = None,
    config: Any = None,
    **_: Any,
) -> tuple[Any, Any]:
    """What verl calls: advantages per token (B, T), twice, because verl's estimators return returns as well.

    Raises ConfigError if verl's config says something that our estimator does not take.
    """
    if index is None:
        raise ConfigError(
            "verl gave no uid with its rows, and credit is given in groups; say which prompt each row has"
        )
    credit = _credit_of(estimator, config)
    masks = response_mask.tolist()
    rewards = []
    for row_mask, row_rewards in zip(masks, token_level_rewards.tolist(), strict=True):
        rewards.append(turn_rewards_of(row_rewards, turn_spans(row_mask)))
    # As lists, which keep the precision of verl's rewards.
    advantages = token_level_rewards.new_tensor(token_advantages(masks, index, credit, rewards=rewards))
    return advantages, advantages


def _credit_of(estimator: str, config: Any) -> CreditConfig:
    """Our section, from verl's `algorithm`."""
    options: Mapping[str, Any] = {}
    if config is not None:
        options = config.get(SECTION) or {}
        gamma = config.get("gamma", 1.0)
        if gamma != 1.0:
            raise ConfigError(
                f"algorithm.gamma is {gamma}, verl's discount of a token; {PREFIX}{estimator} discounts turns: leave "
                f"it at 1.0, and say +algorithm.{SECTION}.gamma={gamma} if that is meant"
            )
    try:
        credit = CreditConfig(**{**options, "estimator": estimator})
    except ValidationError as error:
        problems = "; ".join(problem["msg"] for problem in error.errors())
        raise ConfigError(f"algorithm.{SECTION} {dict(options)}: {problems}") from error
    if credit.baseline == "state":
        raise ConfigError(
            f"algorithm.{SECTION}.baseline is state, and verl says of no turn in which state it began; take place"
        )
    return credit


def register() -> list[str]:
    """Register our estimators with verl. Returns their names there."""
    names = []
    for estimator, record in ESTIMATOR_RECORDS.items():
        if record.compares_states or record.trees is Trees.REQUIRED:
            continue
        register_adv_est(PREFIX + estimator)(partial(verl_advantages, estimator))
        names.append(PREFIX + estimator)
    return names


NAMES = register()
