"""GiGPO: compares a trajectory with its group, and a line with the lines that began in the same interpreter state.

    R_i = sum_l r_{i,l}                              AE_i = (R_i - mean_j R_j) / (std_j R_j + 1e-4)
    G_{i,l} = sum_{k >= l} gamma^(k - l) r_{i,k}     AS_{i,l} = (G_{i,l} - mean G) / (std G + 1e-4)
    A_{i,l} = AE_i + omega AS_{i,l}

where mean and std of AS run over all lines of the group, in any trajectory, that have the same anchor state. Feng et
al. 2025, Group-in-Group Policy Optimization, equations 3 and 5 to 8. `scale: false` is its F_norm = 1. A line that
shares its anchor with no other line has AS = 0.

The anchor of a line is the last fingerprint before it, plus what has been typed of an open cell since. Before the first
fingerprint it is the start. Comments and blank lines outside a cell leave it as it is. After a line that ran without
reporting a fingerprint the state is unknown until the next one: lines there share their anchor with no other line.

Approximate: states count as equal if names are bound to equal values (kernels/python/repl_fingerprint.py says what that
misses). The policy also sees the transcript, comments and outputs included, which differs among lines of one anchor.
A later state equal to that at the start counts as a different one, because the start has no fingerprint.

Biased: how many lines share an anchor depends on what was typed. With `gamma: 1`, `scale: false`, a group of two and a
policy that sees only the state, AS alone gives d / 2 times the exact gradient in each state that no trajectory visits
twice, where d is the share of trajectories that visit it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative, relative_returns
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import LineKind, Trajectory

Anchor = tuple[str, str]
"""Fingerprint ("" for the start), and the text of an open cell."""

_DID_NOT_RUN = (LineKind.BLANK, LineKind.COMMENT, LineKind.OPEN, LineKind.OVERLONG)


def gigpo(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    episode = relative_returns(rewards, "mean", config.scale)
    step = _step_advantages(group, [discounted_returns(values, config.gamma) for values in rewards], config.scale)
    return [
        [whole + config.omega * line for whole, line in zip(*of_one, strict=True)]
        for of_one in zip(episode, step, strict=True)
    ]


def anchors(trajectory: Trajectory) -> list[Anchor | None]:
    """The state in which each line began; None if it is unknown."""
    states: list[Anchor | None] = []
    fingerprint: str | None = ""
    typed = ""
    for line in trajectory.lines:
        states.append(None if fingerprint is None else (fingerprint, typed))
        if line.fingerprint is not None or line.kind not in _DID_NOT_RUN:
            fingerprint, typed = line.fingerprint, ""
        elif typed or line.kind is LineKind.OPEN:
            typed += line.text
    return states


def _step_advantages(group: Sequence[Trajectory], returns: Sequence[Sequence[float]], scale: bool) -> list[list[float]]:
    advantages = [[0.0] * len(values) for values in returns]
    members: defaultdict[Anchor, list[tuple[int, int]]] = defaultdict(list)
    for index, trajectory in enumerate(group):
        for line, anchor in enumerate(anchors(trajectory)):
            if anchor is not None:
                members[anchor].append((index, line))
    for places in members.values():
        compared = relative([[returns[index][line]] for index, line in places], "mean", scale)
        for (index, line), (advantage,) in zip(places, compared, strict=True):
            advantages[index][line] = advantage
    return advantages
