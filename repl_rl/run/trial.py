"""`repl-rl doctor --train`: two real training steps with every engine that is here, and what they cost.

Each trial is a process of its own, so that none finds memory or a GPU as another one left it. It trains as `repl-rl
train` would, with kernels, rewards, credit and weight sync; only the reward of a session's last line is a number made
from its tokens, for a model that solves nothing yet, or everything, would have no gradient. What is off comes with the
one line to change.

Not covered: several processes, and servers that are not up.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.config import Config, load_config
from repl_rl.engine import RecordsGraphs
from repl_rl.engine.environment import has_gpu_driver, prepare_environment, silence_libraries
from repl_rl.errors import ReplRLError
from repl_rl.run.step_cost import StepCost, StepMeter
from repl_rl.trajectory import Trajectory
from repl_rl.utils.processes import end_with_parent

if TYPE_CHECKING:
    import torch

    from repl_rl.trainer.asynchronous import Taken

_SMALL = """
name=doctor model.path=nano engine.context_tokens=512 engine.places=32 kernel.size=32 budget.line_tokens=48
budget.lines=8 budget.tokens=256 train.prompts_per_step=4 train.group_size=8 train.learning_rate=1e-6
"""
_SHORT = """
train.steps=2 train.save_steps=100 train.report_to=[] train.redraws=0 train.processes=1 train.schedule=constant
train.warmup_steps=0 eval.problems=1
"""
_MOST_DRIFT = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""Mean |trainer - sampler| over typed tokens, in nats: beyond it, something else than rounding is at work."""
_LEAST_MOVED = 0.5
"""Share of the trained weights that two steps have to change. AdamW's first steps change each by the learning rate."""
_MOST_COMPARED = 10_000_000
"""Entries of trained weights that are compared with what they were: a whole copy might not fit where a run would."""
_PHASES = ("sync", "rollout", "loss", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Trial:
    """What two steps cost."""

    engine: str
    dtype: str
    device: str
    load_s: float
    step: StepCost
    """The second step: the first one warms up. Its tokens are those that were sampled."""
    peaks_mb: dict[str, float]
    """The peak of each phase in either step, and that of `load`."""
    tokens_per_s: float
    """Of the step's rollouts; of all of the step where they go on while it trains."""
    drift_mean: float
    drift_max: float
    moved: float
    """Share of the trained weights that have changed."""
    is_packed: bool
    is_one_call: bool
    """Whether attention takes one call for all sequences of a row."""
    attention: str
    graphs: str
    runner: str = "–"
    """Which of vLLM's model runners."""


def configs(config: str | None, model: str | None, overrides: Sequence[str]) -> list[Config]:
    """The trials of this machine: with a config its own; without, a small model with each engine and type of number
    that can be had here. Raises ConfigError."""
    model_settings = [f"model.path={model}"] if model else []
    if config is not None:
        settings = model_settings + _SHORT.split() + list(overrides)
        return [load_config(config, tuple(settings))]
    engines = ["transformers"]
    if importlib.util.find_spec("vllm") is not None:
        engines.insert(0, "vllm")
    dtypes = ["bfloat16", "float32"] if has_gpu_driver() else ["float32"]
    trials: list[Config] = []
    for engine in engines:
        for dtype in dtypes:
            settings = _SMALL.split() + model_settings + _SHORT.split()
            settings += [f"engine.backend={engine}", f"model.dtype={dtype}"]
            settings += overrides
            trial = load_config("quickstart", tuple(settings))
            if trial not in trials:  # where `overrides` name the engine or the type, several are the same
                trials.append(trial)
    return trials


def run_trials(configs: Sequence[Config], console: Console) -> bool:
    """Run one after another and print what they cost; True if nothing is off."""
    trials, troubles = [], []
    for config in configs:
        name = f"{config.engine.backend}, {config.model.dtype}"
        console.print(f"two steps with {name}", style="dim", highlight=False)
        with ProcessPoolExecutor(1, get_context("spawn"), _say_nothing) as process:
            try:
                trial = process.submit(measure, config).result()
                trials.append(trial)
                troubles += [f"{name}: {trouble}" for trouble in off(trial, config)]
            except Exception as error:  # noqa: BLE001 - what a trial raises is what is off
                kind = "" if isinstance(error, ReplRLError) else f"{type(error).__name__}: "
                lines = str(error).strip().splitlines()
                reason = lines[-1] if lines else ""
                troubles.append(f"{name}: {kind}{reason}")
    if trials:
        console.print(_table(trials))
    for trouble in troubles:
        console.print(Text(trouble, style="bold red"), soft_wrap=True)
    return not troubles


def off(trial: Trial, config: Config) -> list[str]:
    """What is wrong with a trial, each with what to change."""
    troubles = []
    if not trial.is_packed:
        troubles.append(
            "the loss pads its batches, because this model's passes can't be packed; give it a packed attention with "
            "train.trl: {model_init_kwargs: {attn_implementation: sdpa}}, or expect its memory and time"
        )
    elif trial.device != "cpu" and trial.dtype == "bfloat16" and not trial.is_one_call:
        troubles.append(
            "attention takes a call for each sequence of a row, four to five times as long as one for all: the log of "
            "`repl-rl train` says why; with flash-attn installed, train.trl: {model_init_kwargs: {attn_implementation: "
            "flash_attention_2}} takes one"
        )
    if not trial.drift_mean <= _MOST_DRIFT[trial.dtype]:
        troubles.append(
            f"sampler and trainer differ by {trial.drift_mean:.2g} nats a token: see the FAQ on drift, and "
            "leave engine.vllm: {kv_cache_dtype: ...} out; in bfloat16, routers of experts choose differently, too"
        )
    if trial.moved < _LEAST_MOVED:
        troubles.append(
            f"two steps changed {trial.moved:.1%} of the trained weights: set train.dtype=float32, or raise "
            f"train.learning_rate from {config.train.learning_rate:g}"
        )
    if trial.device != "cpu" and trial.graphs == "none" and config.engine.backend != "transformers":
        troubles.append("vLLM runs without CUDA graphs: leave engine.vllm: {enforce_eager: ...} out")
    return troubles


def _say_nothing() -> None:
    """Begin a trial's process: what libraries print is not shown, and it ends with this one."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    silence_libraries(python_warnings=True)
    end_with_parent()


def measure(config: Config) -> Trial:
    """Train two steps in this process. Raises a ReplRLError, or whatever the training raises."""
    prepare_environment(config.engine.kv_cache_gib)
    import torch

    from repl_rl.run.callbacks import MeasureSteps
    from repl_rl.run.training import open_trainer, prepare

    meter = StepMeter("cuda" if torch.cuda.is_available() else "cpu")
    with ExitStack() as stack:
        runs = stack.enter_context(TemporaryDirectory(prefix="repl_rl_doctor_"))
        prepared = stack.enter_context(prepare(config, Path(runs)))
        load_began_s = time.perf_counter()
        trainer = open_trainer(prepared, line_rewards=[_by_its_tokens])
        stack.callback(trainer.close)
        load_peak_mb = meter.peak_mb()
        load_s = time.perf_counter() - load_began_s
        weights_before = _weight_sample(trainer.model)
        meter.follow(trainer.vllm_generation, "sync_weights", "sync")
        if config.train.asynchronous is None:
            meter.follow(trainer.service, "roll_out", "rollout", _sampled_tokens)
        else:  # sessions go on all the time, and a step waits for those that it takes
            meter.follow(trainer.queue, "take", "rollout", _taken_tokens)
        meter.follow(trainer, "_compute_loss", "loss")
        meter.follow(trainer.accelerator, "backward", "backward")
        trainer.add_callback(MeasureSteps(meter))
        trainer.train()
        weights = _weight_sample(trainer.model)
        moved = [after != before for after, before in zip(weights, weights_before, strict=True)]
        log_rows = [row for row in trainer.state.log_history if "reward" in row]
        # The second step also shows whether the engine got the trainer's weights. But a run that does not wait for its
        # rollouts samples the second step with the weights of the first, and differs for that.
        drift_row = log_rows[-1 if config.train.asynchronous is None else 0]
        peaks_mb = {"load": load_peak_mb}
        for measured_step in meter.steps:
            for phase, peak_mb in measured_step.peaks_mb.items():
                peaks_mb[phase] = max(peaks_mb.get(phase, 0.0), peak_mb)
        step = meter.steps[-1]
        # The log's rate is not taken: the trainer's clock runs while the meter collects garbage.
        sampling_s = step.phases_s["rollout"]
        if config.train.asynchronous is not None:
            sampling_s = step.step_s
        device = str(trainer.accelerator.device.type)
        graphs = "none"
        if isinstance(trainer.engine, RecordsGraphs):
            graphs = trainer.engine.graphs
        return Trial(
            engine=type(trainer.engine).__name__,
            dtype=config.model.dtype,
            device=torch.cuda.get_device_name() if device == "cuda" else device,
            load_s=load_s,
            step=step,
            peaks_mb=peaks_mb,
            tokens_per_s=step.tokens / sampling_s if sampling_s else 0.0,
            drift_mean=drift_row["drift/logprob_mean"],
            drift_max=drift_row["drift/logprob_max"],
            moved=torch.cat(moved).float().mean().item(),
            is_packed=trainer.packs,
            is_one_call=trainer.attends_at_once,
            attention=str(trainer.model.config._attn_implementation),
            graphs=graphs,
            runner=getattr(trainer.engine, "runner", "–"),
        )


def _sampled_tokens(trajectories: Iterable[Trajectory]) -> int:
    return sum(trajectory.sampled_tokens for trajectory in trajectories if not trajectory.is_void)


def _taken_tokens(taken_and_rows: tuple[Taken, Any]) -> int:
    taken, _ = taken_and_rows
    return sum(_sampled_tokens(trajectories) for _, trajectories in taken.groups)


def _weight_sample(model: torch.nn.Module) -> list[torch.Tensor]:
    """A copy of every entry of the trained weights, or of every so many of a large model's."""
    trained = [weight.detach().flatten() for weight in model.parameters() if weight.requires_grad]
    entries = sum(len(weight) for weight in trained)
    stride = -(-entries // _MOST_COMPARED)  # rounded up
    return [weight[::stride].clone() for weight in trained]


def _by_its_tokens(trajectory: Trajectory) -> list[float]:
    """A reward between 0 and 1 for the last line."""
    if not trajectory.lines:
        return []
    last = sum(trajectory.completion_ids) % 97 / 96
    return [0.0] * (len(trajectory.lines) - 1) + [last]


def _rows_of(trial: Trial) -> str:
    if not trial.is_packed:
        return "no"
    return "yes, attended in one call" if trial.is_one_call else "yes, a call for each sequence"


def _table(trials: Sequence[Trial]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    columns = []
    for trial in trials:
        table.add_column(f"{trial.engine}, {trial.dtype}", justify="right")
        column = {
            "device": trial.device,
            "loading": f"{trial.load_s:.1f} s",
            "a step": f"{trial.step.step_s:.2f} s",
        }
        for phase in _PHASES:
            column[f"  {phase}"] = f"{trial.step.phases_s.get(phase, 0.0):.2f} s"
        column["  rest"] = f"{trial.step.rest_s:.2f} s"
        column["sampled"] = f"{trial.step.tokens:,} tokens, {trial.tokens_per_s:,.0f}/s"
        for phase in ("load", *_PHASES):
            column[f"peak memory, {phase}"] = f"{trial.peaks_mb.get(phase, 0.0):,.0f} MB"
        column["drift, mean and most"] = f"{trial.drift_mean:.1e}, {trial.drift_max:.1e} nats"
        column["weights that moved"] = f"{trial.moved:.1%}"
        column["packed rows"] = _rows_of(trial)
        column["attention"] = trial.attention
        column["vLLM's model runner"] = trial.runner
        column["CUDA graphs"] = trial.graphs
        columns.append(column)
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table
