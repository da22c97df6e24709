"""What is logged of a batch, where TRL keeps it until the next log: its metrics by mode, its table of completions.

What is said of sessions is said of those of all processes. They send each other what is counted of a session
(`SessionNumbers`), and compute what one process with the whole batch would, to the bit. The sessions themselves stay
where they are.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState
from trl.trainer.utils import nanstd

from repl_rl.engine import CountsPrompts, CountsSteps
from repl_rl.errors import TrainingError
from repl_rl.rollout import RolloutService, SessionNumbers, metrics_of
from repl_rl.tools import call_metrics
from repl_rl.trainer.arguments import ReplGRPOConfig
from repl_rl.trainer.run_files import RunFiles
from repl_rl.trajectory import Trajectory
from repl_rl.utils.distributed import from_main, gather, gather_to_main, process_count

_KEPT = ("solve_rate", "lines_per_trajectory", "tokens_per_trajectory")


class StepLog:
    """The log of a trainer. All processes have to call its methods together."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._prompt_tokens = (0, 0)
        self._steps = (0, 0)
        """The engine's, and the lines in them, when the last batch was logged."""
        self._drift: list[torch.Tensor] = []
        self._shares: dict[str, tuple[int, torch.Tensor]] = {}
        """By the metric's name: an update, and the tokens counted in it so far, those that are out and all."""

    @property
    def _metrics(self) -> dict[str, list[float]]:
        metrics: dict[str, list[float]] = self._trainer._metrics["train" if self._trainer.model.training else "eval"]
        return metrics

    def values(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._metrics[name].append(value)

    def share(self, name: str, out: torch.Tensor, typed: torch.Tensor) -> None:
        """The share of all processes' typed tokens that are `out`, over the parts that an update takes a batch in. Both
        are (B, T)."""
        step = self._trainer.state.global_step
        is_typed = typed.bool()
        local = torch.stack([(out & is_typed).sum(), is_typed.sum()])
        counts = self._trainer.accelerator.gather(local[None]).sum(0)
        step_before, counts_before = self._shares.get(name, (None, None))
        is_further_part = step_before == step and counts_before is not None
        if is_further_part:
            counts = counts + counts_before
        self._shares[name] = (step, counts)
        out_count, typed_count = counts
        value = (out_count / typed_count.clamp(min=1)).item()
        if is_further_part:
            self._metrics[name][-1] = value
        else:
            self._metrics[name].append(value)

    def batch(
        self, trajectories: Sequence[Trajectory], seconds: float, service: RolloutService, tools: Sequence[str] | None
    ) -> None:
        """Metrics of all trajectories that all processes sampled for a step, and this process's own kernel counters and
        loop time. `tools` are the names of the user's, None if there are neither tools nor an environment."""
        self._drift = []
        sessions = gather([SessionNumbers.of(trajectory) for trajectory in trajectories])
        values = metrics_of(sessions, seconds) | {"time/loop_share": service.loop_share}
        values |= {f"kernels/{name}": value for name, value in service.kernel_numbers().items()}
        if tools is not None:
            values |= call_metrics([session.calls for session in sessions if not session.is_void], tools)
        if isinstance(self._trainer.engine, CountsPrompts):
            sent_before, computed_before = self._prompt_tokens
            self._prompt_tokens = self._trainer.engine.prompt_tokens
            sent_now, computed_now = self._prompt_tokens
            sent = sent_now - sent_before
            computed = computed_now - computed_before
            if sent:  # of the tokens that lines continue, the share that the engine did not compute again
                values["engine/reused_share"] = 1 - computed / sent
        if isinstance(self._trainer.engine, CountsSteps):
            steps_before, lines_before = self._steps
            self._steps = (self._trainer.engine.steps, self._trainer.engine.step_lines)
            steps = self._steps[0] - steps_before
            lines = self._steps[1] - lines_before
            if steps:
                values["engine/occupied"] = lines / (steps * self._trainer.args.engine.places)
        # zeros for the stops and errors that a batch doesn't have, because TRL averages only the given values
        logged = self._metrics
        batches = len(logged["time/loop_share"])
        names = [name for name in logged.keys() | values.keys() if name.startswith(("stops/", "errors/"))]
        for name in names:
            logged[name] += [0.0] * (batches - len(logged[name]))
        self.values(dict.fromkeys(names, 0.0) | values)

    def kept(self, trajectories: Sequence[Trajectory], sampled: int) -> None:
        """What is different among the trajectories that are trained on, of so many that this process has sampled."""
        sessions = gather([SessionNumbers.of(trajectory) for trajectory in trajectories])
        sampled_by_all = sum(gather([sampled]))
        metrics = metrics_of(sessions, 1.0)
        self.values({"kept/share": len(sessions) / sampled_by_all})
        self.values({f"kept/{name}": metrics[name] for name in _KEPT if name in metrics})

    def sessions(self, trajectories: Sequence[Trajectory]) -> None:
        """How long what was typed is, and how many tokens the run has seen. TRL's names; but clipped are sessions that
        a budget ended, not those without an end token: one that hands over its answer has none."""
        lengths = []
        for trajectory in trajectories:
            sampled = 0 if trajectory.is_void else trajectory.sampled_tokens
            lengths.append((trajectory.is_overlong, trajectory.is_void, sampled, len(trajectory.prompt_ids)))
        of_all = gather(lengths)
        typed = [sampled for _, _, sampled, _ in of_all]
        ended = [sampled for is_overlong, is_void, sampled, _ in of_all if not is_overlong and not is_void]
        ended = ended or [0]  # what TRL logs, too, if there are none
        state = self._trainer.state
        if self._trainer.model.training:
            state.num_input_tokens_seen += sum(typed) + sum(prompt for *_, prompt in of_all)
        self._metrics["num_tokens"] = [state.num_input_tokens_seen]
        self.values(
            {
                "completions/mean_length": sum(typed) / len(typed),
                "completions/min_length": float(min(typed)),
                "completions/max_length": float(max(typed)),
                "completions/clipped_ratio": sum(is_overlong for is_overlong, *_ in of_all) / len(of_all),
                "completions/mean_terminated_length": sum(ended) / len(ended),
                "completions/min_terminated_length": float(min(ended)),
                "completions/max_terminated_length": float(max(ended)),
            }
        )

    def rewards(self, rewards: torch.Tensor, names: Sequence[str], weights: torch.Tensor, group_size: int) -> None:
        """What the reward functions gave, (sessions of all processes, functions), NaN where one had nothing to say. A
        session for which none had is in no mean. TRL's names."""
        for name, column in zip(names, rewards.T, strict=True):
            self.values(
                {
                    f"rewards/{name}/mean": torch.nanmean(column).item(),
                    f"rewards/{name}/std": nanstd(column).item(),
                }
            )
        totals = (rewards * weights.to(rewards.device)).nansum(dim=1)
        totals[rewards.isnan().all(dim=1)] = torch.nan
        spreads = torch.zeros(len(totals) // group_size, device=totals.device)
        if group_size > 1:
            spreads = nanstd(totals.view(-1, group_size), dim=1)
        is_flat = torch.isclose(spreads, torch.zeros_like(spreads))
        self.values(
            {
                "reward": torch.nanmean(totals).item(),
                "reward_std": nanstd(totals).item(),
                "frac_reward_zero_std": is_flat.float().mean().item(),
            }
        )

    def completions(
        self, prompts: Sequence[Any], completions: Sequence[Any], rewards: torch.Tensor, names: Sequence[str]
    ) -> None:
        """TRL's table of completions, and what reward functions have asked it to log (`log_extra`, `log_metric`).
        `rewards` are those of all processes.

        The table is the main process's, which prints and writes it. Of the others' texts it gets none where it does
        neither (`log_completions`).
        """
        trainer = self._trainer
        extra = dict(trainer._pending_extra_logs)
        trainer._pending_extra_logs.clear()
        parts = []  # of the table, one of each process
        if trainer.log_completions or process_count() == 1:
            parts = gather_to_main([(list(prompts), list(completions), extra)])
        logs = trainer._logs
        if parts:
            for name, column in zip(names, rewards.T, strict=True):
                logs["rewards"][name].extend(column.tolist())
        extra_names = sorted({name for _, _, extra_columns in parts for name in extra_columns})
        for prompts_of_part, completions_of_part, extra_columns in parts:
            logs["prompt"].extend(prompts_of_part)
            logs["completion"].extend(completions_of_part)
            for name in extra_names:
                missing = [None] * len(prompts_of_part)  # of a process whose functions did not log it
                logs["extra"][name].extend(extra_columns.get(name, missing))
        metrics_of_processes = gather([dict(trainer._pending_metrics)])
        trainer._pending_metrics.clear()
        for name in sorted(set().union(*metrics_of_processes)):
            values = [value for metrics in metrics_of_processes for value in metrics.get(name, [])]
            self.values({name: sum(values) / len(values)})

    def advantages(
        self, advantages: torch.Tensor, typed: torch.Tensor, session_of_rows: Sequence[int], count: int
    ) -> None:
        """Add to the table of completions the mean advantage of each session's typed tokens.

        `advantages` and `typed` are (B, T). The first rows are those of `session_of_rows`: a session that was compacted
        has several, and numbers from `count` on are those of sub-calls, which the table does not have.
        """
        of_rows = torch.stack([(advantages * typed).sum(1), typed.sum(1)])[:, : len(session_of_rows)]
        sessions = torch.tensor(session_of_rows, device=of_rows.device).clamp(max=count)  # all sub-calls are the last
        sums, tokens = of_rows.new_zeros(2, count + 1).index_add(1, sessions, of_rows)[:, :count]
        means = sums / tokens.clamp(min=1)
        self._trainer._logs["advantages"].extend(self._trainer.accelerator.gather(means).tolist())

    def drift(
        self, trained: torch.Tensor, sampled: torch.Tensor, typed: torch.Tensor, ratios: torch.Tensor | None = None
    ) -> None:
        """|trainer - sampler| over the typed tokens of all processes and of the batch, which comes as a whole or in the
        parts that the loss takes. All are (B, T), log-probabilities and a mask. `ratios` are the weights that the loss
        gives to the differences, (B, T), or (B, 1) for sequences; TRL's metrics are logged of these.

        Raises TrainingError if a difference is not finite.
        """
        is_typed = typed.bool()
        spreads = [_spread((trained - sampled).abs()[is_typed])]
        if ratios is not None:
            is_of_tokens = ratios.size(1) == is_typed.size(1)
            is_counted = is_typed if is_of_tokens else is_typed.any(1)
            spreads.append(_spread(ratios[is_counted].flatten()))
        local = torch.stack(spreads)  # (1 or 2, 4)
        # The parts of the batch that came before this one are counted again, so the last value is the batch's.
        parts = [*self._drift, self._trainer.accelerator.gather(local[None])]  # (processes, 1 or 2, 4) each
        total, count, least, most = torch.cat(parts).unbind(-1)
        if not count.sum():
            return
        means = (total.sum(0) / count.sum(0)).tolist()
        minima = least.amin(0).tolist()
        maxima = most.amax(0).tolist()
        drift_mean = means[0]
        drift_max = maxima[0]
        if not math.isfinite(drift_mean):
            raise TrainingError(
                f"the log-probabilities of trainer and sampler differ by {drift_mean} at step "
                f"{self._trainer.state.global_step}: the weights are not numbers any more; go on from an earlier "
                "checkpoint with a smaller train.learning_rate or train.max_grad_norm"
            )
        values = {"drift/logprob_mean": drift_mean, "drift/logprob_max": drift_max}
        if ratios is not None:
            values["sampling/sampling_logp_difference/mean"] = drift_mean
            values["sampling/sampling_logp_difference/max"] = drift_max
            values["sampling/importance_sampling_ratio/min"] = minima[1]
            values["sampling/importance_sampling_ratio/mean"] = means[1]
            values["sampling/importance_sampling_ratio/max"] = maxima[1]
        for name, value in values.items():
            if self._drift:
                self._metrics[name][-1] = value
            else:
                self._metrics[name].append(value)
        self._drift = parts


class RecordSteps(TrainerCallback):  # type: ignore[misc]
    """Makes a row of metrics.jsonl of each step's logs, and tells the listeners of it. The logs of a step hold `mark`;
    others are of evaluations, or of the whole training."""

    def __init__(self, *listeners: Callable[[dict[str, Any]], None], mark: str = "reward") -> None:
        self._listeners = listeners
        self._mark = mark
        self._start = time.perf_counter()

    def on_log(self, args: Any, state: TrainerState, control: Any, **named: Any) -> None:
        logs = named["logs"]
        if self._mark not in logs or not state.is_world_process_zero:
            return
        seconds = time.perf_counter() - self._start
        row = {"kind": "train", "step": state.global_step, "seconds": round(seconds, 3)}
        for name, value in logs.items():
            if isinstance(value, int | float) and math.isfinite(value):  # JSON has neither NaN nor infinity
                row[name] = value
        for listener in self._listeners:
            listener(row)


class KeepRun(RecordSteps):
    """Writes what `repl-rl view` reads into a folder of its own in the trainer's `output_dir`."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(lambda row: self._files.append(row))
        self._trainer = trainer

    def on_train_begin(self, args: ReplGRPOConfig, state: TrainerState, control: Any, **named: Any) -> None:
        self._files = from_main(lambda: RunFiles.within(Path(args.output_dir), state.global_step))
        self._trainer.rollout_dir = str(self._files.rollouts)


class TraceSteps(TrainerCallback):  # type: ignore[misc]
    """Writes the timelines of a trainer's steps into the folder `trace` beside that of its rollouts. A step lasts until
    the next one begins: logs and checkpoints are a part of it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._step = 0
        self._optimizer = ExitStack()

    def on_step_begin(self, args: ReplGRPOConfig, state: TrainerState, control: Any, **named: Any) -> None:
        self._write()
        self._step = state.global_step + 1
        if self._trainer.timeline.has(self._step):
            self._trainer.timeline.begin(f"step {self._step}")

    def on_pre_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        self._optimizer.enter_context(self._trainer.timeline.phase("optimizer"))

    def on_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        self._optimizer.close()

    def on_train_end(self, *arguments: Any, **named: Any) -> None:
        self._write()

    def _write(self) -> None:
        if self._trainer.timeline.is_on:
            files = RunFiles(Path(self._trainer.rollout_dir).parent)
            self._trainer.timeline.write(files.trace / f"step_{self._step:05d}.json.gz")


def _spread(values: torch.Tensor) -> torch.Tensor:
    """Sum, count, least and largest of values (N,): (4,). Of none, they are 0, 0 and infinite."""
    values = values.double()
    if len(values):
        least, most = torch.aminmax(values)
    else:
        least, most = torch.tensor([math.inf, -math.inf], dtype=values.dtype, device=values.device)
    return torch.stack([values.sum(), torch.full_like(least, len(values)), least, most])
