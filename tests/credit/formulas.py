"""The papers' formulas a second time, symbol by symbol.

Nothing is shared with `repl_rl.credit` but the epsilon's value, and what the critic reads off a state.
"""

import math

import numpy as np
from groups import UNKNOWN, Rewards, Typed, of_lines

from repl_rl.config import CreditConfig
from repl_rl.credit.critic import FEATURES, states_of

EPSILON = 1e-4


def mean(numbers: list[float]) -> float:
    total = 0.0
    for number in numbers:
        total += number
    return total / len(numbers)


def std(numbers: list[float]) -> float:
    """Of a sample: over n - 1."""
    if len(numbers) == 1:
        return 0.0
    total = 0.0
    for number in numbers:
        total += (number - mean(numbers)) ** 2
    return math.sqrt(total / (len(numbers) - 1))


def f_norm(numbers: list[float], config: CreditConfig) -> float:
    return std(numbers) + EPSILON if config.scale == "group" else 1.0


def discounted(rewards: list[float], start: int, gamma: float) -> float:
    total = 0.0
    for k in range(start, len(rewards)):
        total += gamma ** (k - start) * rewards[k]
    return total


def others_mean(numbers: list[list[float]], i: int) -> float | None:
    others = [number for j in range(len(numbers)) if j != i for number in numbers[j]]
    return mean(others) if others else None


def outcome(rewards: Rewards, config: CreditConfig) -> Rewards:
    """DeepSeekMath, equation 3, and its variants; without a scale Dr. GRPO (mean) and RLOO (leave_one_out)."""
    returns = [discounted(r, 0, 1.0) for r in rewards]
    result = []
    for i, r in enumerate(rewards):
        if config.baseline == "mean":
            value = (returns[i] - mean(returns)) / f_norm(returns, config)
        elif config.baseline == "none":
            value = returns[i]
        else:
            baseline = others_mean([[one] for one in returns], i)
            value = 0.0 if baseline is None else (returns[i] - baseline) / f_norm(returns, config)
        result.append([value] * len(r))
    return result


def critic(batch: list[list[list[Typed]]], config: CreditConfig) -> list[list[list[float]]]:
    """Least squares over the other groups' lines, with a row of the identity for each number of the state."""
    result = []
    for number, group in enumerate(batch):
        others = [one for index, other in enumerate(batch) if index != number for one in other]
        states = [state for one in others for state in states_of(of_lines(one))]
        earned = [[line.reward for line in one] for one in others]
        targets = [discounted(own, at, config.gamma) for own in earned for at in range(len(own))]
        rows = np.vstack([np.array(states).reshape(-1, FEATURES), np.eye(FEATURES)])
        weights, *_ = np.linalg.lstsq(rows, np.array([*targets, *[0.0] * FEATURES]))
        of_group = []
        for one in group:
            values = [float(weights @ np.array(state)) for state in states_of(of_lines(one))] + [0.0]
            deltas = [line.reward + config.gamma * values[at + 1] - values[at] for at, line in enumerate(one)]
            of_group.append([discounted(deltas, at, config.gamma * config.lam) for at in range(len(one))])
        result.append(of_group)
    return result


def reinforce_pp(batch: list[list[list[Typed]]], config: CreditConfig) -> list[list[list[float]]]:
    """Hu et al., equations 6 and 7 (5 without a baseline), token by token; groups without variance stay out."""
    first = []
    for group in batch:
        returns = [sum(one.reward for one in typed) for typed in group]
        subtracted = mean(returns) if config.baseline == "mean" else 0.0
        varies = config.baseline == "none" or max(returns) - min(returns) > 1e-9
        first.append([(value - subtracted) if varies else None for value in returns])
    tokens: list[float] = []
    for group, values in zip(batch, first, strict=True):
        for typed, value in zip(group, values, strict=True):
            for one in typed:
                if value is not None:
                    tokens.extend([value] * one.tokens)
    return [
        [
            [0.0 if value is None else (value - mean(tokens)) / (std(tokens) + EPSILON)] * len(typed)
            for typed, value in zip(group, values, strict=True)
        ]
        for group, values in zip(batch, first, strict=True)
    ]


def states(typed: list[Typed], who: int) -> list[str]:
    """The state in which each line began, as told by the lines that ran before it."""
    result, state = [], "start"
    for line, one in enumerate(typed):
        result.append(state)
        if one.left == UNKNOWN or (one.left is None and state.startswith("unknown")):
            state = f"unknown after {who}, {line}"
        elif one.left is not None:
            state = one.left
    return result


