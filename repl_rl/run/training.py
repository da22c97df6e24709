"""A training run from config to report: checks, held-out evaluation, GRPO, held-out evaluation.

`prepare` does everything that can fail on bad input; `train` loads models. A run that was interrupted or killed resumes
from its last complete checkpoint and sees the problems in the same order as without the interruption.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_rl.config import Config, TrainConfig
from repl_rl.config.train import KAHAN
from repl_rl.engine.environment import prepare_environment
from repl_rl.errors import ConfigError, DependencyError, RunError
from repl_rl.models import find_model, resolve_model
from repl_rl.models.find import config_of_model
from repl_rl.models.skeleton import Adapted, config_alone, require_one_loss, require_one_rotation
from repl_rl.rollout import Checked, check_rollouts, environment_pays
from repl_rl.run.evaluate import evaluate
from repl_rl.run.folder import RunFolder, checkpoint_step, free_folder, new_run
from repl_rl.run.launch import require_a_gpu_each, require_processes
from repl_rl.run.lora import lora_config, require_adapter
from repl_rl.run.resume import open_run, what_changes
from repl_rl.run.trackers import Trackers, open_trackers, require_trackers
from repl_rl.tasks import load_splits, require_hub_id
from repl_rl.trajectory import Task
from repl_rl.utils.distributed import WAIT_S, from_main, is_main_process, join
from repl_rl.utils.folders import require_folder
from repl_rl.utils.import_path import imported
from repl_rl.view.run import FINE_TUNED

if TYPE_CHECKING:
    from repl_rl.run.progress import Progress
    from repl_rl.trainer import ReplGRPOConfig, ReplGRPOTrainer


PLAIN = ("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "epsilon", "epsilon_high")
"""Arguments of TRL's that are plain numbers."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a config asks for, checked and made, without a model and without a run folder."""

    model_path: str
    """Where the model is, or will be once training has created it; see `repl_rl.models`."""
    train_tasks: list[Task]
    heldout_tasks: list[Task]
    checked: Checked
    adapted: Adapted | None
    """What `train.lora` reaches; None without one, or where that is not known yet."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run whose inputs have been checked. `notes` say what changed keys mean for a run that is resumed."""

    config: Config
    folder: RunFolder
    inputs: Inputs
    checkpoint: Path | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """How a run ended: the rows of its evaluations, how long it trained, and the step that it has reached."""

    before: dict[str, Any]
    after: dict[str, Any] | None
    """None after an interrupt, which leaves a checkpoint of that step."""
    train_seconds: float
    step: int


def choose_run(
    config: Config | None, runs: Path, resume: Path | None, overrides: tuple[str, ...]
) -> tuple[RunFolder, Config, list[str]]:
    """The folder of a run that is resumed, or that a new one would get; the run's config; and what keys that have
    changed mean for the steps that remain. Writes nothing. Raises ConfigError or RunError."""
    if resume is None:
        assert config is not None
        require_folder("--runs", runs)
        return RunFolder(free_folder(config.name, runs)), config, []
    folder, config = open_run(resume, config, overrides)
    require_folder("--resume", resume)
    if (folder.path / FINE_TUNED).exists():
        raise RunError(
            f"{resume} is a run of `repl-rl sft`: go on with `repl-rl sft --resume {shlex.quote(str(resume))}`, or "
            f"train its model in a run of its own, with --set model.path={folder.model}"
        )
    return folder, config, what_changes(folder, config)


@contextmanager
def prepare(
    config: Config | None, runs: Path, resume: Path | None = None, overrides: tuple[str, ...] = ()
) -> Iterator[Prepared]:
    """A run whose inputs have been checked, as far as that can be done without loading a model; no other command can
    write it until the block ends. Raises a ReplRLError that says what to change.

    A run that is resumed without a config goes on with its own, over which `overrides` go. A new run that ends before
    it has done anything leaves no folder.
    """
    folder, config, notes = choose_run(config, runs, resume, overrides)
    with ExitStack() as stack:
        if resume is not None and is_main_process():
            stack.enter_context(folder.locked())
        require_processes(config)
        inputs = check_inputs(config)
        if config.train.processes > 1:
            prepare_environment(config.engine.kv_cache_gib)
            wait_s = config.train.trl.get("ddp_timeout")
            join(wait_s if isinstance(wait_s, int) else WAIT_S)  # TRL refuses what is not a number
        if resume is None:
            new_config = config
            folder = from_main(lambda: new_run(new_config, runs))  # all processes get the same one
            if is_main_process():
                stack.enter_context(folder.locked())
                stack.callback(folder.discard_if_unused)
        elif is_main_process():
            folder.keep_config(config)
        yield Prepared(config, folder, inputs, folder.last_checkpoint(), tuple(notes))


