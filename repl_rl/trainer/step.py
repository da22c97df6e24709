"""A batch on its way through TRL: from the rows that it draws to the tensors that its loss gets.

B batch, T completion tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.trainer.utils import pad

from repl_rl.config.train import MaskConfig
from repl_rl.rewards import ScoredTrajectory
from repl_rl.rollout.score import CreditedTrajectory
from repl_rl.trainer.mask import within_ratios
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

    def leave_out(self, output: dict[str, Any], mask: MaskConfig, is_out: Callable[[Trajectory], bool]) -> list[bool]:
        """Take what the mask leaves out, and what it asked, out of the loss: out of the masks, and of old and reference
        log-probabilities. Returns whether each trajectory is left out."""
        out = list(map(is_out, self.trajectories))
        kept = [not (out[row.owner] or (mask.overlong and row.part.is_overlong)) for row in self.rows]
        typed = typed_of(output)
        is_kept = torch.tensor(kept + [False] * (len(self.lists) - len(kept)), device=typed.device)  # (B,)
        if mask.needs_ratios:
            apart = (output["old_per_token_logps"] - output["sampling_per_token_logps"]) * typed
            is_kept &= within_ratios(mask, apart, typed)
        output["tool_mask"] = output["tool_mask"] * is_kept[:, None].to(output["tool_mask"])  # (B, T)
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            if output.get(name) is not None:
                output[name] = output[name] * output["tool_mask"]
        return [not kept for kept in is_kept[: len(self.scored)].tolist()]


def typed_of(output: dict[str, Any]) -> torch.Tensor:
    """The mask of typed tokens, (B, T), of a batch as TRL's loss gets it."""
    typed: torch.Tensor = output["completion_mask"] * output["tool_mask"]
    return typed


def keep_rewards(inputs: Sequence[dict[str, Any]], rewards: torch.Tensor) -> None:
    """Put its rewards, (functions,), into each row, for `Step.rewards`."""
    for row, values in zip(inputs, rewards, strict=True):
        row[_REWARDS] = values
