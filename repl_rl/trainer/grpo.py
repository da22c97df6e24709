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

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import torch
from datasets import Dataset, IterableDataset
from transformers import set_seed
from trl import GRPOTrainer
from trl.trainer.utils import pad

from repl_rl.config import BranchConfig, ModelConfig
from repl_rl.config.section import Excluding, refuse_excluding
from repl_rl.dialect import require_dialect
from repl_rl.engine import CountsPrompts, ServesSlots, make_engine
from repl_rl.engine.environment import cores_beside_engine, limit_openmp
from repl_rl.engine.factory import EngineMaker
from repl_rl.engine.vocabulary import load_vocabulary
from repl_rl.errors import ConfigError, TrainingError
from repl_rl.kernel import KernelPool, KernelSource
from repl_rl.models.find import loading
from repl_rl.rewards import RewardFunction, ScoredTrajectory
from repl_rl.rollout.batch import RolloutBatch, refuse_if_all_aborted
from repl_rl.rollout.metrics import batch_metrics
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.score import CreditedTrajectory, credit, credit_numbers, reward_table, score
from repl_rl.rollout.service import MakeRunner, start_service
from repl_rl.rollout.setup import Grader, RolloutSetup, make_extensions
from repl_rl.tasks import grade
from repl_rl.tools import tool_metrics
from repl_rl.trainer.arguments import ReplGRPOConfig
from repl_rl.trainer.asynchronous import GroupOrder, GroupQueue, Ticket
from repl_rl.trainer.drift import logprob_drift
from repl_rl.trainer.packed import base_of
from repl_rl.trainer.redraw import Batch, further_rows, redraw
from repl_rl.trainer.resume import ResumableTrainer
from repl_rl.trainer.rows import (
    Row,
    all_weights,
    as_dataset,
    asked_of_valid,
    component_sum,
    rows_of,
    task_of,
    token_advantages,
)
from repl_rl.trainer.typed_tokens import EngineGeneration, TypedTokenTrainer
from repl_rl.trajectory import Task, Trajectory, write_jsonl
from repl_rl.utils.distributed import gather