def check_inputs(config: Config, asks_hub: bool = True) -> Inputs:
    """Everything that is made from the config alone. Raises a ReplRLError that says what to change.

    With `asks_hub=False`, a data set of the hub is not loaded, and the inputs have no tasks.
    """
    config.sampling.require_gradient()
    require_trackers(config.train.report_to)
    traced = config.train.trace
    if not isinstance(traced, bool) and max(traced, default=0) > config.train.steps:
        raise ConfigError(
            f"train.trace: there is no step {max(traced)} in a run of {config.train.steps} (train.steps); name steps "
            "up to that, or true for all"
        )
    if config.train.processes % config.engine.shards:
        raise ConfigError(
            f"engine.vllm: tensor_parallel_size {config.engine.shards} is for so many trainer processes, which hold "
            f"the model together, and train.processes is {config.train.processes}; set it to a multiple"
        )
    require_a_gpu_each()
    model_path = find_model(config.model.path)
    checked = check_rollouts(config)
    if config.train.mask.function is not None:
        imported(config.train.mask.function, "train.mask.function:")
    adapted = require_adapter(config, is_dry=not asks_hub)
    require_one_rotation(config_of_model(config.model.path) or {}, config.engine.context_tokens)
    if config.train.trl.get("optim") == KAHAN and importlib.util.find_spec("optimi") is None:
        raise DependencyError(f"train.trl.optim: {KAHAN} is torch-optimi's; bring it with: pip install torch-optimi")
    tokens = config.train.micro_batch_tokens
    architecture = None if tokens is None else config_alone(config.model.path)
    if tokens is not None and architecture is not None:
        require_one_loss(architecture, tokens, config.train.trl.get("router_aux_loss_coef"))
    # The config has checked its own keys, and TRL takes any plain number. It is asked about other arguments after what
    # is quick, because loading it takes seconds, and before problems are read, which may take longer.
    is_plain = all(key in PLAIN and type(value) in (int, float) for key, value in config.train.trl.items())
    if not is_plain and config.train.processes == 1:
        prepare_environment(config.engine.kv_cache_gib)
        training_arguments(config, RunFolder(Path(config.name)))
    groups = _groups_of_batch(config.train)
    if config.tasks.is_from_hub and not asks_hub:
        require_hub_id(str(config.tasks.dataset))
        return Inputs(model_path, [], [], checked, adapted)
    train_tasks, heldout_tasks = load_splits(
        config.tasks,
        ("train", config.seed, config.tasks.train),
        ("heldout", 0, config.eval.problems),  # the same problems for every seed
        compared=not environment_pays(config),
    )
    if len(train_tasks) < groups:  # TRL would end at once, without a step
        takes = f"a step takes train.prompts_per_step {config.train.prompts_per_step}"
        if groups != config.train.prompts_per_step:
            takes = f"{groups} are rolled out at a time (train.trl.steps_per_generation, generation_batch_size)"
        raise ConfigError(
            f"there are {len(train_tasks)} different problems to train on, and {takes}; lower that, raise tasks.train "
            f"({config.tasks.train}), or add problems"
        )
    return Inputs(model_path, train_tasks, heldout_tasks, checked, adapted)


