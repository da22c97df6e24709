"""The train and eval sections."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from repl_rl.config.section import YES_OR_NO, Excluding, Section, one_needs_no_list
from repl_rl.trajectory import LineKind, StopReason
from repl_rl.utils.text import nearest

TRACKERS = (
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "kubeflow",
    "mlflow",
    "neptune",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
)
"""The trackers that transformers has callbacks for."""


KAHAN = "stable_adamw"
"""transformers' name of torch-optimi's StableAdamW, which adds up what a step rounds away in bfloat16."""


class AsynchronousConfig(Section):
    """Rollouts that go on while the trainer trains, by weights that are a few steps old. docs/training-your-own.md

    A step takes the groups that are finished, and more begin in their place. Weights change while sessions are under
    way: each token is recorded with the version that sampled it.
    """

    max_staleness: int = Field(2, ge=0)
    """No token is trained on that was sampled more than so many updates ago: a step waits for a group (or tree) that
    would be too old for the next one. 0 samples nothing ahead, and trains as without this section."""
    queue: int | None = Field(None, ge=0)
    """Steps whose rollouts are under way or finished while the trainer is at an earlier one; at most `max_staleness`.
    null is 1, or 0 if `max_staleness` is. A group that takes longer than the others has the difference between the two
    to be late without being waited for."""

    @property
    def ahead(self) -> int:
        """`queue`, or its default."""
        return min(1, self.max_staleness) if self.queue is None else self.queue

    @model_validator(mode="after")
    def _waits_no_longer_than_it_may(self) -> AsynchronousConfig:
        if self.ahead > self.max_staleness:
            raise ValueError(
                f"queue {self.queue}: what waits for so many steps is {self.queue} updates old by then, and "
                f"max_staleness {self.max_staleness} forbids it; lower queue, or raise max_staleness"
            )
        return self


_MASKS: dict[str, Any] = {
    "overlong": True,
    "void_turns": True,
    "geometric": (0.999, 1.001),
    "veto": 1e-4,
    "divergence": 0.2,
    "covariance": (1.0, 5.0, 2e-4),
}
"""What a name alone stands for."""


_TRL = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "delta", "epsilon", "epsilon_high", "gradient_checkpointing"),
    *("importance_sampling_level", "num_iterations", "optim", "optim_args", "steps_per_generation"),
    *("sync_ref_model", "top_entropy_quantile", "weight_decay"),
)
OTHER_NAMES = {
    **{name: f"train: {{trl: {{{name}: ...}}}}" for name in _TRL},
    **dict.fromkeys(("num_generations", "n_samples", "rollout_n"), "train.group_size"),
    **dict.fromkeys(("max_steps", "num_train_epochs", "epochs", "iterations"), "train.steps"),
    **dict.fromkeys(("lr", "actor_lr"), "train.learning_rate"),
    **dict.fromkeys(("max_completion_length", "max_new_tokens", "max_tokens"), "budget.tokens"),
    **dict.fromkeys(("max_prompt_length", "max_model_len", "max_seq_length"), "engine.context_tokens"),
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty"), "the section sampling"),
    **dict.fromkeys(("bf16", "fp16"), "model.dtype"),
    **dict.fromkeys(("model_name", "model_name_or_path"), "model.path"),
    **dict.fromkeys(("dataset", "dataset_name", "train_files"), "tasks.dataset"),
    **dict.fromkeys(("use_peft", "peft_config", "lora_r"), "train.lora"),
    **dict.fromkeys(("use_vllm", "vllm_mode"), "engine.backend"),
    "batch_size": "train.prompts_per_step, of which each takes train.group_size trajectories",
    "per_device_train_batch_size": "train.micro_batch, or train.prompts_per_step for the whole step",
    "gradient_accumulation_steps": "train.micro_batch, which says how much a backward pass takes",
    "kl_coef": "train.beta",
    "lr_scheduler_type": "train.schedule",
    "mask_truncated_completions": "train.mask: overlong",
    "output_dir": "the option --runs of the command",
    "reward_funcs": "rewards.functions",
    "run_name": "name",
    "scale_rewards": "credit.scale",
    "vllm_gpu_memory_utilization": "engine.gpu_memory_utilization",
    "warmup_ratio": "train.warmup_steps, in steps",
}
"""What other trainers, TRL first, call a key, and what to write here."""
_NOT_IN_TRL = {
    **{name: OTHER_NAMES[name] for name in ("max_steps", "num_train_epochs", "num_generations", "output_dir")},
    **{name: OTHER_NAMES[name] for name in ("per_device_train_batch_size", "gradient_accumulation_steps")},
    **{name: f"train.{name}" for name in ("beta", "learning_rate", "loss_type", "max_grad_norm", "save_steps")},
    "warmup_steps": "train.warmup_steps",
    "max_completion_length": "budget.tokens",
    "temperature": "sampling.temperature",
    "seed": "seed",
}
"""TRL's arguments that follow from keys of ours, and these keys. A run with others would not be the one that its
config describes: it would count as interrupted at `max_steps`, and be measured at another temperature than in
training."""


class MaskConfig(Section):
    """Which trajectories are left out of the loss: those to which one of these keys applies. They stay in their group's
    baseline. `mask: overlong` and `mask: [overlong, geometric]` are short for these keys with their usual values.
    `divergence` and `covariance` apply to tokens instead: their advantages become 0, and they are still counted.
    docs/algorithms.md"""

    overlong: bool = False
    """Sessions that a budget ended (DAPO's overlong filtering)."""
    void_turns: bool = False
    """Sessions with a turn that has neither code that ran nor an answer (SimpleTIR): a call that can't be read, or a
    last turn in prose alone. For dialects with turns: at a prompt, a comment is a thought."""
    stops: tuple[StopReason, ...] = ()
    """Sessions that ended for one of these reasons."""
    kinds: tuple[LineKind, ...] = ()
    """Sessions with a line of one of these kinds."""
    function: str | None = None
    """Sessions for which a function `(trajectory) -> bool` returns True, as `package.module:function`."""
    geometric: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(gt=1)]] | None = None
    """Sessions whose ratio of the trainer's probability to the sampler's, as its geometric mean over the typed tokens,
    lies outside of these bounds. `geometric` alone: 0.999 and 1.001. Costs a pass."""
    veto: float | None = Field(None, gt=0, lt=1)
    """Sessions with a token whose ratio of the trainer's probability to the sampler's lies below this bound. `veto`
    alone: 1e-4. Costs a pass, the same as that of `geometric`."""
    divergence: float | None = Field(None, gt=0, lt=1)
    """Tokens whose probability has moved further than this from the sampler's, in the direction of their advantage
    (DPPO). `divergence` alone: 0.2. Looked at anew at each update."""
    covariance: tuple[float, float, Annotated[float, Field(gt=0, le=1)]] | None = None
    """Tokens drawn at random from those whose covariance of log-probability and advantage lies between two bounds
    (Clip-Cov). The third number is how many, as a share of the batch's typed tokens; at least one is. `covariance`
    alone: 1, 5 and 2e-4. Costs a pass, as `geometric` does."""

    @property
    def needs_ratios(self) -> bool:
        return any(each is not None for each in (self.geometric, self.veto, self.covariance))

    @field_validator("covariance")
    @classmethod
    def _the_lower_bound_comes_first(cls, value: tuple[float, float, float] | None) -> Any:
        if value is not None and value[0] >= value[1]:
            raise ValueError(f"no covariance lies between {value[0]:g} and {value[1]:g}; give the lower bound first")
        return value

    @model_validator(mode="before")
    @classmethod
    def _names_stand_for_their_values(cls, values: Any) -> Any:
        names = one_needs_no_list(values)
        if not isinstance(names, list | tuple):
            return values
        for name in names:
            if name not in _MASKS:
                raise ValueError(f"no mask {name!r}; {nearest(str(name), list(_MASKS))}")
        return {name: _MASKS[name] for name in names}


