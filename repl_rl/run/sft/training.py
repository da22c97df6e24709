"""Fine-tuning from config to report: sessions, a held-out evaluation, TRL's `SFTTrainer`, a held-out evaluation.

The run's folder is as that of `repl-rl train`. `sft.jsonl` holds the sessions that are trained on, in the tokens of the
model, and a run that is resumed takes them from there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from repl_rl.config import Config
from repl_rl.engine.environment import freed_memory_kept, prepare_environment
from repl_rl.errors import ConfigError
from repl_rl.models import find_model, resolve_model
from repl_rl.models.find import config_of_model
from repl_rl.models.skeleton import require_one_rotation
from repl_rl.models.whole import no_gaps
from repl_rl.rollout import Checked, check_rollouts, environment_pays, open_service
from repl_rl.run.evaluate import evaluate
from repl_rl.run.folder import RunFolder, checkpoint_step
from repl_rl.run.lora import lora_config, require_adapter
from repl_rl.run.progress import Progress
from repl_rl.run.sft.sessions import LeftOut, choose, read_sessions, type_again
from repl_rl.run.trackers import require_trackers
from repl_rl.run.training import TrainingOutcome, lost_folder
from repl_rl.tasks import load_splits
from repl_rl.trajectory import Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.utils.distributed import from_main, is_main_process, join
from repl_rl.view.run import FINE_TUNED
from repl_rl.view.words import counted


@dataclass(frozen=True, slots=True)
class SftInputs:
    """What a config and the recorded sessions ask for, checked."""

    config: Config
    checked: Checked
    heldout_tasks: list[Task]
    chosen: list[tuple[Task, Trajectory]]
    left_out: LeftOut


def check_inputs(config: Config, files: Sequence[Path]) -> SftInputs:
    """Everything that needs no model and no interpreter. Raises a ReplRLError that says what to change."""
    if config.rollout is not None:
        raise ConfigError(
            f"rollout {config.rollout!r}: sessions are typed again by the line loop, which it replaces; leave it out"
        )
    if config.engine.servers or config.cluster is not None:
        elsewhere = "engine.servers" if config.engine.servers else "cluster"
        raise ConfigError(
            f"{elsewhere}: held-out problems are measured with the model before and after, which sft loads itself; "
            "leave it out"
        )
    require_trackers(config.train.report_to)
    find_model(config.model.path)
    checked = check_rollouts(config)
    require_adapter(config)
    require_one_rotation(config_of_model(config.model.path) or {}, config.engine.context_tokens)
    prepare_environment(config.engine.kv_cache_gib)
    join()
    from repl_rl.trainer.sft import sft_arguments

    sft_arguments(config, config.name)
    [heldout_tasks] = load_splits(
        config.tasks, ("heldout", 0, config.eval.problems), compared=not environment_pays(config)
    )
    left_out = LeftOut()
    chosen = choose(config, read_sessions(files), left_out) if files else []
    if files and not chosen:
        raise ConfigError(_nothing_left(left_out))
    return SftInputs(config, checked, heldout_tasks, chosen, left_out)


def _nothing_left(left_out: LeftOut) -> str:
    reasons = "; ".join(left_out.sentences())
    return f"no session is left to train on: {reasons}" if reasons else "there is no session in these files"


def prepare_sessions(inputs: SftInputs, folder: RunFolder, progress: Progress) -> list[Trajectory]:
    """The sessions that are trained on, from the run's folder, or else typed again and kept there.

    Of several processes, the main one types them. Raises ConfigError, with the reasons, if none is left, and for a run
    that is resumed and has none yet.
    """
    from_main(lambda: _keep_sessions(inputs, folder, progress))
    return kept_sessions(folder)


def kept_sessions(folder: RunFolder) -> list[Trajectory]:
    """The sessions that a run trains on. Raises ConfigError if it has none."""
    path = folder.path / FINE_TUNED
    if not path.exists():
        raise _no_sessions(folder)
    return list(read_jsonl(path))


def _no_sessions(folder: RunFolder) -> ConfigError:
    return ConfigError(
        f"{folder.path} has no sessions to go on with ({FINE_TUNED}): it is a run of `repl-rl train`, or was ended "
        "before its sessions were typed again; begin anew with --from"
    )


def _keep_sessions(inputs: SftInputs, folder: RunFolder, progress: Progress) -> None:
    path = folder.path / FINE_TUNED
    if path.exists():
        return
    if not inputs.chosen:
        raise _no_sessions(folder)
    config = inputs.config
    model = resolve_model(config.model.path)
    progress.say(f"{counted(len(inputs.chosen), 'session')}, typed again in the tokens of {config.model.path} ...")
    with progress.part("sessions", len(inputs.chosen)) as count_one:
        typing = type_again(config, model, inputs.checked, inputs.chosen, inputs.left_out, count_one)
        sessions = asyncio.run(typing)
    for sentence in inputs.left_out.sentences():
        progress.say(f"  left out: {sentence}")
    if not sessions:
        raise ConfigError(_nothing_left(inputs.left_out))
    part = path.with_suffix(".part")  # a run that is killed meanwhile has all of them or none
    write_jsonl(part, sessions)
    part.replace(path)


def steps_of(config: Config, sessions: int) -> int:
    """The optimiser steps of fine-tuning on so many sessions."""
    steps_per_epoch = math.ceil(sessions / config.sft.batch)
    return max(1, math.ceil(steps_per_epoch * config.sft.epochs))


def fine_tune(
    inputs: SftInputs, folder: RunFolder, sessions: Sequence[Trajectory], progress: Progress
) -> TrainingOutcome:
    """Train, with an evaluation before and after. One model is loaded at a time. All processes call this together."""
    config = inputs.config
    checkpoint = folder.last_checkpoint()
    if is_main_process():
        folder.forget_after(0 if checkpoint is None else checkpoint_step(checkpoint))
    before = _evaluate(inputs, folder, config.model.path, 0, progress)
    began_s = time.perf_counter()
    step, is_complete = _fit(config, folder, sessions, checkpoint, progress)
    seconds = time.perf_counter() - began_s
    if not is_complete:
        return TrainingOutcome(before, None, seconds, step)
    after = _evaluate(inputs, folder, str(folder.model), step, progress)
    return TrainingOutcome(before, after, seconds, step)


def _evaluate(inputs: SftInputs, folder: RunFolder, model: str, step: int, progress: Progress) -> dict[str, Any]:
    """Held-out solve rate of `model`, taken from the run folder if it was measured there with the same settings."""
    config = inputs.config
    settings = config.eval_settings
    stored = from_main(lambda: folder.evaluation(step, settings))
    if stored is not None:
        return stored
    tasks = inputs.heldout_tasks
    progress.say(f"{len(tasks)} held-out problems at step {step} ...")
    model_config = config.model.model_copy(update={"path": model})
    evaluated = config.model_copy(update={"model": model_config})
    sampling = config.eval_sampling.seeded(f"{config.seed}/heldout/0")
    with open_service(evaluated, checked=inputs.checked) as service:
        service.watched = partial(progress.part, "sessions")
        numbers, trajectories = evaluate(service, tasks, inputs.checked.table, sampling, step=step)
    row = {"kind": "eval", "step": step, **numbers, "settings": settings}
    if is_main_process():
        folder.keep_evaluation(step, row, trajectories)
    progress.evaluated(row)
    return row


def _fit(
    config: Config,
    folder: RunFolder,
    sessions: Sequence[Trajectory],
    checkpoint: Path | None,
    progress: Progress,
) -> tuple[int, bool]:
    """Train. Returns the step that it reached, and whether that is the last one: of all, or in the time that it has.
    Then the model is left in the run's folder."""
    from transformers import AutoTokenizer, PrinterCallback

    from repl_rl.run.callbacks import StopEarly, TellOfPasses
    from repl_rl.trainer.sft import SessionSftTrainer, sft_arguments, sft_row
    from repl_rl.trainer.step_log import RecordSteps

    path = resolve_model(config.model.path)
    plan = config.sft
    rows = [sft_row(session, plan.masked, bool(plan.output_weight)) for session in sessions]
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    with progress.stage("loading the model"), no_gaps():
        trainer = SessionSftTrainer(
            path,
            sft_arguments(config, str(folder.checkpoints)),
            rows,
            plan.output_weight,
            processing_class=tokenizer,
            peft_config=lora_config(config.train),
        )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RecordSteps(folder.append, progress.fine_tuned, mark="mean_token_accuracy"))
    limit_s = math.inf if config.train.max_minutes is None else 60 * config.train.max_minutes
    stop = StopEarly(limit_s, lambda: is_main_process() and folder.made_again(config))
    trainer.add_callback(stop)
    trainer.add_callback(TellOfPasses(progress))
    text = "stopping after this step, with a checkpoint; press Ctrl-C again to stop at once"
    with progress.steps(config.train.steps), progress.interrupts(text, stop.request), freed_memory_kept():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    step = int(trainer.state.global_step)
    if stop.is_homeless:
        raise lost_folder(folder, f"a checkpoint of step {step}")
    is_complete = step == config.train.steps or stop.is_over
    if is_complete:
        trainer.save_whole(folder.model)
    return step, is_complete