def _groups_of_batch(train: TrainConfig) -> int:
    """How many groups are rolled out at a time: those of a step, or of several that train on one batch.

    Raises ConfigError if a step would roll out several batches: its records and counts are those of one. TRL refuses
    what is not a number.
    """
    trajectories = train.prompts_per_step * train.group_size
    micro_batch = train.micro_batch or train.trajectories_per_process
    size = train.trl.get("generation_batch_size")
    passes = train.trl.get("steps_per_generation")
    iterations = train.trl.get("num_iterations", 1)
    if isinstance(passes, int):
        size = passes * micro_batch * train.processes
    if not isinstance(size, int) or not isinstance(iterations, int):
        return train.prompts_per_step
    if size * iterations < trajectories:
        name = "generation_batch_size" if passes is None else "steps_per_generation"
        raise ConfigError(
            f"train.trl.{name}: {train.trl[name]}: {size} of the {trajectories} trajectories of a step would be rolled "
            "out at a time, and a step's records and counts are those of one batch; leave it out. How much a backward "
            f"pass takes is train.micro_batch ({micro_batch}), and how much a step takes train.prompts_per_step"
        )
    return size // train.group_size


def train(prepared: Prepared, progress: Progress, **extra: Any) -> TrainingOutcome:
    """Train, with an evaluation before and after. Kernels and engine are closed when this returns or raises.

    `extra` are further arguments of the trainer.
    """
    config = prepared.config
    prepare_environment(config.engine.kv_cache_gib)
    if "trackio" in config.train.report_to:
        # which is read when trackio is imported, and TRL imports it
        os.environ.setdefault("TRACKIO_DIR", str((prepared.folder.trackers / "trackio").resolve()))
    with ExitStack() as stack:
        prepared, arguments = stack.enter_context(_cluster_of(prepared, progress))
        with progress.stage("loading the model, vLLM and the first kernels"):
            trainer = open_trainer(prepared, **arguments | extra)
        stack.callback(trainer.close)
        trainer.service.watched = partial(progress.part, "sessions")
        trackers = stack.enter_context(open_trackers(trainer, prepared.config, prepared.folder))
        if is_main_process():
            prepared.folder.forget_after(0 if prepared.checkpoint is None else checkpoint_step(prepared.checkpoint))
        before = _evaluate(trainer, prepared, 0, progress, trackers)
        began_s = time.perf_counter()
        is_in_time = _fit(trainer, prepared, progress)
        seconds = time.perf_counter() - began_s
        step = trainer.state.global_step
        if step < config.train.steps and is_in_time:  # interrupted
            return TrainingOutcome(before, None, seconds, step)
        if not from_main(lambda: prepared.folder.has_model_of(step)):
            trainer.save_whole(prepared.folder.model)
        after = _evaluate(trainer, prepared, step, progress, trackers)
        if from_main(lambda: prepared.folder.made_again(config)):
            trainer.save_whole(prepared.folder.model)
            raise lost_folder(prepared.folder, f"the model of step {step}")
        return TrainingOutcome(before, after, seconds, step)


@contextmanager
def _cluster_of(prepared: Prepared, progress: Progress) -> Iterator[tuple[Prepared, dict[str, Any]]]:
    """For a config with a cluster, the run with the servers that were started there, and the trainer's arguments. Of
    several processes, the main one alone is connected to it."""
    config = prepared.config
    if config.cluster is None:
        yield prepared, {}
        return
    from repl_rl.cluster import RolloutCluster, connect, open_replicas
    from repl_rl.engine.server import VLLMServerEngine

    if not is_main_process():
        yield prepared, {"make_runner": RolloutCluster}
        return
    path = resolve_model(config.model.path)
    with ExitStack() as stack:
        stack.enter_context(connect(config.cluster))
        stage = f"starting {config.cluster.replicas} vLLM servers in the cluster"
        with progress.stage(stage) if config.cluster.replicas else nullcontext():
            replicas = stack.enter_context(open_replicas(config, path))
        engine = config.engine.model_copy(update={"servers": replicas.urls or config.engine.servers})
        config = config.model_copy(update={"engine": engine})
        runner = partial(RolloutCluster, config=config, path=path, locate=replicas.locate)
        arguments: dict[str, Any] = {"make_runner": runner}
        if replicas.urls:
            arguments["make_engine"] = partial(VLLMServerEngine, locate=replicas.locate)
        yield replace(prepared, config=config), arguments


