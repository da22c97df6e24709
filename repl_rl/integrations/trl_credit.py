"""Credit per turn for TRL's own `GRPOTrainer`, instead of one advantage per session.

    class Trainer(TurnCredit, GRPOTrainer):
        ...

    trainer = Trainer(
        ...,                                    # tools, environment_factory, reward_funcs, as usual
        credit=CreditConfig(estimator="return_to_go"),
        turn_rewards=my_rewards,                # a list of numbers for each completion, one per turn
    )

What `reward_funcs` pay, weighted as TRL weighs it, is a session's outcome. A session for which all of them return None
is void. A turn is what the model sampled between two answers of tools.

Loop, masks and loss stay TRL's. `scale_rewards` means nothing here: what divides an advantage is `credit.scale`. In
TRL's log, `frac_reward_zero_std` and the table's column `advantage` still show what TRL itself had computed.

Written against TRL 1.16. Not covered: a critic's memory is not in TRL's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object

from repl_rl.config import CreditConfig
from repl_rl.errors import ConfigError
from repl_rl.integrations.credit import Session, Span, check_credit, spread_over, turn_advantages, turn_spans
from repl_rl.utils.user_code import Seam, boundary, failure

if TYPE_CHECKING:
    from trl import GRPOTrainer as Trainer
else:
    Trainer = object

TurnFunction = Callable[..., Sequence[Sequence[Any]]]
"""Called by keyword with what TRL's reward functions get: prompts, completions, completion_ids, environments,
trainer_state and the columns of the data set; and with `turn_spans`, the tokens of each turn in completion_ids. Returns
a list per completion, with one value per turn."""


class TurnCredit(Trainer):  # type: ignore[misc, unused-ignore]
    """Stands before `GRPOTrainer`, or a class of its kind, among the bases of a trainer.

    `turn_rewards` returns what each turn earned besides the outcome, by default nothing, and `turn_states` in which
    state each turn began (`repl_rl.integrations.credit.Session`). Raises ConfigError, before a model is loaded, if the
    estimator needs something else.
    """

    def __init__(
        self,
        *args: Any,
        credit: CreditConfig | None = None,
        turn_rewards: TurnFunction | None = None,
        turn_states: TurnFunction | None = None,
        **kwargs: Any,
    ) -> None:
        self.credit = credit or CreditConfig()
        check_credit(self.credit, has_states=turn_states is not None, argument="turn_states")
        self.turn_rewards = turn_rewards
        self.turn_states = turn_states
        self.critic = None
        if self.credit.estimator == "critic":
            from repl_rl.credit.critic import Critic

            self.critic = Critic()
        # Between TRL's methods, within one call of `_generate_and_score_completions`.
        self._turns: list[list[Span]] = []
        self._advantages: list[list[float]] = []
        super().__init__(*args, **kwargs)
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"multi_objective_aggregation is {self.multi_objective_aggregation!r}, which normalises each reward by "
                "itself; credit per turn takes their weighted sum: leave it at 'sum_then_normalize'"
            )

    def _generate(self, prompts: list[Any]) -> Any:
        generated = super()._generate(prompts)
        _, completion_ids, tool_masks, *_ = generated
        if tool_masks is None:
            tool_masks = [[1] * len(ids) for ids in completion_ids]
        self._turns = [turn_spans(mask) for mask in tool_masks]
        return generated

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        """TRL's rewards of all processes, from which, with those of turns, advantages follow."""
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        columns = {key: [row[key] for row in inputs] for key in inputs[0] if key not in ("prompt", "completion")}
        columns |= {"prompts": prompts, "completions": completions, "completion_ids": completion_ids_list}
        columns |= {"trainer_state": self.state, "turn_spans": self._turns}
        if self.environments is not None:
            columns["environments"] = self.environments
        turn_rewards = per_turn(self.turn_rewards, self._turns, columns, float)
        turn_states = per_turn(self.turn_states, self._turns, columns, state_text)
        turns_of_processes = gather_object(list(zip(self._turns, turn_rewards, turn_states, strict=True)))

        generations = self.num_generations if self.model.training else self.num_generations_eval
        weighted = rewards * self.reward_weights.to(rewards.device)  # (rows of all processes, reward functions)
        outcomes = weighted.nansum(dim=1)
        outcomes[rewards.isnan().all(dim=1)] = torch.nan  # nobody could grade these
        sessions = []
        for row, (spans, values, states) in enumerate(turns_of_processes):
            token_counts = [end - start for start, end in spans]
            turn_values = [0.0] * len(spans) if values is None else values
            sessions.append(Session(row // generations, token_counts, turn_values, outcomes[row].item(), states))
        if generations == 1:  # in an evaluation, where TRL has no advantages either
            advantages = [[0.0] * len(session.token_counts) for session in sessions]
        else:
            critic = self.critic if self.model.training else None  # which is to remember what is trained on alone
            advantages = turn_advantages(sessions, self.credit, critic=critic)
        first = self.accelerator.process_index * len(prompts)
        self._advantages = advantages[first : first + len(prompts)]
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        ids = batch["completion_ids"]  # (B, T), padded on the right
        rows = []
        for spans, values in zip(self._turns, self._advantages, strict=True):
            rows.append(spread_over(spans, values, ids.shape[1]))
        batch["advantages"] = torch.tensor(rows, dtype=torch.float32, device=ids.device)
        return batch


def per_turn(
    function: TurnFunction | None, turns: Sequence[Sequence[Span]], columns: dict[str, Any], read: Callable[[Any], Any]
) -> list[Any]:
    """What the user's function says of the turns of each completion, each value by `read`; None for each completion if
    there is no function. Raises RewardError if it fails, or returns another number of values than there are turns."""
    if function is None:
        return [None] * len(turns)
    with boundary(Seam.TURN_VALUES, function):
        values = [[read(value) for value in turn_values] for turn_values in function(**columns)]
    counts = [len(spans) for spans in turns]
    returned = [len(turn_values) for turn_values in values]
    if returned != counts:
        text = f"returned {returned} values for completions of {counts} turns"
        raise failure(Seam.TURN_VALUES, function, text)
    return values


def state_text(state: Any) -> str | None:
    """A state as a text; None if it is unknown."""
    return None if state is None else str(state)
