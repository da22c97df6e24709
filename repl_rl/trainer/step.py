"""A batch on its way through TRL: from the rows that it draws to the tensors that its loss gets.

B batch, T completion tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from trl.trainer.utils import pad

from repl_rl.rewards import ScoredTrajectory
from repl_rl.rollout.score import CreditedTrajectory
from repl_rl.trainer.rows import Row, token_advantages
from repl_rl.trajectory import Trajectory

_REWARDS = "rewards_per_func"
"""A column that only lives from `keep_rewards` to `Step.rewards`."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one process sampled for a step, or for a batch of an evaluation.

    `inputs` are rows of the data set, one for each of the `scored` trajectories; TRL's reward functions get their
    columns. `rows` are what is trained (`rows_of`), the first rows of the trajectories first. `lists` are TRL's lists
    of these, and then void ones, which make the batch as large in all processes.
    """

    inputs: list[dict[str, Any]]
    scored: list[ScoredTrajectory]
    rows: list[Row]
    lists: list[dict[str, Any]]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [item.trajectory for item in self.scored]

    @property
    def typed_mask(self) -> torch.Tensor:
        """(B, T), of all rows."""
        return pad([torch.tensor(row["env_mask"]) for row in self.lists], padding_value=0)

    def sampled(self) -> dict[str, Any]:
        """What TRL's `rollout_func` has to return, one entry per trajectory, and the other rows as `further`."""
        own = self.lists[: len(self.scored)]
        return {key: [row[key] for row in own] for key in own[0]} | {"further": self.lists[len(own) :]}

    def rewards(self) -> torch.Tensor:
        """What each of the reward functions gave, (trajectories, functions), once they have been called."""
        return torch.stack([row.pop(_REWARDS) for row in self.inputs])

    def put_advantages(self, output: dict[str, Any], credited: Sequence[CreditedTrajectory]) -> None:
        """Replace TRL's advantages by those of lines, (B, T)."""
        output["advantages"] = token_advantages(self.rows, credited, output["completion_ids"])

    def mask_overlong(self, output: dict[str, Any], accelerator: Accelerator) -> None:
        """Take trajectories that a budget ended, and what they asked, out of the loss: out of the mask and out of the
        token count that normalizes it."""
        kept = [not (self.scored[row.owner].trajectory.is_overlong or row.part.is_overlong) for row in self.rows]
        is_kept = torch.tensor(kept + [False] * (len(self.lists) - len(kept)))  # (B,)
        output["tool_mask"] = output["tool_mask"] * is_kept[:, None].to(output["tool_mask"])  # (B, T)
        typed_tokens = typed_of(output).sum()
        output["num_items_in_batch"] = accelerator.gather(typed_tokens).sum()
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            if output.get(name) is not None:
                output[name] = output[name] * output["tool_mask"]


def typed_of(output: dict[str, Any]) -> torch.Tensor:
    """The mask of typed tokens, (B, T), of a batch as TRL's loss gets it."""
    typed: torch.Tensor = output["completion_mask"] * output["tool_mask"]
    return typed


def keep_rewards(inputs: Sequence[dict[str, Any]], rewards: torch.Tensor) -> None:
    """Put its rewards, (functions,), into each row, for `Step.rewards`."""
    for row, values in zip(inputs, rewards, strict=True):
        row[_REWARDS] = values