_LOADS = ("load_from_json", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state")
"""What transformers calls with a checkpoint."""
_EXCLUDING: tuple[Excluding, ...] = (
    (("environment", "redraws"), "reward functions would see other environments"),
    (("environment", "reward_funcs", "asynchronous"), "environments are closed before reward functions are called"),
    (("environment", "reward_funcs", "make_runner"), "reward functions can't be given environments of other machines"),
    (("asynchronous", "an iterable data set"), "tasks are taken ahead, by their rows"),
)


class ReplGRPOTrainer(TypedTokenTrainer, ResumableTrainer):
    """`GRPOTrainer` whose completions are sessions in a live interpreter.

    `train_dataset` is a sequence of `Task`s, or a Dataset with the column `prompt` (the question, or messages that end
    with it) and, if there is no other source of reward, `answer`; so is `eval_dataset`. `grader` maps `(task, answer)`
    to a grade, outside the sandbox. `line_rewards` are functions `(trajectory) -> one float per line`, like those in
    `args.rewards.functions`; `reward_funcs` are TRL's, one float per completion, added to the last line's reward.
    `tools` are functions that the model may call, in the sandbox unless `@tool` or `tools_where` says otherwise.
    `environment` (or TRL's `environment_factory`) makes one object per trajectory; `rollout` replaces the line loop,
    and `guests` are classes of what looks on (`repl_rl.rollout.guest.Guest`).
    `wrap_kernels` puts something around the pool that sessions are taken from; `make_runner` puts the line loop
    somewhere else, and `make_engine` takes another engine than `args.engine` names (`repl_rl.cluster`).

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
        reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
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
        self._extensions.require(args.dialect, args.kernel, args.branch)
        given = {
            "environment": owner is not None,
            "redraws": args.redraws,
            "asynchronous": args.asynchronous,
            "reward_funcs": bool(reward_funcs),
            "make_runner": make_runner is not None,
            "an iterable data set": isinstance(train_dataset, IterableDataset),
        }
        refuse_excluding(_EXCLUDING, given.__getitem__)
        self._table = reward_table(args.rewards, args.credit, line_rewards)
        self._grader = grader
        path = model if isinstance(model, str) else model.name_or_path
        vocabulary = load_vocabulary(path, require_dialect(args.dialect).stops)
        setup = RolloutSetup.from_config(args, vocabulary, self._extensions, wrap_kernels)
        setup.dialect_with(self._extensions.toolbox.tools)  # raises ConfigError if the model can't speak it
        extra = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
        args.reward_weights = all_weights(args.reward_weights, self._table.component_names, len(extra))
        graded = not extra and owner is None and grader is grade
        set_seed(args.seed)  # new adapters begin at random
        with loading(f"the model at {path!r} can't be loaded", "from_pretrained"):
            super().__init__(
                model=model,
                args=args,
                reward_funcs=[*map(component_sum, self._table.component_names), *map(asked_of_valid, extra)],
                train_dataset=as_dataset(train_dataset, graded),
                eval_dataset=None if eval_dataset is None else as_dataset(eval_dataset, graded),
                processing_class=kwargs.pop("processing_class", vocabulary.tokenizer),
                rollout_func=lambda prompts, trainer: trainer.roll_out(),
                **kwargs,
            )
        self._own_reward_columns = len(self._table.component_names)
        self._rows: list[dict[str, Any]] = []
        self._last_scored: list[ScoredTrajectory] = []
        self._parts: list[Row] = []
        """What the last batch's rows hold."""
        self._taken_at: float | None = None
        """When the last rollouts were complete."""
        self._rewards_per_func: torch.Tensor | None = None
        self._threads = torch.get_num_threads()
        self._make_engine = make_engine
        self._open_engine(path, setup, make_runner)

    def _open_engine(self, path: str, setup: RolloutSetup, make_runner: MakeRunner | None) -> None:
        """Start the engine and the kernels, and put the engine where TRL's weight sync looks for it."""
        args = cast(ReplGRPOConfig, self.args)
        dtype = args.sampler_dtype or str(next(self.model.parameters()).dtype).removeprefix("torch.")
        model = ModelConfig.model_validate({"path": path, "dtype": dtype})
        self.engine = self._make_engine(path, setup.vocabulary, model, args.engine, args.seed)
        try:
            self.vllm_generation = EngineGeneration(
                self.engine,
                getattr(torch, dtype),
                enable_sleep_mode=bool(args.engine.vllm.get("enable_sleep_mode")),
                model=self.model,
                accelerator=self.accelerator,
                processing_class=self.processing_class,
            )
            self.service = start_service(self.engine, setup, make_runner=make_runner)
        except BaseException:
            self.engine.close()
            raise
        self.use_vllm = True
        self._last_loaded_step = -1
        self._prompt_tokens = (0, 0)

    def close(self) -> None:
        """Close the kernels and the engine. A second call does nothing."""
        self._close_queue()
        try:
            self.service.close()
        finally:
            self.engine.close()

    def train(self, *arguments: Any, **named: Any) -> Any:
        try:
            with loading("the checkpoint can't be resumed from; remove it, and the one before counts", *_LOADS):
                return super().train(*arguments, **named)
        finally:
            self._close_queue()

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
        self._rows = list(inputs)  # TRL goes on with this same list, in which redrawing replaces rows
        output: dict[str, Any] = super()._generate_and_score_completions(self._rows)
        self.typed_mask = output["completion_mask"] * output["tool_mask"]
        self._correct_lengths()
        credited = self._credit()
        own = len(credited)
        output["advantages"] = token_advantages(self._parts, credited, output["completion_ids"])  # (B, T)
        self._log_logprob_drift(output)
        if self.args.mask_overlong:
            self._mask_overlong(output, [item.trajectory for item in credited])
        is_in_loss = (output["completion_mask"] * output["tool_mask"]).any(dim=1).float()  # (B,)
        output["row_share"] = self.accelerator.gather(is_in_loss).mean()
        self._log_own_advantages(output["advantages"][:own], (output["completion_mask"] * output["tool_mask"])[:own])
        if self.model.training:
            self._keep(credited)
        return output

    def _generate(self, prompts: list[Any]) -> Any:
        """As TRL's. After the rows of trajectories come those of what they sampled after they were compacted and, with
        `subcalls.train`, in sub-calls. They have no part in rewards and baselines, nor in what is logged about
        completions. Void rows make the batch one that divides into its steps, and as large in all processes."""
        made = super()._generate(prompts)
        trains, compacts = self.args.subcalls.train, self.args.budget.compact_at is not None
        if not (self.model.training and (trains or compacts)):
            return made
        own, steps, pad_id = len(self._last_scored), self.args.steps_per_generation, self.service.vocabulary.pad_id
        largest = max(gather([len(self._parts)]))
        void = {"prompt_ids": [pad_id], "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
        rows = [row.lists(pad_id) for row in self._parts[own:]]
        rows += [void] * (-(-largest // steps) * steps - own - len(rows))
        prompt_ids, completion_ids, typed, _, logprobs, *_ = made
        for row in rows:
            prompt_ids.append(row["prompt_ids"])
            completion_ids.append(row["completion_ids"])
            typed.append(row["env_mask"])
            logprobs.append(row["logprobs"])
        self.typed_mask = pad([torch.tensor(mask) for mask in typed], padding_value=0)
        if trains:
            asked = len(self._parts) - len(rows_of([item.trajectory for item in self._last_scored]))
            self._log_values({"subcalls/rows": float(sum(gather([asked])))})
        return made

    def roll_out(self) -> dict[str, Any]:
        """Sample and score the current batch. Returns what TRL's `rollout_func` has to, one entry per task."""
        started = time.perf_counter()
        sampled_since = started
        if self.model.training and self.args.asynchronous is not None:
            self._last_scored = self._scored_from_queue()
            sampled_since = self._taken_at or started
        else:
            with nullcontext() if self.queue is None else self.queue.at_rest():
                self._last_scored = self._scored_rollouts([task_of(row) for row in self._rows])
        if self.model.training and self.args.redraws:
            self._redraw()
        if self.vllm_generation.sleep():
            self._last_loaded_step = -1  # it needs its weights again, the same ones too
        self._taken_at = time.perf_counter()
        self._log_batch(self._last_scored, self._taken_at - sampled_since)
        self._log_values({"time/waited_s": self._taken_at - started})
        trajectories = [item.trajectory for item in self._last_scored]
        self._parts, own = rows_of(trajectories, self.args.subcalls.train), len(trajectories)
        if not self.model.training:
            del self._parts[own:]
        rows = [row.lists(self.service.vocabulary.pad_id) for row in self._parts[:own]]
        columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
        self.typed_mask = pad([torch.tensor(mask) for mask in columns["env_mask"]], padding_value=0)
        if self._extensions.environment is not None and self.queue is None:
            made = self.service.environments
            columns["environments"] = [made.get(index) for index in range(len(rows))]
        return {**columns, "scored": self._last_scored}

    def _scored_rollouts(self, tasks: Sequence[Task]) -> list[ScoredTrajectory]:
        """A training batch may be cut short and have trees; an evaluation waits for all of its sessions."""
        branch = self.args.branch if self.model.training else None
        share = self.args.budget.finish_share
        cut = Cut(share, self.num_generations) if self.model.training and share < 1 else None
        trajectories = self.service.generate(tasks, self.batch_sampling(), cut, branch)
        return self._scored(tasks, trajectories, branch)

    def _scored(
        self, tasks: Sequence[Task], trajectories: Sequence[Trajectory], branch: BranchConfig | None
    ) -> list[ScoredTrajectory]:
        size = None if branch is None else branch.group_size
        return score(tasks, trajectories, self._grader, self._table, self.state.global_step, size)

    def _scored_from_queue(self) -> list[ScoredTrajectory]:
        """The groups of a step that trains with `asynchronous`. Their rows replace those that TRL drew."""
        if self.queue is None:
            self._open_queue()
        assert self.queue is not None
        taken = self.queue.take(self.engine.version, self.state.global_step)
        trajectories = [trajectory for _, group in taken.groups for trajectory in group]
        refuse_if_all_aborted(trajectories)
        self._rows[:] = [row for ticket, _ in taken.groups for row in self._rows_of(ticket)]
        self._log_values(taken.metrics(self.engine.version))
        return self._scored([task_of(row) for row in self._rows], trajectories, self.args.branch)

    def _open_queue(self) -> None:
        groups, processes = self.groups_per_batch, self.accelerator.num_processes
        between = self.args.steps_per_generation * self.num_iterations
        first, again = self.queue_position or (self._step // between * groups, ())
        if self.args.asynchronous.ahead and isinstance(self.engine, ServesSlots):
            # torch.set_num_threads would also hold for threads of vLLM, which ends where their number changes
            limit_openmp(len(cores_beside_engine(self.engine.threads) or range(self._threads)))
        sampler = GRPOTrainer._get_train_sampler(self)
        self._order = GroupOrder(sampler, groups, self.accelerator.process_index, processes)
        self.queue = GroupQueue(
            self._begin_group,
            self.args.asynchronous,
            groups=groups,
            group_size=self.num_generations,
            at_once=self.service.at_once,
            first=first,
            again=again,
            last=-(-self.state.max_steps * self.args.gradient_accumulation_steps // between) * groups,
        )

    def _close_queue(self) -> None:
        if self.queue is not None:
            self.queue.close()
            self.queue = None
            limit_openmp(self._threads)

    def _begin_group(self, ticket: Ticket, on_end: Callable[[], None]) -> Future[list[Trajectory]]:
        tasks = [task_of(row) for row in self._rows_of(ticket)]
        batch = RolloutBatch(tasks, self.group_sampling(ticket), None, self.args.branch)
        return self.service.begin(batch, lambda index, trajectory: on_end())

    def _rows_of(self, ticket: Ticket) -> list[dict[str, Any]]:
        row = self.train_dataset[self._order.row(ticket.number)]
        return [dict(row) for _ in range(self.num_generations)]

    def _redraw(self) -> None:
        """Roll out other tasks for this process's groups without variance. Processes draw different tasks while there
        are enough."""
        batch = Batch(self._rows, self._last_scored, self.num_generations)
        taken = set(gather([task_of(row).id for row in self._rows]))
        further = further_rows(self.train_dataset, taken, self.args.seed, self._step)
        own = islice(further, self.accelerator.process_index, None, self.accelerator.num_processes)
        count = redraw(batch, own, self._scored_rollouts, self.args.credit, self.args.redraws)
        self._log_values({"credit/redrawn_groups": float(sum(gather([count])))})

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        prompts[:] = [row["prompt"] for row in inputs]  # TRL read these before redrawing and logs them later
        own = completion_ids_list[: len(prompts)]  # without those of sub-calls
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, own)
        self._rewards_per_func = rewards
        return rewards

    def _credit(self) -> list[CreditedTrajectory]:
        """Line advantages of the last batch, with rewards of TRL's kind added to the last line of each trajectory."""
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        assert self._rewards_per_func is not None
        own = self._own_reward_columns
        weights = self.reward_weights[own:].to(self._rewards_per_func.device)
        extra = (self._rewards_per_func[:, own:] * weights).nansum(dim=1).tolist()  # (B,)
        first = self.accelerator.process_index * len(self._last_scored)
        scored = [item.with_bonus(bonus) for item, bonus in zip(self._last_scored, extra[first:], strict=False)]
        critic = self.critic if self.model.training else None
        credited = credit(scored, group_size, self.args.credit, self.args.rewards.outcome, critic)
        self._log_values(credit_numbers(credited, group_size))
        return credited

    def _correct_lengths(self) -> None:
        """Replace what TRL has logged about ends: it counts each completion without an end token as clipped, and a
        session that hands over its answer has none. Clipped are those that a budget ended."""
        trajectories = [item.trajectory for item in self._last_scored]
        ends = gather([(t.is_overlong, t.is_void, t.sampled_tokens) for t in trajectories])
        lengths = [tokens for is_overlong, is_void, tokens in ends if not is_overlong and not is_void]
        lengths = lengths or [0]  # what TRL logs, too, if there are none
        logged = self._metrics["train" if self.model.training else "eval"]
        if any(gather([bool(t.compactions) for t in trajectories])):  # TRL has seen their first parts
            typed = [0 if is_void else tokens for _, is_void, tokens in ends]
            logged["completions/mean_length"][-1] = sum(typed) / len(typed)
            logged["completions/min_length"][-1] = float(min(typed))
            logged["completions/max_length"][-1] = float(max(typed))
        logged["completions/clipped_ratio"][-1] = sum(is_overlong for is_overlong, *_ in ends) / len(ends)
        logged["completions/mean_terminated_length"][-1] = sum(lengths) / len(lengths)
        logged["completions/min_terminated_length"][-1] = float(min(lengths))
        logged["completions/max_terminated_length"][-1] = float(max(lengths))

    def _mask_overlong(self, output: dict[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Take trajectories that a budget ended, and what they asked, out of the loss: out of the mask and out of the
        token count that normalizes it."""
        kept = [not (trajectories[row.owner].is_overlong or row.part.is_overlong) for row in self._parts]
        is_kept = torch.tensor(kept + [False] * (len(output["tool_mask"]) - len(kept)))  # (B,)
        output["tool_mask"] = output["tool_mask"] * is_kept[:, None].to(output["tool_mask"])  # (B, T)
        typed_tokens = (output["completion_mask"] * output["tool_mask"]).sum()
        output["num_items_in_batch"] = self.accelerator.gather(typed_tokens).sum()
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            if output.get(name) is not None:
                output[name] = output[name] * output["tool_mask"]
        overlong = gather([trajectory.is_overlong for trajectory in trajectories])
        self._log_values({"credit/overlong_share": sum(overlong) / len(overlong)})

    def _log_own_advantages(self, advantages: torch.Tensor, typed: torch.Tensor) -> None:
        """Replace what TRL keeps for its table of completions, its own advantages, by the means over typed tokens."""
        means = (advantages * typed).sum(1) / typed.sum(1).clamp(min=1)  # (B,)
        own = self.accelerator.gather(means.contiguous()).tolist()
        logged = self._logs["advantages"]
        for _ in range(min(len(own), len(logged))):
            logged.pop()
        logged.extend(own)

    def _keep(self, credited: Sequence[CreditedTrajectory]) -> None:
        """Write the trajectories of all processes."""
        if self.args.rollout_dir is None:
            return
        trajectories = gather([item.trajectory for item in credited])
        if self.accelerator.is_main_process:
            name = f"step_{self.state.global_step + 1:05d}.jsonl"
            write_jsonl(Path(self.args.rollout_dir) / name, trajectories)

    def _log_batch(self, scored: Sequence[ScoredTrajectory], seconds: float) -> None:
        """Log metrics of all processes' trajectories, and this process's own kernel counters and loop time."""
        trajectories = gather([item.trajectory for item in scored])
        values = batch_metrics(trajectories, seconds) | {"time/loop_share": self.service.loop_share}
        values |= {f"kernels/{name}": value for name, value in self.service.kernel_numbers().items()}
        tools = [tool.name for tool in self._extensions.toolbox.tools]
        if tools or self._extensions.environment:
            values |= tool_metrics(trajectories, tools)
        if isinstance(self.engine, CountsPrompts):
            before, self._prompt_tokens = self._prompt_tokens, self.engine.prompt_tokens
            asked, computed = (now - then for now, then in zip(self._prompt_tokens, before, strict=True))
            if asked:  # of the tokens that lines continue, the share that the engine did not compute again
                values["engine/reused_share"] = 1 - computed / asked
        self._log_values(self._with_absent_shares(values))

    def _with_absent_shares(self, values: Mapping[str, float]) -> dict[str, float]:
        """Add zeros for the stops and errors that a batch doesn't have, because TRL averages only the given values."""
        logged = self._metrics["train" if self.model.training else "eval"]
        batches = len(logged["time/loop_share"])
        names = [name for name in {*logged, *values} if name.startswith(("stops/", "errors/"))]
        for name in names:
            logged[name] += [0.0] * (batches - len(logged[name]))
        return dict.fromkeys(names, 0.0) | dict(values)

    def _log_logprob_drift(self, output: dict[str, Any]) -> None:
        """Log |trainer - sampler| over the typed tokens of all processes. Raises TrainingError if it is not finite."""
        typed = output["completion_mask"] * output["tool_mask"]  # (B, T)
        local = logprob_drift(self._trainer_logprobs(output), output["sampling_per_token_logps"], typed)
        gathered = self.accelerator.gather(torch.tensor([local], dtype=torch.float64, device=typed.device))  # (P, 3)
        total, count, most = gathered[:, 0].sum().item(), gathered[:, 1].sum().item(), gathered[:, 2].max().item()
        if not math.isfinite(total):
            raise TrainingError(
                f"the log-probabilities of trainer and sampler differ by {total} at step {self.state.global_step}: the "
                "weights are not numbers any more; go on from an earlier checkpoint with a smaller train.learning_rate "
                "or train.max_grad_norm"
            )
        if count:
            self._log_values({"drift/logprob_mean": total / count, "drift/logprob_max": most})

    def _trainer_logprobs(self, output: dict[str, Any]) -> torch.Tensor:
        """The trainer's log-probabilities, shape (B, T). TRL has them unless its importance ratios are switched off;
        then this takes a forward pass."""
        if "old_per_token_logps" in output:
            return cast(torch.Tensor, output["old_per_token_logps"])
        completion_ids = output["completion_ids"]
        with torch.no_grad():
            logprobs, *_ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([output["prompt_ids"], completion_ids], dim=1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                completion_ids.size(1),
                batch_size=self.args.per_device_train_batch_size,
            )
        return cast(torch.Tensor, logprobs)

    def _log_values(self, values: Mapping[str, float]) -> None:
        mode = "train" if self.model.training else "eval"
        for name, value in values.items():
            self._metrics[mode][name].append(value)
