"""Baselines that are compared and do not ship, as estimators: `studies.credit_noise.estimators:shrunk` and so on.

All of them subtract from a line's return to go something that does not depend on what the line typed, so all have the
expected gradient of `return_to_go`, and differ in noise alone. Write m for the mean of the other sessions' returns at
the line's number (`baseline: place`), and s for the returns of the other sessions' lines that began in the same
interpreter state, n of them.

`shrunk`: (sum of s + m) / (n + 1), the state's mean as far as there is one, drawn towards that of the place.
`shrunk_by_four`: (sum of s + 4 m) / (n + 4).
`by_session`: the mean over sessions of each session's own mean of s, where a session with several lines in the state
(comments leave it as it is) counts once; m where there are none.
`shrunk_by_session`: as `shrunk`, with one value for each session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import beside_position, same_state
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import Trajectory

Rewards = Sequence[Sequence[float]]
LineValues = list[list[float]]
States = Mapping[Any, Sequence[tuple[int, int]]]
"""The lines that began in each state, as indices of session and line."""


def shrunk(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> LineValues:
    return towards_place(rewards, same_state(group), config.gamma, weight=1, once=False)


def shrunk_by_four(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> LineValues:
    return towards_place(rewards, same_state(group), config.gamma, weight=4, once=False)


def by_session(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> LineValues:
    return towards_place(rewards, same_state(group), config.gamma, weight=0, once=True)


def shrunk_by_session(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> LineValues:
    return towards_place(rewards, same_state(group), config.gamma, weight=1, once=True)


def towards_place(rewards: Rewards, states: States, gamma: float, *, weight: int, once: bool) -> LineValues:
    """Returns of a group less the mean of those in the same state, in which the mean at the place counts as `weight`
    further values. With `once`, each other session counts once, with its own mean."""
    returns = [discounted_returns(values, gamma) for values in rewards]
    advantages = beside_position(returns, "none")
    for alike in states.values():
        of_session: defaultdict[int, list[float]] = defaultdict(list)
        for index, line in alike:
            of_session[index].append(returns[index][line])
        for index, line in alike:
            others = [values for other, values in of_session.items() if other != index]
            compared = list(chain.from_iterable(others))
            if once:
                compared = [fmean(values) for values in others]
            if compared:
                own = returns[index][line]
                at_place = own - advantages[index][line]
                advantages[index][line] = own - (sum(compared) + weight * at_place) / (len(compared) + weight)
    return advantages
