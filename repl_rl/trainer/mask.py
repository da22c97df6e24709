"""Which trajectories of a batch are left out of the loss (`train.mask`): by what became of them, and by how far the
trainer's probabilities are from the sampler's. And which tokens.

A trajectory that is left out is in no sum, count or mean of the loss, and stays in its group's baseline. Void ones are
in no loss, and no mask is asked about them. Of a session that was forked, each future is judged with all that came
before it, and what it shares with others stays as long as one of them does (`kept_tokens` of `repl_rl.trainer.step`).
A token gets an advantage of 0, and is counted as before. B batch, T completion tokens.
"""

from collections.abc import Callable
from random import Random

import torch

from repl_rl.config.train import MaskConfig
from repl_rl.trajectory import Trajectory
from repl_rl.utils.distributed import gather, process_rank
from repl_rl.utils.import_path import imported
from repl_rl.utils.user_code import Seam, boundary


def leaves_out(config: MaskConfig) -> Callable[[Trajectory], bool]:
    """Whether a trajectory is left out by what became of it. Void ones, which may lack lines, are not for it.

    Raises ConfigError if there is no such function. What comes back raises RewardError if the function raises.
    """
    function = None if config.function is None else imported(config.function, "train.mask.function:")

    def is_out(trajectory: Trajectory) -> bool:
        is_out_by_function = False
        if function is not None:
            with boundary(Seam.MASK, function, where=f"on task {trajectory.task_id!r}"):
                is_out_by_function = bool(function(trajectory))
        return (
            is_out_by_function
            or (config.overlong and trajectory.is_overlong)
            or (config.void_turns and has_void_turn(trajectory))
            or trajectory.stop_reason in config.stops
            or any(line.kind in config.kinds for line in trajectory.lines)
        )

    return is_out


def has_void_turn(trajectory: Trajectory) -> bool:
    """Whether a turn came to neither code that ran nor an answer: one with a call that could not be read, or the last.

    A turn of ours ends where an interpreter answers, so of all others, only the last can have run nothing. Xue et al.
    2025, SimpleTIR: End-to-End Reinforcement Learning for Multi-Turn Tool-Integrated Reasoning, section 3.3.
    """
    if trajectory.unread_calls:
        return True
    return trajectory.answer is None and not trajectory.lines[-1].kind.ran


def within_ratios(config: MaskConfig, apart: torch.Tensor, typed: torch.Tensor) -> torch.Tensor:
    """Whether each row stays, (B,), by log pi - log mu of the trainer and the sampler, (B, T), zero where nothing
    was typed.

    `geometric` bounds exp(mean(log pi - log mu)), `veto` the least pi / mu of a token. Liu, Li et al. 2025, When Speed
    Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch.
    """
    stays = torch.ones(len(apart), dtype=torch.bool, device=apart.device)
    if config.geometric is not None:
        low, high = config.geometric
        mean = (apart.sum(-1) / typed.sum(-1).clamp(min=1)).exp()
        stays &= (mean >= low) & (mean <= high)
    # A session that was lost before its first line has no token, and a minimum of none is an error.
    if config.veto is not None and apart.shape[-1]:
        stays &= apart.amin(-1).exp() >= config.veto
    return stays


def covarying(
    band: tuple[float, float, float],
    logprobs: torch.Tensor,
    advantages: torch.Tensor,
    typed: torch.Tensor,
    random: Random,
) -> torch.Tensor:
    """Which tokens are drawn from a band: its bounds, and a share of all tokens. Tensors are (B, T). All processes have
    to call it together, with equal random numbers: means, share and draw are of the batch of all of them.

    Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (Clip-Cov).
    """
    low, high, share = band
    is_typed = typed.bool()
    sums = [values[is_typed].double().sum().item() for values in (typed, logprobs, advantages)]
    # Each process gathers the three sums of all.
    count, logprob_total, advantage_total = map(sum, zip(*gather([sums]), strict=True))
    mean_logprob = logprob_total / max(count, 1)
    mean_advantage = advantage_total / max(count, 1)
    covariance = (logprobs.double() - mean_logprob) * (advantages.double() - mean_advantage)
    places = ((covariance > low) & (covariance < high) & is_typed).nonzero()  # (in the band, 2)
    counts = gather([len(places)])  # of each process
    total = sum(counts)
    draws = min(max(1, int(share * count)), total)
    first = sum(counts[: process_rank()])  # all number the tokens in the band alike: ours begin here
    out = torch.zeros_like(is_typed)
    for index in random.sample(range(total), draws):
        if first <= index < first + len(places):
            out[tuple(places[index - first])] = True
    return out