def open_trainer(prepared: Prepared, **extra: Any) -> ReplGRPOTrainer:
    """Load the model, the engine and the first kernels. `extra` are further arguments of the trainer."""
    from repl_rl.trainer import ReplGRPOTrainer

    config = prepared.config
    return ReplGRPOTrainer(
        resolve_model(config.model.path),
        training_arguments(config, prepared.folder),
        prepared.inputs.train_tasks,
        checked=prepared.inputs.checked,
        peft_config=lora_config(config.train),
        **extra,
    )


def training_arguments(config: Config, folder: RunFolder, **extra: Any) -> ReplGRPOConfig:
    """A trainer's arguments for a run in `folder`; `extra` overrides them. Raises ConfigError if TRL refuses them."""
    from repl_rl.trainer import ReplGRPOConfig

    return ReplGRPOConfig.from_config(
        config,
        str(folder.checkpoints),
        run_name=folder.path.name,
        rollout_dir=str(folder.rollouts),
        **extra,
    )


def _evaluate(
    trainer: ReplGRPOTrainer, prepared: Prepared, step: int, progress: Progress, trackers: Trackers
) -> dict[str, Any]:
    """Held-out solve rate at `step`, taken from the run folder if it was measured there with the same settings."""
    settings = prepared.config.eval_settings
    stored = from_main(lambda: prepared.folder.evaluation(step, settings))
    if stored is not None:
        return stored
    tasks = prepared.inputs.heldout_tasks
    progress.say(f"{len(tasks)} held-out problems at step {step} ...")
    timeline = trainer.timeline
    with timeline.written(f"evaluation at step {step}", prepared.folder.trace / f"eval_{step:05d}.json.gz", step=step):
        trainer.sync_weights()
        sampling = prepared.config.eval_sampling.seeded(f"{prepared.config.seed}/heldout/0")
        table = prepared.inputs.checked.table
        numbers, trajectories = evaluate(trainer.service, tasks, table, sampling, step=step, timeline=timeline)
        row = {"kind": "eval", "step": step, **numbers, "settings": settings}
        with timeline.phase("write rollouts"):
            if is_main_process():
                prepared.folder.keep_evaluation(step, row, trajectories)
        with timeline.phase("tell trackers"):
            trackers.evaluated(row, trajectories)
    progress.evaluated(row)
    return row


def _fit(trainer: ReplGRPOTrainer, prepared: Prepared, progress: Progress) -> bool:
    """Train, and return False if `train.max_minutes` ended it, else True."""
    from transformers import PrinterCallback

    from repl_rl.run import callbacks
    from repl_rl.run.callbacks import StopEarly, WarnOnce, flat_groups, missing_trees
    from repl_rl.trainer.step_log import RecordSteps

    config = prepared.config.train
    checkpoint = None
    if prepared.checkpoint is not None:
        checkpoint = str(prepared.checkpoint)
        reached = checkpoint_step(prepared.checkpoint)
        rest = "; no step remains, and only what is missing is measured" if reached == config.steps else ""
        progress.say(f"resuming from step {reached}{rest}")

    trainer.remove_callback(PrinterCallback)
    warnings = [
        WarnOnce(partial(flat_groups, groups=_groups_of_batch(config)), config.steps, progress),
        WarnOnce(missing_trees, config.steps, progress),
    ]
    listeners = [warning.step for warning in warnings]
    trainer.add_callback(RecordSteps(prepared.folder.append, progress.step, *listeners))
    limit_s = math.inf if config.max_minutes is None else 60 * config.max_minutes
    stop = StopEarly(limit_s, lambda: is_main_process() and prepared.folder.made_again(prepared.config))
    trainer.add_callback(stop)
    trainer.add_callback(callbacks.FollowArguments())
    trainer.add_callback(callbacks.TellOfPasses(progress))

    text = "stopping after this step, with a checkpoint; press Ctrl-C again to stop at once"
    with progress.steps(config.steps), progress.interrupts(text, stop.request):
        trainer.train(resume_from_checkpoint=checkpoint)
    if stop.is_homeless:
        raise lost_folder(prepared.folder, f"a checkpoint of step {trainer.state.global_step}")
    return not stop.is_over


def lost_folder(folder: RunFolder, holds: str) -> RunError:
    return RunError(
        f"{folder.path} was removed or moved away while the run was on. It is there again, with {holds}; what it held "
        "before is where it went"
    )