def _as_steps(value: Any) -> Any:
    """All or none, or numbers of steps; a single one needs no list."""
    if isinstance(value, bool):
        return value
    steps = tuple(value) if isinstance(value, list | tuple) else (value,)
    for step in steps:
        if type(step) is not int or step < 0:
            raise ValueError(f"give true, false, or the numbers of steps, such as [1, 12] (got {step!r})")
    return steps


_STEPS = BeforeValidator(_as_steps)


class TrainConfig(Section):
    """GRPO's steps; sampling and credit have sections of their own."""

    OTHER_NAMES: ClassVar[dict[str, str]] = OTHER_NAMES

    steps: int = Field(40, ge=1)
    """Optimiser steps: each rolls out `prompts_per_step` times `group_size` trajectories and learns from them once."""
    max_minutes: float | None = Field(None, gt=0)
    """Wall time of training, evaluations aside; the step in progress is finished, and the run is then complete with
    fewer steps. A resumed run gets the full time again."""
    prompts_per_step: int = Field(8, ge=1)
    """Problems of one step, over all processes."""
    group_size: int = Field(8, ge=2)
    """Trajectories per problem."""
    oversample: int = Field(1, ge=1, le=16)
    """So many times `group_size` rollouts of each problem, of which a group is kept: wrong ones evenly, right ones the
    rather the fewer of their lines went wrong, at least two of each where there are so many (GRPO-RoC; 2 in the paper;
    docs/algorithms.md says how it is biased). What is not kept is neither trained on nor stored."""
    learning_rate: float = Field(1e-3, gt=0)
    """The peak learning rate. The default suits nano; of the shipped configs for pretrained models, those that train
    all weights use 1e-6 to 2e-6, and those that train adapters 1e-5 to 2e-4."""
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    """Schedule of the learning rate; `linear` and `cosine` reach 0 at the last step."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0; `constant` has none."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    save_steps: int = Field(10, ge=1)
    """Steps between checkpoints; the two newest are kept, and `--resume` starts from the newest complete one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights that are trained: 16 bytes per parameter with gradient and AdamW's moments. With a sampler in
    bfloat16 (`model.dtype`), the passes compute in bfloat16 too (autocast). In `bfloat16`, AdamW's steps
    of 1e-6 are mostly rounded away. `trl: {optim: stable_adamw}` keeps what is (Kahan sums), in 10 bytes."""
    lora: Annotated[dict[str, Any] | None, YES_OR_NO] = None
    """Train adapters instead of all weights, with these arguments of PEFT's LoraConfig (`r`, `lora_alpha`,
    `target_modules`, ...; `{}`: PEFT's defaults, on all linear layers, and experts if PEFT knows them). The adapters
    are float32; `dtype` is that of the frozen weights. The engine gets merged weights, and so does the run's `model`
    folder. With `engine.vllm: {enable_lora: true, max_lora_rank: ...}`, vLLM in this process gets the adapter itself,
    and so do servers that were started for it (docs/engines.md)."""
    processes: int = Field(1, ge=1)
    """Trainer processes, one for each GPU. `accelerate launch` starts more than one; `--dry-run` prints the command."""
    micro_batch: int | None = Field(None, ge=1)
    """Trajectories per backward pass of a process; null takes its share of the step at once."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Tokens per backward pass instead: rows are put together by length, in as few passes as that needs; a longer one
    has a pass of its own. What the rows of a pass begin with in common counts once, if it is computed once."""
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"] = "dapo"
    """TRL's name of the loss: how tokens are clipped and averaged."""
    beta: float = Field(0.0, ge=0)
    """Weight of the KL term."""
    output_loss: float = Field(0.0, ge=0)
    """Weight of the mean cross-entropy of what the host put between the lines: the policy learns to predict what the
    interpreter prints (ECHO, with 0.05). 0 is off. The head then computes these tokens too."""
    redraws: int = Field(0, ge=0)
    """How often the groups of a step that teach nothing are rolled out anew with further tasks (DAPO's dynamic
    sampling); 0 is off. Each time costs the rollout of these groups again, one after the other: at worst a step takes
    `redraws` times longer to roll out, and its last, small rounds leave the engine nearly empty."""
    asynchronous: Annotated[AsynchronousConfig | None, YES_OR_NO] = None
    """Roll out while training (`{}`: with the defaults); null rolls out each step's trajectories before it trains."""
    mask: MaskConfig = Field(default_factory=MaskConfig)
    """Trajectories that are left out of the loss: `overlong`, `void_turns`, `geometric`, `veto`, and tokens:
    `divergence`, `covariance`; several of them, or the section below. TRL's `mask_truncated_completions` asks for an
    end token, which sessions don't have."""
    report_to: tuple[str, ...] = ()
    """Trackers that follow the run, by the names that transformers gives them: `wandb`, `trackio` and `tensorboard`
    get rollouts too, others (`mlflow`, `comet_ml`, ...) the numbers. A single name needs no list; `none` is an empty
    list."""
    report_rollouts_every: int = Field(10, ge=0)
    """Trackers get rollouts of the first step and of every so many after it; 0: of no step and of no evaluation."""
    report_rollouts: int = Field(16, ge=1)
    """How many of a step's rollouts, at most."""
    trace: Annotated[bool | tuple[int, ...], _STEPS] = False
    """Steps of which a timeline is written, down to single lines: `[1, 12]`, or `true` for all. 0 is the evaluation
    before training, and the step after which another one comes has a second file for that. docs/runs.md"""
    trl: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's GRPOConfig, as they are, except `report_to`, which is a key of this section."""

    EXCLUDING: ClassVar[tuple[Excluding, ...]] = (
        (("asynchronous", "redraws"), "a step would wait for rollouts of its own"),
        (("asynchronous", "oversample"), "groups are taken from the queue whole"),
        (("micro_batch", "micro_batch_tokens"), "each says how much a backward pass takes"),
    )

    @property
    def trajectories_per_process(self) -> int:
        """The trajectories of one step that each process rolls out."""
        return self.prompts_per_step * self.group_size // self.processes

    @field_validator("report_to", mode="before")
    @classmethod
    def _none_is_an_empty_list(cls, value: Any) -> Any:
        return () if value in (None, ("none",)) else value

    @field_validator("report_to")
    @classmethod
    def _trackers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in TRACKERS:
                raise ValueError(f"no tracker {name!r}; {nearest(name, list(TRACKERS))}")
        return tuple(dict.fromkeys(names))

    @field_validator("trl")
    @classmethod
    def _no_key_is_given_twice(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if "report_to" in arguments:
            raise ValueError(f"name trackers in train.report_to, not here (got report_to: {arguments['report_to']!r})")
        for name in _NOT_IN_TRL:
            if name in arguments:
                raise ValueError(f"{name}: {arguments[name]!r} is to be written as {_NOT_IN_TRL[name]}, not here")
        for name, off in (("eval_strategy", "no"), ("eval_on_start", False)):
            if arguments.get(name, off) != off:
                raise ValueError(
                    f"{name}: {arguments[name]!r} asks for evaluations by TRL, which take an eval_dataset from Python; "
                    "a run of a file measures its held-out problems before and after training (eval.problems)"
                )
        return arguments

    @model_validator(mode="after")
    def _the_optimizer_can_move_the_weights(self) -> TrainConfig:
        is_made_for_it = self.trl.get("optim") == KAHAN or "bf16_stochastic_round" in str(self.trl.get("optim_args"))
        if self.dtype == "bfloat16" and self.lora is None and not is_made_for_it:
            raise ValueError(
                "dtype: AdamW hardly moves weights in bfloat16 (at 1e-6, 2% of them in 20 steps); leave it at float32, "
                f"or take an optimizer that keeps what a step rounds away (trl: {{optim: {KAHAN}}}) or rounds it at "
                "random (trl: {optim: adamw_torch_8bit, optim_args: bf16_stochastic_round=True})"
            )
        return self

    @model_validator(mode="after")
    def _a_step_comes_out_even(self) -> TrainConfig:
        if self.prompts_per_step % self.processes:
            raise ValueError(
                f"prompts_per_step {self.prompts_per_step} does not divide among {self.processes} processes: each "
                "takes whole groups"
            )
        if self.micro_batch is not None and self.trajectories_per_process % self.micro_batch:
            of_process = f" and process ({self.processes} processes)" if self.processes > 1 else ""
            raise ValueError(
                f"micro_batch {self.micro_batch} does not divide the {self.trajectories_per_process} trajectories of "
                f"a step{of_process}"
            )
        return self


class EvalConfig(Section):
    """Held-out problems, before and after training and in `repl-rl eval`."""

    temperature: float | None = Field(None, ge=0, le=2)
    """null: the sampling section's, as in training."""
    problems: int = Field(240, ge=1)
    """Held-out problems, one rollout each."""
