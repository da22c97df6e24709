"""GRPO on typed lines, based on TRL's `GRPOTrainer`.

The loss, the optimiser, distribution, checkpoints and the weight sync are TRL's. The differences:

- rollouts come from the line loop, with a live interpreter for every trajectory;
- interpreter tokens are masked (TRL's `env_mask`): loss, KL, entropy and ratios see typed tokens only;
- advantages have the shape (B, T), one value per token, from rewards per line;
- the forward pass sees rows without padding, and the LM head typed tokens only (`repl_rl.trainer.typed_tokens`);
- the engine is ours, in a dtype of its own; TRL's weight sync, or its iteration over the weights, updates it.

B batch, T completion tokens. `tests/engine/test_contracts.py` checks the private methods of TRL that this
overrides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

import torch
from datasets import Dataset, IterableDataset
from transformers import set_seed

from repl_rl.config import BranchConfig, MaskConfig, ModelConfig
from repl_rl.config.section import Excluding, refuse_excluding
from repl_rl.engine import make_engine
from repl_rl.engine.factory import EngineMaker
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, KernelSource
from repl_rl.models.find import loading
from repl_rl.models.skeleton import require_trainable
from repl_rl.models.whole import begin_as_in_main, no_zeros
from repl_rl.rewards import RewardFunction, ScoredTrajectory
from repl_rl.rewards.table import PROBE
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.checks import check_rollouts
from repl_rl.rollout.score import CreditedTrajectory, credit, credit_numbers, reward_table, score
from repl_rl.rollout.service import MakeRunner
from repl_rl.rollout.setup import Grader, RolloutSetup, make_extensions
from repl_rl.tasks import grade
from repl_rl.trainer.arguments import ReplGRPOConfig
from repl_rl.trainer.kept import kept_on_failure
from repl_rl.trainer.mask import covarying, leaves_out
from repl_rl.trainer.of_main import engine_maker, start
from repl_rl.trainer.packed import base_of
from repl_rl.trainer.pass_rates import right_share
from repl_rl.trainer.redraw import further_rows, redraw
from repl_rl.trainer.resample import resampled
from repl_rl.trainer.resume import ResumableTrainer
from repl_rl.trainer.reward_functions import all_weights, asked_of_valid, component_sum, try_functions
from repl_rl.trainer.rows import as_dataset, row_lists, rows_of, task_of
from repl_rl.trainer.step import Step, keep_rewards, typed_of
from repl_rl.trainer.typed_tokens import TypedTokenTrainer
from repl_rl.trainer.weights import EngineGeneration
from repl_rl.trajectory import Task, Trajectory, write_jsonl
from repl_rl.utils.distributed import gather, process_count

_LOADS = ("load_from_json", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state")
"""What transformers calls with a checkpoint."""
_EXCLUDING: tuple[Excluding, ...] = (
    (("environment", "reward_funcs", "asynchronous"), "environments are closed before reward functions are called"),
    (("environment", "reward_funcs", "make_runner"), "reward functions can't be given environments of other machines"),
    (("asynchronous", "an iterable data set"), "tasks are taken ahead, by their rows"),
    (("task_sampling", "an iterable data set"), "tasks are drawn by their rows"),
)


class ReplGRPOTrainer(TypedTokenTrainer, ResumableTrainer):
    """`GRPOTrainer` whose completions are sessions in a live interpreter.

    `train_dataset` is a sequence of `Task`s, or a Dataset with the column `prompt` (the question, or messages that end
    with it) and, if there is no other source of reward, `answer`, both checked as those of files are; so is
    `eval_dataset`. `grader` maps `(task, answer)` to a grade, outside the sandbox. `line_rewards` are functions
    `(trajectory) -> one float per line`, like those in `args.rewards.functions`; `reward_funcs` are TRL's, one float
    per completion, tried once before anything is loaded, and added to the last line's reward.
    `tools` are functions that the model may call, in the sandbox unless `@tool` or `tools_where` says otherwise.
    `environment` (or TRL's `environment_factory`) makes one object per trajectory; `rollout` replaces the line loop,
    and `guests` are classes of what looks on (`repl_rl.rollout.guest.Guest`).
    `wrap_kernels` puts something around the pool that sessions are taken from; `make_runner` puts the line loop (one
    for all processes) somewhere else, and `make_engine` takes another engine than `args.engine` names.

    Raises ConfigError, ModelError, DependencyError or RewardError before anything is loaded.
    """

    _tag_names = ("trl", "grpo", "repl-rl")

    def __init__(
        self,
        model: Any,
        args: ReplGRPOConfig,
        train_dataset: Dataset | Sequence[Task],
        *,
        grader: Grader = grade,
        line_rewards: Sequence[RewardFunction] = (),
        reward_funcs: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = (),
        eval_dataset: Dataset | Sequence[Task] | None = None,
        tools: Sequence[Any] | None = None,
        tools_where: Literal["sandbox", "host"] = "sandbox",
        environment: Any = None,
        environment_factory: Any = None,
        rollout: Any = None,
        guests: Sequence[Any] = (),
        wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
        make_runner: MakeRunner | None = None,
        make_engine: EngineMaker = make_engine,
        **kwargs: Any,
    ) -> None:
        if environment is not None and environment_factory is not None:
            raise ConfigError("environment and environment_factory are two names for one thing; give one of them")
        owner = environment if environment_factory is None else environment_factory
        # A grader has to be sent to the rollouts' process only where they ask it.
        asks = args.branch is not None and args.branch.looks_at_outcomes
        self._extensions = make_extensions(tools or (), tools_where, owner, rollout, grader if asks else grade, guests)
        check_rollouts(args, self._extensions)
        given = {
            "environment": owner is not None,
            "asynchronous": args.asynchronous,
            "task_sampling": args.task_sampling != "uniform",
            "reward_funcs": bool(reward_funcs),
            "make_runner": make_runner is not None,
            "an iterable data set": isinstance(train_dataset, IterableDataset),
        }
        refuse_excluding(_EXCLUDING, given.__getitem__)
        self._table = reward_table(args.rewards, args.credit, line_rewards)
        self._grader, self._is_left_out = grader, leaves_out(args.mask)
        extra: list[Any] = []
        if callable(reward_funcs) or isinstance(reward_funcs, str):  # a text is the name of a reward model
            extra.append(reward_funcs)
        else:
            extra += reward_funcs
        graded = not extra and owner is None and grader is grade
        train_rows = as_dataset(train_dataset, graded)
        eval_rows = None if eval_dataset is None else as_dataset(eval_dataset, graded)
        if extra:
            first = task_of(train_rows[0])
            asked: dict[str, Any] = {
                "task_id": first.id,
                "question": first.question,
                "family": first.family,
                "reference": first.answer,
            }
            made_up = self._table.score(replace(PROBE, **asked), 1.0)
            try_functions(extra, train_rows[0], args.num_generations, made_up, owner is not None)
        path = model if isinstance(model, str) else model.name_or_path
        setup = RolloutSetup.for_model(args, path, self._extensions, wrap_kernels)
        args.reward_weights = all_weights(args.reward_weights, self._table.component_names, len(extra))
        set_seed(args.seed)  # new adapters begin at random
        with loading(f"the model at {path!r} can't be loaded", "from_pretrained"):
            require_trainable(model, args.micro_batch_tokens, args.router_aux_loss_coef, kwargs.get("peft_config"))
            if not isinstance(model, str) and process_count() > 1:
                begin_as_in_main(model, args.device)
            with no_zeros():
                super().__init__(
                    model=model,
                    args=args,
                    reward_funcs=[*map(component_sum, self._table.component_names), *map(asked_of_valid, extra)],
                    train_dataset=train_rows,
                    eval_dataset=eval_rows,
                    processing_class=kwargs.pop("processing_class", setup.vocabulary.tokenizer),
                    **kwargs,
                )
        self._taken_at: float | None = None
        """When the last rollouts were complete."""
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
        if self.state.global_step != self._last_loaded_step:
            self._last_loaded_step = -1  # steps are counted anew, and the engine may have the weights of such a number
        try:
            with loading("the checkpoint can't be resumed from; remove it, and the one before counts", *_LOADS):
                return super().train(*arguments, **named)
        finally:
            self.queue.close()

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine, if they have changed since the last call."""
        if self.state.global_step != self._last_loaded_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step

    def save_whole(self, folder: Path) -> None:
        """Save what engines can load: whole weights, with adapters merged, and the tokenizer.

        `save_model` saves an adapter alone, and under FSDP 2, unless it was told otherwise, no model at all. All
        processes have to call this.
        """
        is_main = self.accelerator.is_main_process
        weights = {}
        for name, weight in self.vllm_generation.whole_weights():
            if is_main:
                weights[name] = weight.detach().to("cpu", copy=True)
        if is_main:
            base_of(self.accelerator.unwrap_model(self.model)).save_pretrained(folder, state_dict=weights)
            self.processing_class.save_pretrained(folder)
        self.accelerator.wait_for_everyone()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole of a step: sample and score, let TRL compute log-probabilities and call its reward functions, and
        give each line its advantage."""
        self.sync_weights()
        step = self.roll_out(inputs)
        with kept_on_failure(self._kept_at, step.trajectories):
            self.rollout_func = lambda prompts, trainer: step.sampled()
            skipped = nullcontext() if self.args.mask.needs_ratios else self.no_pass_before_its_only_update()
            with self.forward_passes_of(step.typed_mask), skipped:
                output: dict[str, Any] = super()._generate_and_score_completions(step.inputs)
            self.step_log.lengths(step.trajectories)
            credited = self._credited(step)
            step.put_advantages(output, credited)
            if (old := output.get("old_per_token_logps")) is not None:
                self.step_log.drift(old, output["sampling_per_token_logps"], typed_of(output))
            if self.model.training and self.args.mask != MaskConfig():
                out = gather(step.leave_out(output, self.args.mask, self._is_left_out, self.num_generations))
                output["num_items_in_batch"] = self.accelerator.gather(typed_of(output).sum()).sum()
                self.step_log.values({"credit/masked_share": sum(out) / max(1, len(out))})
            is_in_loss = typed_of(output).any(dim=1).float()  # (B,)
            output["row_share"] = self.accelerator.gather(is_in_loss).mean()
            self.step_log.values({"passes/packed": float(self.packs), "passes/one_call": float(self.attends_at_once)})
            own = len(credited)
            self.step_log.advantages(output["advantages"][:own], typed_of(output)[:own])
            if self.model.training:
                self._change_tokens(output)
        if self.model.training and self.rollout_dir is not None:
            trajectories = gather([item.trajectory for item in credited])
            if (path := self._kept_at) is not None:
                write_jsonl(path, trajectories)
        return output

    def _change_tokens(self, output: dict[str, Any]) -> None:
        """Take the advantages of tokens that Clip-Cov draws, and weigh those of the interpreter's output."""
        args, typed = self.args, typed_of(output)
        if args.mask.covariance is not None:
            random = Random(f"{args.seed}/covariance/{self._step}")
            out = covarying(args.mask.covariance, output["old_per_token_logps"], output["advantages"], typed, random)
            output["advantages"] = output["advantages"].masked_fill(out, 0.0)
            self.step_log.share("credit/covariance_share", out, typed)
        if args.output_loss:
            outputs = (output["completion_mask"] - typed) * typed.any(dim=1, keepdim=True)
            count = self.accelerator.gather(outputs.sum()).sum().clamp(min=1)
            output["output_weights"] = outputs * (self.accelerator.num_processes * args.steps_per_generation / count)

    def roll_out(self, inputs: Sequence[dict[str, Any]]) -> Step:
        """Sample and score a batch, of these rows of the data set or, with `asynchronous`, of those whose turn it is.

        Redrawing replaces rows. Each of them gets the columns `scored` and, if they are here, `environments`.
        """
        since = started = time.perf_counter()
        rows, is_training = list(inputs), self.model.training
        by_rate = is_training and self.args.task_sampling == "pass_rate"
        sampled: list[ScoredTrajectory] = []  # with those that are not kept
        if by_rate:
            rows = self._drawn_by_rate(len(rows))
        if is_training and self.args.asynchronous is not None:
            taken, rows = self.queue.take()
            self.step_log.values(taken.metrics(self.engine.version))
            queued = [trajectory for _, group in taken.groups for trajectory in group]
            with kept_on_failure(self._kept_at, queued):
                scored = self._scored([task_of(row) for row in rows], queued, self.args.branch)
            sampled += scored
            since = self._taken_at or started
        else:
            with self.queue.at_rest():
                scored = self._scored_rollouts([task_of(row) for row in rows], sampled)
        if is_training and self.args.redraws:
            with kept_on_failure(self._kept_at, [item.trajectory for item in scored]):
                self._redraw(rows, scored, sampled)
        if by_rate:
            size = self.num_generations * self.args.oversample
            groups = [sampled[start : start + size] for start in range(0, len(sampled), size)]
            self.pass_rates.learn(gather([right_share(group) for group in groups]))
            self.step_log.values(self.pass_rates.numbers(len(self.train_dataset)))
        self._taken_at = time.perf_counter()
        tools = [tool.name for tool in self._extensions.toolbox.tools]
        is_watched = tools or self._extensions.environment
        of_step = [item.trajectory for item in sampled]
        self.step_log.batch(of_step, self._taken_at - since, self.service, tools if is_watched else None)
        if is_training and (self.args.redraws or self.args.oversample > 1):
            self.step_log.kept([item.trajectory for item in scored], len(sampled))
        self.step_log.values({"time/waited_s": self._taken_at - started})
        has_environments = self._extensions.environment is not None and not self.queue.is_open
        for row, item in zip(rows, scored, strict=True):
            row["scored"] = item
            if has_environments:
                row["environments"] = item.environment
        return self._step_of(rows, scored)

    def _step_of(self, inputs: list[dict[str, Any]], scored: list[ScoredTrajectory]) -> Step:
        """In training, after the rows of trajectories come those of what they sampled after they were compacted and,
        with `subcalls.train`, in sub-calls. Void rows make the batch one that divides into its steps, and as large in
        all processes."""
        trajectories, is_training = [item.trajectory for item in scored], self.model.training
        trains = is_training and self.args.subcalls.train
        rows, size = rows_of(trajectories, trains), len(scored)
        if not is_training:
            del rows[size:]
        elif trains or self.args.budget.compact_at is not None:
            steps = self.args.steps_per_generation
            size = -(-max(gather([len(rows)])) // steps) * steps
        if trains:
            asked = len(rows) - len(rows_of(trajectories))
            self.step_log.values({"subcalls/rows": float(sum(gather([asked])))})
        return Step(inputs, scored, rows, row_lists(rows, size, self.service.vocabulary.pad_id))

    def _generate(self, prompts: list[Any]) -> Any:
        """As TRL's, which calls `rollout_func`, with the rows that are not of trajectories added: they have no part in
        rewards and baselines, nor in what is logged about completions."""
        prompt_ids, completion_ids, typed, completions, logprobs, extra, *images = super()._generate(prompts)
        for row in extra.pop("further"):
            prompt_ids.append(row["prompt_ids"])
            completion_ids.append(row["completion_ids"])
            typed.append(row["env_mask"])
            logprobs.append(row["logprobs"])
        if getattr(self.engine, "sleep", bool)():  # vLLM in this process, which then needs its weights again
            self._last_loaded_step = -1
        return prompt_ids, completion_ids, typed, completions, logprobs, extra, *images

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        """As TRL's, for the rows of trajectories alone, which keep what they got."""
        own = len(inputs)
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list[:own])
        first = self.accelerator.process_index * own
        keep_rewards(inputs, rewards[first : first + own])
        return rewards

    def _scored_rollouts(self, tasks: Sequence[Task], sampled: list[ScoredTrajectory]) -> list[ScoredTrajectory]:
        """Those that are kept; all go to `sampled`. A training batch may have trees, and more sessions than are kept;
        an evaluation has neither."""
        args, is_training = self.args, self.model.training
        branch, factor = (args.branch, args.oversample) if is_training else (None, 1)
        more = [task for task in tasks for _ in range(factor)]
        batch = RolloutBatch(more, self.batch_sampling(len(more)), branch)
        ended: dict[int, Trajectory] = {}
        with kept_on_failure(self._kept_at, ended.values()):
            scored = self._scored(more, self.service.roll_out(batch, ended.__setitem__), branch)
        scored = [replace(item, environment=batch.environments.get(index)) for index, item in enumerate(scored)]
        sampled += scored
        return scored if factor == 1 else resampled(scored, self.num_generations, factor, f"{args.seed}/{self._step}")

    def _scored(
        self, tasks: Sequence[Task], trajectories: Sequence[Trajectory], branch: BranchConfig | None
    ) -> list[ScoredTrajectory]:
        size = None if branch is None else branch.group_size
        return score(tasks, trajectories, self._grader, self._table, self.state.global_step, size)

    def _drawn_by_rate(self, count: int) -> list[dict[str, Any]]:
        """Rows for this process's groups of the next batch; all processes draw alike, and each takes its own."""
        groups, size, place = count // self.num_generations, self.num_generations, self.accelerator.process_index
        random = Random(f"{self.args.seed}/pass_rate/{self._step}")
        drawn = self.pass_rates.draw(self._task_ids, groups * self.accelerator.num_processes, random)
        own = drawn[place * groups : (place + 1) * groups]
        return [dict(self.train_dataset[index]) for index in own for _ in range(size)]

    @cached_property
    def _task_ids(self) -> list[str]:
        return [task_of(row).id for row in self.train_dataset]

    def _redraw(
        self, rows: list[dict[str, Any]], scored: list[ScoredTrajectory], sampled: list[ScoredTrajectory]
    ) -> None:
        """Roll out other tasks for this process's groups without variance. Processes draw different tasks while there
        are enough."""
        taken = set(gather([task_of(row).id for row in rows]))
        further = further_rows(self.train_dataset, taken, self.args.seed, self._step)
        own = islice(further, self.accelerator.process_index, None, self.accelerator.num_processes)
        args, size = self.args, self.num_generations
        roll_out = partial(self._scored_rollouts, sampled=sampled)
        count = redraw(rows, scored, size, own, roll_out, args.credit, args.redraws)
        self.step_log.values({"credit/redrawn_groups": float(sum(gather([count])))})

    def _credited(self, step: Step) -> list[CreditedTrajectory]:
        """Line advantages, with rewards of TRL's kind added to the last line of each trajectory."""
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        own = len(self._table.component_names)
        rewards = step.rewards()[:, own:]  # (trajectories, functions of TRL's kind)
        extra = (rewards * self.reward_weights[own:].to(rewards.device)).nansum(dim=1).tolist()
        scored = [item.with_bonus(bonus) for item, bonus in zip(step.scored, extra, strict=True)]
        critic = self.critic if self.model.training else None
        credited = credit(scored, group_size, self.args.credit, self.args.rewards.outcome, critic)
        self.step_log.values(credit_numbers(credited, group_size))
        return credited

    @property
    def _kept_at(self) -> Path | None:
        """Where this process keeps the trajectories of the step: the main one does, of training."""
        if self.rollout_dir is None or not (self.model.training and self.accelerator.is_main_process):
            return None
        return Path(self.rollout_dir) / f"step_{self.state.global_step + 1:05d}.jsonl"
