"""GRPO on typed lines: TRL's `GRPOTrainer` with a step, a loss and an engine of ours.

- A step, from rows of the data set to the tensors of the loss, is `repl_rl.trainer.step`. Rollouts come from the line
  loop, with a live interpreter for every session; advantages are of lines, (B, T).
- The loss is `repl_rl.trainer.loss`; the interpreter's tokens are masked in all of it but the loss on the output
  (`output_loss`), which is off by default.
- Forward passes see rows without padding, and the head typed tokens only (`repl_rl.trainer.typed_tokens`).
- The engine is ours, in a dtype of its own; TRL's weight sync, or its iteration over the weights, updates it.

The rest of TRL stays as it is:

- before a step: arguments, models, references and adapters, data loaders. `_prepare_inputs` asks for a step where a
  batch is used up, shuffles its rows and splits them into the batches of its updates;
- in a step: `_calculate_rewards` calls reward functions, and `_get_per_token_logps_and_entropies` runs passes that
  can't do without padding;
- after it: `compute_loss` asks for the loss; backward, optimizer, schedule, logs and checkpoints are transformers'.

Its `_generate_and_score_completions` and `_compute_loss` are replaced whole, and its own generation and loop of tools
(`_generate` and what that calls) are not reached. `tests/engine/test_contracts.py` checks what this relies on. B batch,
T completion tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback, set_seed

from repl_rl.config import ModelConfig
from repl_rl.config.section import Excluding, refuse_excluding
from repl_rl.engine import Sleeps, make_engine
from repl_rl.engine.factory import EngineMaker
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, KernelSource
from repl_rl.models.find import checkpoint_of_name, loading
from repl_rl.models.skeleton import require_trainable
from repl_rl.models.whole import begin_as_in_main, no_gaps, no_zeros
from repl_rl.rewards import RewardFunction
from repl_rl.rollout import Checked, Grader, MakeRunner, RolloutSetup, check_rollouts, make_extensions
from repl_rl.tasks import grade
from repl_rl.trainer.arguments import ReplGRPOConfig
from repl_rl.trainer.mask import leaves_out
from repl_rl.trainer.resume import ResumableTrainer
from repl_rl.trainer.reward_functions import (
    all_processing_classes,
    all_weights,
    asked_of_valid,
    completions_of,
    component_sum,
    try_functions,
    unscored,
)
from repl_rl.trainer.rows import as_dataset, as_eval_datasets, rows_of_environment, task_of
from repl_rl.trainer.shared_rollouts import engine_maker, start
from repl_rl.trainer.step import Sessions, StepParts, make_batch, reward_columns
from repl_rl.trainer.typed_tokens import TypedTokenTrainer
from repl_rl.trainer.weights import EngineGeneration
from repl_rl.trajectory import Task
from repl_rl.utils.distributed import process_count

_LOADS = ("load_from_json", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state")
"""What transformers calls with a checkpoint."""
_EXCLUDING: tuple[Excluding, ...] = (
    (("environment", "reward_funcs", "asynchronous"), "environments are closed before reward functions are called"),
    (("environment", "reward_funcs", "make_runner"), "reward functions can't be given environments of other machines"),
    (("asynchronous", "an iterable data set"), "tasks are taken ahead, by their rows"),
    (("task_sampling", "an iterable data set"), "tasks are drawn by their rows"),
    (("redraws", "an iterable data set"), "further tasks are drawn by their rows"),
)

logger = logging.getLogger(__name__)


class ReplGRPOTrainer(TypedTokenTrainer, ResumableTrainer):
    """`GRPOTrainer` whose completions are sessions in a live interpreter.

    `model` is a checkpoint's folder, a hub id, a name that `model.path` of a config takes (`nano`,
    `qwen2.5-coder-0.5b`), a GGUF file, or a model of transformers.
    `train_dataset` is a sequence of `Task`s, or a Dataset with the column `prompt` (the question, or messages that end
    with it) and, if there is no other source of reward, `answer`, both checked as those of files are; or a stream of
    such rows (IterableDataset), of which the first is checked. It may be left out if an environment gives the questions
    (`reset`). `eval_dataset` is another, or several by their names. `grader` maps `(task, answer)` to a grade, outside
    the sandbox. `line_rewards` are functions `(trajectory) -> one float per line`, like those in
    `args.rewards.functions`; `reward_funcs` are TRL's, one float per completion, tried once before anything is loaded,
    and added to the last line's reward.
    `processing_class` is a tokenizer to take in place of the model's.
    `tools` are functions that the model may call, in the sandbox unless `@tool` or `tools_where` says otherwise.
    `environment` (or TRL's `environment_factory`) makes one object per trajectory; `rollout` replaces the line loop,
    and `guests` are classes of what looks on (`repl_rl.rollout.Guest`).
    `wrap_kernels` puts something around the pool that sessions are taken from; `make_runner` puts the line loop (one
    for all processes) somewhere else, and `make_engine` takes another engine than `args.engine` names. Who has called
    `check_rollouts` for these arguments gives what came of it (`checked`) in place of tools, environment, rollout,
    guests and line rewards.

    Raises ConfigError, ModelError, DependencyError or RewardError before anything is loaded.
    """

    _tag_names = ("trl", "grpo", "repl-rl")

    def __init__(
        self,
        model: Any,
        args: ReplGRPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | Sequence[Task] | None = None,
        *,
        grader: Grader = grade,
        line_rewards: Sequence[RewardFunction] = (),
        reward_funcs: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None = None,
        reward_processing_classes: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Sequence[Any] | None = None,
        tools_where: Literal["sandbox", "host"] = "sandbox",
        environment: Any = None,
        environment_factory: Any = None,
        rollout: Any = None,
        rollout_func: Any = None,
        guests: Sequence[Any] = (),
        wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
        make_runner: MakeRunner | None = None,
        make_engine: EngineMaker = make_engine,
        checked: Checked | None = None,
    ) -> None:
        if environment is not None and environment_factory is not None:
            raise ConfigError("environment and environment_factory are two names for one thing; give one of them")
        if rollout_func is not None:
            raise ConfigError(
                "rollout_func takes the place of TRL's sampling, which is not asked here, so it would never be called; "
                "give a loop of your own as rollout, an async function (tasks, engine, kernels): docs/tools.md has one"
            )
        path = model if isinstance(model, str) else model.name_or_path
        if args is None:
            args = ReplGRPOConfig(f"{Path(path).name}-GRPO")  # as TRL names it
        if not isinstance(args, ReplGRPOConfig):
            raise ConfigError(
                f"args is {type(args).__name__}, which says nothing of sessions; give a ReplGRPOConfig, which takes "
                "TRL's arguments as well"
            )
        _require_whole_groups(args)
        _require_tokenizer(processing_class)
        _require_whole_steps(args)
        adapter = getattr(model, "active_peft_config", None) if peft_config is None else peft_config
        if getattr(adapter, "is_prompt_learning", False):
            raise ConfigError(
                f"peft_config is {type(adapter).__name__}, which trains a prompt and no weights; the engine would "
                "sample without it. Take an adapter of weights, such as LoraConfig"
            )
        owner = environment if environment_factory is None else environment_factory
        if checked is None:
            args.config.require_unbiased_forks()  # of a config that was made in Python, nobody has asked yet
            # A grader has to be sent to the rollouts' process only where they ask it.
            grades_in_rollouts = args.branch is not None and args.branch.looks_at_outcomes
            rollout_grader = grader if grades_in_rollouts else grade
            extensions = make_extensions(tools or (), tools_where, owner, rollout, rollout_grader, guests)
            checked = check_rollouts(args, extensions, line_rewards)
        self._extensions = checked.extensions
        self._table = checked.table
        has_environment = self._extensions.environment is not None
        options = {
            "environment": has_environment,
            "asynchronous": args.asynchronous,
            "task_sampling": args.task_sampling != "uniform",
            "reward_funcs": bool(reward_funcs),
            "make_runner": make_runner is not None,
            "redraws": args.redraws > 0,
            "an iterable data set": isinstance(train_dataset, IterableDataset),
        }
        refuse_excluding(_EXCLUDING, options.__getitem__)
        self._grader = grader
        self._is_left_out = leaves_out(args.mask)
        functions: list[Any] = []
        if callable(reward_funcs) or isinstance(reward_funcs, str):  # a text is the name of a reward model
            functions.append(reward_funcs)
        else:
            functions += reward_funcs or ()
        # the shipped grader needs reference answers, unless the reward comes from elsewhere
        grades_by_answers = not has_environment and grader is grade
        self._needs_answers = grades_by_answers and not functions
        self._functions_grade_alone = grades_by_answers and bool(functions)  # where a row has no answer
        if train_dataset is None:
            _require_questions(owner, args)
            train_rows = rows_of_environment(args.generation_batch_size // args.num_generations)
        else:
            if isinstance(train_dataset, IterableDataset):
                _require_end("a stream of rows", args)
            train_rows = as_dataset(train_dataset, self._needs_answers, has_environment)
            _require_environments(owner, train_rows)
        eval_rows = as_eval_datasets(eval_dataset, self._needs_answers, has_environment)
        if functions:
            first_row = next(iter(train_rows))
            task = task_of(first_row)
            probe = self._table.tried
            trajectory = replace(
                probe.trajectory,
                task_id=task.id,
                question=task.question,
                family=task.family,
                reference=task.answer,
            )
            session = replace(probe, trajectory=trajectory)
            try_functions(functions, first_row, args.num_generations, session, has_environment)
        components = self._table.component_names
        args.reward_weights = all_weights(args.reward_weights, components, len(functions))
        processing_classes = all_processing_classes(reward_processing_classes, components, len(functions))
        if isinstance(model, str):
            model = path = checkpoint_of_name(model)
        setup = RolloutSetup.for_model(args, path, self._extensions, wrap_kernels, processing_class)
        rewards = [component_sum(name) for name in components]
        rewards += [asked_of_valid(function) for function in functions]
        set_seed(args.seed)  # new adapters begin at random
        with loading(f"the model at {path!r} can't be loaded", "from_pretrained"):
            require_trainable(
                model, args.engine.context_tokens, args.micro_batch_tokens, args.router_aux_loss_coef, peft_config
            )
            if not isinstance(model, str) and process_count() > 1:
                begin_as_in_main(model, args.device)
            with no_zeros(), no_gaps():
                super().__init__(
                    model=model,
                    args=args,
                    reward_funcs=rewards,
                    train_dataset=train_rows,
                    eval_dataset=eval_rows,
                    processing_class=setup.vocabulary.tokenizer,
                    reward_processing_classes=processing_classes,
                    callbacks=callbacks,
                    optimizers=optimizers,
                    quantization_config=quantization_config,
                    peft_config=peft_config,
                )
        self._last_rollouts_at: float | None = None
        self._open_engine(path, setup, make_runner, make_engine)

    def _open_engine(self, path: str, setup: RolloutSetup, make_runner: MakeRunner | None, make_engine: Any) -> None:
        """Start the engine and the kernels, and put the engine where TRL's weight sync looks for it."""
        args = cast(ReplGRPOConfig, self.args)
        dtype = args.sampler_dtype or str(next(self.model.parameters()).dtype).removeprefix("torch.")
        model = ModelConfig.model_validate({"path": path, "dtype": dtype})
        make = engine_maker(args, make_runner, make_engine)
        self.engine = make(path, setup.vocabulary, model, args.engine, args.seed)
        try:
            self.vllm_generation = EngineGeneration(
                self.engine,
                getattr(torch, dtype),
                model=self.model,
                accelerator=self.accelerator,
                processing_class=self.processing_class,
            )
            self.service = start(self.engine, setup, args, make_runner)
        except BaseException:
            self.engine.close()
            raise
        self.use_vllm = True
        self._last_loaded_step = -1

    def close(self) -> None:
        """Close the kernels and the engine. A second call does nothing."""
        self.queue.close()
        try:
            self.service.close()
        finally:
            self.engine.close()

    def train(self, *arguments: Any, **named: Any) -> Any:
        """As TRL's. Raises ConfigError if the data set has too few rows for a single batch: TRL would end at once."""
        groups = self.args.generation_batch_size // self.num_generations
        if not isinstance(self.train_dataset, IterableDataset) and len(self.train_dataset) < groups:
            raise ConfigError(
                f"train_dataset has {len(self.train_dataset)} rows, and {groups} groups are rolled out at a time "
                f"(generation_batch_size {self.args.generation_batch_size}, num_generations {self.num_generations}); "
                "give more rows, or lower per_device_train_batch_size or steps_per_generation"
            )
        if self.state.global_step != self._last_loaded_step:
            self._last_loaded_step = -1  # steps are counted anew, and the engine may have the weights of such a number
        try:
            with loading("the checkpoint can't be resumed from; remove it, and the one before counts", *_LOADS):
                return super().train(*arguments, **named)
        finally:
            self.queue.close()

    def evaluate(self, eval_dataset: Any = None, *arguments: Any, **named: Any) -> dict[str, float]:
        """As TRL's. `eval_dataset` may also be tasks, or several sets by their names."""
        rows = as_eval_datasets(eval_dataset, self._needs_answers, self._extensions.environment is not None)
        with self.timeline.phase("evaluate"):
            metrics: dict[str, float] = super().evaluate(rows, *arguments, **named)
        return metrics

    def log(self, *arguments: Any, **named: Any) -> None:
        with self.timeline.phase("log"):
            super().log(*arguments, **named)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        with self.timeline.phase("save checkpoint"):
            super()._save_checkpoint(*arguments, **named)

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine, if they have changed since the last call."""
        if self.state.global_step != self._last_loaded_step:
            with self.timeline.phase("sync weights"):
                self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step

    def save_whole(self, folder: Path) -> None:
        """Save what engines can load: whole weights, with adapters merged, and the tokenizer. All processes have to
        call this."""
        self.vllm_generation.save(folder)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole of a step up to its loss, in the place of TRL's: see `repl_rl.trainer.step`."""
        self.sync_weights()
        batch, sessions = make_batch(inputs, self._step_parts())
        self._last_rollouts_at = sessions.ended_at
        self.step_log.values({"passes/packed": float(self.packs), "passes/one_call": float(self.attends_at_once)})
        return batch

    def _step_parts(self) -> StepParts:
        args = self.args
        accelerator = self.accelerator
        is_training = self.model.training
        tools = [tool.name for tool in self._extensions.toolbox.tools]
        has_tools = bool(tools) or self._extensions.environment is not None
        path = None
        if is_training and self.rollout_dir is not None:
            path = Path(str(self.rollout_dir)) / f"step_{self.state.global_step + 1:05d}.jsonl"
        return StepParts(
            args=args,
            is_training=is_training,
            group_size=self.num_generations if is_training else self.num_generations_eval,
            updates=self.state.global_step,
            batch_number=self._step,
            process=accelerator.process_index,
            processes=accelerator.num_processes,
            dataset=self.train_dataset,
            task_ids=self._task_ids if args.task_sampling == "pass_rate" else (),
            pass_rates=self.pass_rates,
            queue=self.queue,
            service=self.service,
            sampling=self.batch_sampling,
            after_rollouts=self._rest_engine,
            last_rollouts_at=self._last_rollouts_at,
            tools=tools if has_tools else None,
            grader=self._grader,
            table=self._table,
            reward=self._reward,
            reward_weights=self.reward_weights.tolist(),
            critic=self.critic if is_training else None,
            policy_logprobs=self.policy_logprobs,
            reference_logprobs=None if self.beta == 0.0 else self.reference_logprobs,
            correction=self._loss_settings.correction,
            is_left_out=self._is_left_out,
            gather=accelerator.gather,
            device=accelerator.device,
            log=self.step_log,
            timeline=self.timeline,
            rollouts_path=path,
        )

    def _rest_engine(self) -> None:
        """Let an engine in this process give its memory to the trainer. It needs its weights again afterwards."""
        if isinstance(self.engine, Sleeps) and self.engine.sleep():
            self._last_loaded_step = -1

    def _reward(self, sessions: Sessions) -> torch.Tensor:
        """What each reward function gives each session of this process, (N, functions). `sessions` are whole."""
        has_environments = self._extensions.environment is not None and not self.queue.is_open
        prompts = [row["prompt"] for row in sessions.rows]
        pad_id = self.service.vocabulary.pad_id
        prompt_ids = []
        completion_ids = []
        for trajectory in sessions.trajectories:  # whole, also where a compaction or a fork makes several rows of it
            prompt_ids.append(list(trajectory.prompt_ids))
            completion_ids.append([pad_id] if trajectory.is_void else list(trajectory.completion_ids))
        completions = completions_of(self.processing_class, prompts, prompt_ids, completion_ids)
        columns = reward_columns(sessions, has_environments)
        # (sessions of all processes, functions)
        rewards: torch.Tensor = self._calculate_rewards(columns, prompts, completions, completion_ids)
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        self.step_log.rewards(rewards, self.reward_func_names, self.reward_weights, group_size)
        self.step_log.completions(prompts, completions, rewards, self.reward_func_names)
        start = self.accelerator.process_index * len(prompts)
        of_this_process = rewards[start : start + len(prompts)]
        if self._functions_grade_alone:
            self._warn_of_unscored(of_this_process, sessions)
        return of_this_process

    def _warn_of_unscored(self, rewards: torch.Tensor, sessions: Sessions) -> None:
        """Say if reward functions left sessions without a reward which nothing else grades."""
        ours = len(self._table.component_names)
        silent = unscored(rewards[:, ours:], sessions.scored)
        ungraded = [session.trajectory.task_id for session in silent if not session.trajectory.reference]
        if ungraded:
            logger.warning(
                "step %d: %s returned None for %d of %d sessions, the first of task %r, and nothing else grades them: "
                "they count as 0, in their group's baseline too; return a number, or give answers or a grader",
                self.state.global_step + 1,
                ", ".join(self.reward_func_names[ours:]),
                len(ungraded),
                len(sessions.scored),
                ungraded[0],
            )

    def _generate(self, prompts: list[Any]) -> Any:
        """TRL's loop of tools, which nothing of ours calls."""
        raise NotImplementedError("sessions are rolled out by the line loop (repl_rl.trainer.step), not by TRL")

    @cached_property
    def _task_ids(self) -> list[str]:
        return [task_of(row).id for row in self.train_dataset]


def _require_whole_groups(args: ReplGRPOConfig) -> None:
    """Raises ConfigError if a process would have a part of a group, whose sessions are compared in one process. TRL
    looks at the batches of all processes together, and at those of evaluations only where it evaluates by itself."""
    values: Any = args
    batches = [
        (
            values.train_batch_size * values.steps_per_generation,
            values.num_generations,
            "per_device_train_batch_size times steps_per_generation",
        )
    ]
    if values.eval_strategy != "no":
        generations = values.num_generations_eval or values.num_generations
        batches.append((values.eval_batch_size, generations, "per_device_eval_batch_size"))
    for sessions, generations, name in batches:
        if sessions % generations:
            raise ConfigError(
                f"{name} is {sessions}, and each process takes whole groups of {generations}, also where the batch of "
                f"all {values.world_size} processes has whole ones; make it a multiple of {generations}"
            )


def _require_tokenizer(processing_class: Any) -> None:
    """Raises ConfigError for what is given in place of the model's tokenizer and is none."""
    if isinstance(processing_class, ProcessorMixin):
        raise ConfigError(
            f"processing_class is {type(processing_class).__name__}, and prompts have no images here; give its "
            "tokenizer (processing_class.tokenizer), or leave it out"
        )
    if processing_class is not None and not isinstance(processing_class, PreTrainedTokenizerBase):
        raise ConfigError(
            f"processing_class is {type(processing_class).__name__}, not a tokenizer of transformers; leave it out to "
            "take the model's"
        )


def _require_whole_steps(args: Any) -> None:
    """Raises ConfigError if a step would roll out several batches: the records and the counts of a step are those of
    one. Where an epoch does not come out even, TRL would also take fewer groups for its last step."""
    passes = args.steps_per_generation * args.num_iterations
    if passes < args.gradient_accumulation_steps:
        raise ConfigError(
            f"steps_per_generation={args.steps_per_generation} with gradient_accumulation_steps="
            f"{args.gradient_accumulation_steps}: a step would roll out several batches, and its records and counts "
            "are those of one; leave steps_per_generation and generation_batch_size out. How much a backward pass "
            "takes is per_device_train_batch_size"
        )


def _require_questions(environment: Any, args: ReplGRPOConfig) -> None:
    """Raises ConfigError unless sessions without a data set have questions, and a run has an end."""
    if environment is None:
        raise ConfigError(
            "train_dataset is None, and there is no environment whose reset() would give questions; give Tasks, or a "
            "Dataset with the column prompt"
        )
    if isinstance(environment, Mapping):
        names = ", ".join(map(repr, environment))
        raise ConfigError(
            f"train_dataset is None, and there are several environments ({names}): a row's column environment says "
            "which is meant; give a Dataset with that column, or one environment"
        )
    _require_end("None", args)


def _require_environments(environment: Any, rows: Dataset | IterableDataset) -> None:
    """Raises ConfigError if rows name none of several environments. Tasks name them in their metadata, and are not
    looked at."""
    if (
        not isinstance(environment, Mapping)
        or isinstance(rows, IterableDataset)
        or "task_metadata" in rows.column_names
    ):
        return
    known = f"there are {', '.join(map(repr, environment))}"
    if "environment" not in rows.column_names:
        raise ConfigError(
            f"the data set has no column 'environment', which says in each row which one is meant; {known}"
        )
    for number, name in enumerate(rows["environment"]):
        if name not in environment:
            raise ConfigError(f"row {number} names the environment {name!r}; {known}")


def _require_end(what: str, args: ReplGRPOConfig) -> None:
    steps: int = getattr(args, "max_steps")  # noqa: B009 - TRL's fields have no types for mypy
    if steps <= 0:
        raise ConfigError(f"train_dataset is {what}, which has no end, and max_steps={steps} gives none; set max_steps")
