"""What a config pays and how that becomes advantages, in words; and which of its settings do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from repl_rl.config import Config, CreditConfig, EngineConfig, RewardsConfig, TrainConfig
from repl_rl.config.rewards import ShapingConfig
from repl_rl.trajectory import LineKind

_RUN_NOTHING = (LineKind.BLANK, LineKind.COMMENT, LineKind.OPEN, LineKind.OVERLONG)
"""Kinds of lines that change nothing and show nothing."""
_ESTIMATORS = {
    "outcome": "a session's return, less {baseline}",
    "dr_grpo": "a session's return, less the group's mean",
    "rloo": "a session's return, less the mean of the others",
    "reinforce++": "a session's return, less {baseline}, standardised over the batch",
    "return_to_go": "a line's reward and all later ones, less {baseline}",
    "turn": "a line's reward and later ones, each compared with those of the same line number",
    "critic": "temporal differences against a value of the interpreter's state",
    "branch": "what a segment came to, less the mean of its siblings",
    "gigpo": "a session's return, less the group's mean, and {omega:g} times a line's, less that of lines in equal "
    "states",
}
_BASELINES = {
    "mean": "the group's mean",
    "leave_one_out": "the others' mean",
    "place": "the others' mean from the same line number on",
    "state": "the mean of the others' lines that began in the same interpreter state",
    "none": "nothing",
}


def rewards_in_words(config: RewardsConfig) -> str:
    """What a session earns, and how that is limited."""
    kinds = [f"{reward:+g} {kind}" for kind, reward in config.kinds.items() if reward]
    classes = [f"{reward:+g} {name}" for name, reward in config.exceptions.items()]
    rules = [f"{rule.reward:+g} {rule.name}" for rule in config.rules]
    paid = [*kinds, *classes, *rules, *map(str, config.model_dump(mode="json")["functions"])]
    parts = [f"{config.outcome:+g} for a right answer"]
    if paid:
        shaping, caps = config.shaping, config.shaping.caps
        parts.append(f"a line: {', '.join(paid)}")
        parts += ["as a potential of the state"] * (shaping.mode == "potential")
        parts += ["no gain for what changes and shows nothing new"] * shaping.novelty
        parts += [f"gains times {shaping.decay:g} at each repetition"] * (shaping.decay < 1)
        parts += [] if shaping.clip is None else [f"within {list(shaping.clip)} a line"]
        parts += [] if caps.gain is None else [f"gains of a session at most {caps.gain:g}"]
        parts += [] if caps.loss is None else [f"losses at most {caps.loss:g}"]
        weight = shaping.weight
        if weight.end is not None:
            parts.append(f"times {weight.start:g}, falling to {weight.end:g} in {weight.steps} steps")
        elif weight.start != 1:
            parts.append(f"times {weight.start:g}")
    return "; ".join(parts)


def credit_in_words(config: CreditConfig) -> str:
    """What a line's advantage is."""
    described = _ESTIMATORS.get(config.estimator)
    if described is None:
        return config.estimator
    text = f"{config.estimator}: {described.format(baseline=_BASELINES[config.baseline], omega=config.omega)}"
    text += "" if config.scale == "none" else f"; divided by the deviation ({config.scale})"
    text += "" if config.gamma == 1 else f"; discounted by {config.gamma:g} a line"
    return text if config.clip is None else f"{text}; within {config.clip:g} of 0"


def idle_settings(config: Config, gpus: int) -> Iterator[str]:
    """Settings that differ from their defaults and do nothing beside the others: each with the reason."""
    rewards, shaping, engine, train = config.rewards, config.rewards.shaping, config.engine, config.train
    if shaping.novelty:
        for kind in _RUN_NOTHING:
            if rewards.kinds.get(kind, 0.0) > 0:
                yield f"rewards.kinds.{kind} is never paid: what runs nothing gains nothing (rewards.shaping.novelty)"
    is_shaped = any(rewards.kinds.values()) or rewards.exceptions or rewards.rules or rewards.functions
    if shaping != ShapingConfig() and not is_shaped:
        yield "rewards.shaping limits what lines earn, and none earns anything"
    if is_shaped and shaping.weight.start == 0 and not shaping.weight.end:
        yield "rewards: lines are paid nothing, because shaping.weight is 0; they are only logged"
    usual = EngineConfig()
    if engine.weights_folder and not engine.servers and not config.cluster:
        yield "engine.weights_folder is for servers, and there are none"
    if gpus and engine.kv_cache_gib != usual.kv_cache_gib:
        yield "engine.kv_cache_gib is for CPUs; here, engine.gpu_memory_utilization says what the engine takes"
    if engine.servers and engine.gpu_memory_utilization != usual.gpu_memory_utilization:
        yield "engine.gpu_memory_utilization is for vLLM in this process; a server has a flag of that name"
    if not train.report_to and train.report_rollouts != TrainConfig().report_rollouts:
        yield "train.report_rollouts: nobody is told (train.report_to)"
