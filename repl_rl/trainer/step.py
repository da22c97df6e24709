"""A batch on its way through TRL: from the rows that it draws to the tensors that its loss gets.

B batch, T completion tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.trainer.utils import pad

from repl_rl.config.train import MaskConfig
from repl_rl.rewards import ScoredTrajectory
from repl_rl.rollout.score import CreditedTrajectory
from repl_rl.trainer.mask import within_ratios
from repl_rl.trainer.rows import Row, token_advantages
from repl_rl.trajectory import Trajectory, whole_session

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

    def leave_out(
        self, output: dict[str, Any], mask: MaskConfig, is_out: Callable[[Trajectory], bool], group_size: int
    ) -> list[bool]:
        """Take what the mask leaves out, and what it asked, out of the loss: out of the masks, and of old and reference
        log-probabilities. Returns whether each trajectory that is not void is left out; void ones are in no loss, and
        nobody is asked about them.

        A session stays or goes with all its rows. A branch is judged as the whole session, and lines that it shares
        with others stay if one of those stays.
        """
        typed, out = typed_of(output), self._left_out(is_out, group_size)
        stays: dict[int, bool] = {}
        for row in self.rows:
            is_overlong_subcall = row.session != row.owner and mask.overlong and row.part.is_overlong
            stays[row.session] = not out[row.owner] and not is_overlong_subcall
        if mask.needs_ratios:
            apart = (output["old_per_token_logps"] - output["sampling_per_token_logps"]) * typed
            for session, places in self._places(group_size).items():
                logs, were_typed = (torch.cat([each[row, :end] for row, end in places]) for each in (apart, typed))
                stays[session] &= bool(within_ratios(mask, logs[None], were_typed[None]))
        kept = torch.zeros_like(typed)  # (B, T)
        for index, row in enumerate(self.rows):
            kept[index] = int(stays[row.session])
        for index, end in self._shared_ends(stays, group_size).items():
            kept[index, :end] = 1
        output["tool_mask"] = output["tool_mask"] * kept.to(output["tool_mask"])
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            if output.get(name) is not None:
                output[name] = output[name] * output["tool_mask"]
        return [not stays[index] for index, trajectory in enumerate(self.trajectories) if not trajectory.is_void]

    def _left_out(self, is_out: Callable[[Trajectory], bool], group_size: int) -> list[bool]:
        """Whether each trajectory is left out by what became of it."""
        out = []
        for index, trajectory in enumerate(self.trajectories):
            start = index - index % group_size
            group = self.trajectories[start : start + group_size]
            out.append(not trajectory.is_void and is_out(whole_session(trajectory, group)))
        return out

    def _places(self, group_size: int) -> dict[int, list[tuple[int, int]]]:
        """Where each session was typed: rows, and how many of their tokens. A branch begins in its parent's row."""
        places: dict[int, list[tuple[int, int]]] = {}
        for index, row in enumerate(self.rows):
            places.setdefault(row.session, []).append((index, len(row.part.completion_ids)))
        for index in range(len(self.scored)):
            if (begun := self._begun(index, group_size)) is not None:
                places[index].insert(0, begun)
        return places

    def _begun(self, index: int, group_size: int) -> tuple[int, int] | None:
        """The root that a trajectory branched off, and how many of the root's tokens it begins with; None for others.
        Branches don't fork."""
        branch = self.trajectories[index].branch
        if branch is None or not branch.line:
            return None
        root = index - index % group_size + branch.parent
        return root, self.trajectories[root].lines[branch.line - 1].end

    def _shared_ends(self, stays: Mapping[int, bool], group_size: int) -> dict[int, int]:
        """How many tokens of each root are the beginning of a branch that stays."""
        ends: dict[int, int] = {}
        for index, trajectory in enumerate(self.trajectories):
            begun = self._begun(index, group_size)
            if begun is not None and stays[index] and not trajectory.is_void:
                root, end = begun
                ends[root] = max(end, ends.get(root, 0))
        return ends


def typed_of(output: dict[str, Any]) -> torch.Tensor:
    """The mask of typed tokens, (B, T), of a batch as TRL's loss gets it."""
    typed: torch.Tensor = output["completion_mask"] * output["tool_mask"]
    return typed


def keep_rewards(inputs: Sequence[dict[str, Any]], rewards: torch.Tensor) -> None:
    """Put its rewards, (functions,), into each row, for `Step.rewards`."""
    for row, values in zip(inputs, rewards, strict=True):
        row[_REWARDS] = values