def by_lines(group: list[list[Typed]], config: CreditConfig) -> Rewards:
    """The baselines `place` and `state` of return_to_go."""
    returns = [
        [discounted([one.reward for one in typed], k, config.gamma) for k in range(len(typed))] for typed in group
    ]
    begun = [states(typed, who) for who, typed in enumerate(group)]
    result: Rewards = []
    for i, own in enumerate(returns):
        result.append([])
        for line, value in enumerate(own):
            others = [other for j, other in enumerate(returns) if j != i]
            peers = [other[line] if line < len(other) else other[-1] for other in others]
            if config.baseline == "state":
                alike = [
                    returns[j][k]
                    for j in range(len(group))
                    for k in range(len(group[j]))
                    if j != i and begun[j][k] == begun[i][line]
                ]
                peers = alike or peers
            result[i].append(value - mean(peers) if peers else 0.0)
    pool = [value for of_one in result for value in of_one]
    return [[value / f_norm(pool, config) for value in of_one] for of_one in result]


def divided(
    batch: list[list[list[Typed]]], grades: Rewards, values: list[Rewards], config: CreditConfig
) -> list[Rewards]:
    """The scales outcome, floor and batch, where a right answer earns 1."""
    totals = [[sum(one.reward for one in typed) for typed in group] for group in batch]
    everything = [value for of_group in totals for value in of_group]
    result = []
    for of_group, paid, group in zip(totals, grades, values, strict=True):
        divisor = {"floor": max(std(of_group), 0.25), "batch": max(std(everything), 0.25)}.get(config.scale)
        if divisor is None:
            divisor = 1.0 if max(paid) == min(paid) else max(std(paid), 0.25)
        result.append([[value / divisor for value in of_one] for of_one in group])
    return result


def return_to_go(rewards: Rewards, config: CreditConfig) -> Rewards:
    returns = [[discounted(r, line, config.gamma) for line in range(len(r))] for r in rewards]
    pool = [value for of_one in returns for value in of_one]
    result: Rewards = []
    for i in range(len(returns)):
        result.append([])
        for value in returns[i]:
            if config.baseline == "mean":
                result[i].append((value - mean(pool)) / f_norm(pool, config))
            elif config.baseline == "none":
                result[i].append(value)
            else:
                baseline = others_mean(returns, i)
                result[i].append(0.0 if baseline is None else (value - baseline) / f_norm(pool, config))
    return result


def turn(rewards: Rewards, config: CreditConfig) -> Rewards:
    """Zeng et al., equations 10 to 12, with alpha = gamma, over the members that have an intermediate turn l."""
    outcomes = [r[-1] for r in rewards]
    result: Rewards = []
    for i, r in enumerate(rewards):
        result.append([])
        last = len(r) - 1
        for k in range(len(r)):
            total = config.gamma ** (last - k) * (outcomes[i] - mean(outcomes)) / f_norm(outcomes, config)
            for line in range(k, last):
                peers = [other[line] for other in rewards if line < len(other) - 1]
                total += config.gamma ** (line - k) * (r[line] - mean(peers)) / f_norm(peers, config)
            result[i].append(total)
    return result


def gigpo(group: list[list[Typed]], config: CreditConfig) -> Rewards:
    """Feng et al., equations 3 and 5 to 8, on states told by the lines that ran."""
    steps = [
        (i, line, state, discounted([other.reward for other in typed], line, config.gamma))
        for i, typed in enumerate(group)
        for line, state in enumerate(states(typed, i))
    ]
    returns = [sum(one.reward for one in typed) for typed in group]
    result: Rewards = [[] for _ in group]
    for i, _, state, value in steps:
        peers = [peer for _, _, other, peer in steps if other == state]
        episode = (returns[i] - mean(returns)) / f_norm(returns, config)
        step = (value - mean(peers)) / f_norm(peers, config)
        result[i].append(episode + config.omega * step)
    return result


def of_batch(batch: list[list[list[Typed]]], grades: Rewards, config: CreditConfig) -> list[list[list[float]]]:
    """What the estimator of `config` says, scaled and clipped."""
    if config.estimator == "reinforce++":
        values = reinforce_pp(batch, config)
    elif config.estimator == "critic":
        values = critic(batch, config)
    else:
        values = [_of_group(group, config) for group in batch]
        if config.scale in ("outcome", "floor", "batch"):
            values = divided(batch, grades, values, config)
    if config.clip is None:
        return values
    bound = config.clip
    return [
        [[-bound if v < -bound else bound if v > bound else v for v in of_one] for of_one in group] for group in values
    ]


def _of_group(group: list[list[Typed]], config: CreditConfig) -> Rewards:
    rewards = [[one.reward for one in typed] for typed in group]
    if config.estimator == "gigpo":
        return gigpo(group, config)
    if config.baseline in ("place", "state"):
        return by_lines(group, config)
    if config.estimator == "dr_grpo":
        return outcome(rewards, CreditConfig(estimator="outcome", baseline="mean"))
    if config.estimator in ("rloo", "branch"):  # the latter without forks
        return outcome(rewards, CreditConfig(estimator="outcome", baseline="leave_one_out"))
    if config.estimator == "maxrl":
        center = mean([sum(r) for r in rewards])
        of_one_right = 1.0 / len(rewards)
        divisor = center if center > of_one_right else of_one_right
        return [[(sum(r) - center) / divisor] * len(r) for r in rewards]
    return {"outcome": outcome, "return_to_go": return_to_go, "turn": turn}[config.estimator](rewards, config)
