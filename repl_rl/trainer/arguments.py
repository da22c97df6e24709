"""TRL's arguments, extended by the sections of our config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any

import torch
from trl import GRPOConfig

from repl_rl.config import Config, EngineConfig, MaskConfig, SamplingConfig, TrainConfig, parse_config
from repl_rl.errors import ConfigError
from repl_rl.utils.distributed import WAIT_S
from repl_rl.utils.text import nearest

_REASONS = {
    "training samples with a temperature alone; rollouts and evaluation have it in the section `sampling`": """
        min_p repetition_penalty""",
    "our engines don't sample with it; the section `sampling` has what they know": """
        generation_kwargs cache_implementation""",
    "our own engine samples; the section `engine` says how": """
        vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url
        vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_max_model_length vllm_tensor_parallel_size use_transformers_continuous_batching
        transformers_continuous_batching_config use_transformers_paged ds3_gather_for_generation""",
    "advantages come from the section `credit`; its `scale` says what they are divided by": """
        scale_rewards multi_objective_aggregation""",
    "`budget.lines` bounds the turns": "max_tool_calling_iterations",
    "an evaluation of GRPO has rewards, and neither labels nor predictions": """
        label_names label_smoothing_factor prediction_loss_only include_for_metrics batch_eval_metrics
        eval_accumulation_steps eval_do_concat_batches eval_use_gather_object""",
    "TRL's own sampler decides in which order tasks come, by `seed` and `shuffle_dataset`": """
        data_seed train_sampling_strategy length_column_name""",
    "losses that count tokens count those of all processes": "average_tokens_across_devices",
    "prompts have no images": "log_multimodal",
    "answers, and whatever else a task has, travel in columns of their own": "remove_unused_columns",
    "neither the tokenizer nor the engine runs code that comes with a checkpoint": "trust_remote_code",
    "it masks whatever doesn't end in an end token, which is nearly every session; set mask='overlong' "
    "(train.mask in the file): it masks what a budget ended": "mask_truncated_completions",
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""TRL's arguments that would do nothing here, and why."""
_READ_AS_DEFAULT = {"scale_rewards": True}
"""Values that TRL itself takes for its default, which is written otherwise ("group")."""


CISPO_MOST = 5.0
"""CISPO's bound on the ratio, epsilon_max of Khatri et al. 2025, The Art of Scaling Reinforcement Learning Compute for
LLMs. TRL falls back to `epsilon`, 0.2, which scales the loss by it."""

_CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


@cache
def _defaults() -> dict[str, Any]:
    """TRL's, by the argument's name."""
    defaults = {}
    for argument in fields(GRPOConfig):
        if argument.default_factory is MISSING:
            defaults[argument.name] = argument.default
        else:
            defaults[argument.name] = argument.default_factory()
    return defaults


@cache
def _sections() -> tuple[str, ...]:
    """The sections of the file that are arguments."""
    return Config.sections_in(ReplGRPOConfig)


@cache
def _train_keys() -> tuple[str, ...]:
    """The keys of the section `train` that are arguments of ours. TRL checks those that are its own."""
    return tuple(name for name in TrainConfig.keys_in(ReplGRPOConfig) if name not in _defaults())


def _without_effect(arguments: Mapping[str, Any]) -> list[str]:
    """A sentence for each argument that differs from TRL's default and would do nothing here, with the reason."""
    refusals = []
    for name, reason in REFUSED.items():
        default = _defaults()[name]
        value = arguments.get(name, default)
        if value not in (default, _READ_AS_DEFAULT.get(name, default)):
            refusals.append(f"{name}={value!r} of TRL's arguments would do nothing: {reason}")
    return refusals


@dataclass
class ReplGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's arguments, and the sections of our YAML file, each as its model or as a mapping; None is its default.

    `use_vllm=True` asks for vLLM, as `engine={"backend": "vllm"}` does; without it, `engine.backend` decides. Differs
    from TRL's defaults: token-level importance sampling between sampler and trainer (TRL's sequence level
    drops long sessions), `max_completion_length` follows `budget.tokens`, `epsilon_high` is 5 for CISPO, and memory is
    pinned where there is a GPU.
    """

    dialect: Any = None
    kernel: Any = None
    engine: Any = None
    budget: Any = None
    subcalls: Any = None
    rewards: Any = None
    credit: Any = None
    branch: Any = None
    chat: bool | None = None
    rollout_dir: str | None = None
    """Folder for `step_00012.jsonl` files; None, where `keep_run` says."""
    keep_run: bool = True
    """Keep rollouts and metrics in `output_dir/run_001`, which `repl-rl view` reads; the next training's is `run_002`.
    Only without `rollout_dir`."""
    sampler_dtype: str | None = None
    """Type of the engine's weights (float32, bfloat16, float16); None is that of the weights that are trained."""
    asynchronous: Any = None
    """The keys of `train.asynchronous`; None rolls out each step's trajectories before it trains."""
    redraws: int = 0
    """How many times a step's groups without variance are rolled out again with other tasks; each time costs another
    rollout of those groups. See `repl_rl.trainer.redraw`."""
    oversample: int = 1
    """Rollouts of a problem for each that is kept. See `repl_rl.trainer.resample`."""
    task_sampling: str = "uniform"
    """`uniform`, or `pass_rate`: draw rather what is neither always nor never solved (`tasks.sampling`)."""
    mask: Any = field(default_factory=MaskConfig)
    """The keys of `train.mask`, or its names: trajectories that are left out of the loss, but not out of their group's
    baseline. TRL's `mask_truncated_completions` is refused."""
    micro_batch_tokens: int | None = None
    """Tokens of a pass, at most: each batch of `per_device_train_batch_size` rows is taken in as few passes as that
    needs, with the loss and the gradient of the whole. None takes it in one."""
    output_loss: float = 0.0
    """Weight of the mean cross-entropy of the interpreter's output."""
    trace: Any = False
    """`train.trace`: steps of which a timeline is written, or True for all, into the folder `trace` beside that of the
    rollouts."""
    config: Any = None
    """The config that the sections are of, and that has checked them; None makes one of them."""
    vllm_importance_sampling_mode: str = "token_truncate"
    dataloader_pin_memory: bool = field(default_factory=torch.cuda.is_available)

    @classmethod
    def from_config(cls, config: Config, output_dir: str, **extra: Any) -> ReplGRPOConfig:
        """The arguments of the run that a config describes, with checkpoints in `output_dir`; `extra` overrides them.

        Raises ConfigError with TRL's reason if it refuses them.
        """
        plan = config.train
        config.sampling.require_gradient()
        micro_batch = plan.micro_batch or plan.trajectories_per_process
        arguments: dict[str, Any] = {}
        for section in (config, config.model, config.sampling, plan):
            arguments |= section.values_for(ReplGRPOConfig)
        for name in REFUSED:  # of the section `sampling`, what training can't do: `require_gradient` refuses it
            arguments.pop(name, None)
        arguments |= {
            "config": config,
            "output_dir": output_dir,
            "max_steps": plan.steps,
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": plan.trajectories_per_process // micro_batch,
            "num_generations": plan.group_size,
            "lr_scheduler_type": plan.schedule,
            "save_total_limit": 2,
            "logging_steps": 1,
            "ddp_timeout": WAIT_S,
            "bf16": config.model.dtype == "bfloat16",
            "fp16": False,
            # without it, accelerate looks for no other processes on a CPU, and transformers for no bfloat16
            "use_cpu": not torch.cuda.is_available(),
            "sampler_dtype": config.model.dtype,
            "gradient_checkpointing": False,
            "report_to": list(plan.report_to),
            "project": config.name,
            "disable_tqdm": True,
            "task_sampling": config.tasks.sampling,
            "chat_template_kwargs": config.model.chat_template_kwargs or None,
        }
        names = [field.name for field in fields(cls)]
        refusals = []
        for name in plan.trl:
            if name == "use_vllm":
                refusals.append("train.trl.use_vllm: in a file, write engine: {backend: vllm}")
            if name not in names:
                refusals.append(f"train.trl.{name}: TRL has no such argument; {nearest(name, names)}")
        refusals += _without_effect(plan.trl)
        if refusals:
            raise ConfigError("\n".join(refusals))
        loading = {"dtype": plan.dtype} | (plan.trl.get("model_init_kwargs") or {})
        if loading["dtype"] != plan.dtype:
            raise ConfigError(
                f"train.trl.model_init_kwargs: dtype {loading['dtype']!r}, and train.dtype is {plan.dtype!r}; write it "
                "there alone"
            )
        arguments = arguments | plan.trl | {"model_init_kwargs": loading} | extra
        try:
            return cls(**arguments)
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"TRL refuses these arguments: {error}; see train and train.trl in the config") from error

    def __post_init__(self) -> None:
        if getattr(self, "use_vllm"):  # noqa: B009 - TRL's fields have no types for mypy
            self._ask_for_vllm()
        if not self._is_from(self.config):
            values: dict[str, Any] = {}
            for name in _sections():
                if getattr(self, name) is not None:
                    values[name] = getattr(self, name)
            values["train"] = {name: getattr(self, name) for name in _train_keys()}
            values["train"]["group_size"] = self.num_generations
            values["tasks"] = {"sampling": self.task_sampling}
            self.config = parse_config(values)
        for name in _sections():
            setattr(self, name, getattr(self.config, name))
        for name in _train_keys():
            setattr(self, name, getattr(self.config.train, name))
        refusals = _without_effect({name: getattr(self, name) for name in REFUSED})
        if refusals:
            raise ConfigError("\n".join(refusals))
        tokens: int = getattr(self, "max_completion_length")  # noqa: B009 - TRL's fields have no types for mypy
        if tokens not in (_defaults()["max_completion_length"], self.budget.tokens):
            raise ConfigError(
                f"max_completion_length={tokens} and budget.tokens={self.budget.tokens} differ; "
                "leave the first out: the budget bounds a session"
            )
        self.max_completion_length = self.budget.tokens
        self.sampling.require_gradient()
        self._refuse_biased_losses()
        if self.micro_batch_tokens is not None and self.top_entropy_quantile < 1:
            raise ConfigError(
                f"micro_batch_tokens={self.micro_batch_tokens} with top_entropy_quantile={self.top_entropy_quantile}: "
                "which tokens are in the loss would be known after the last pass; leave one of them out, or take "
                "micro_batch, with a quantile of each micro-batch"
            )
        if self.trace and self.rollout_dir is None and not self.keep_run:
            raise ConfigError(
                f"trace={self.trace!r} with keep_run=False: timelines go into a folder beside that of the rollouts; "
                "set rollout_dir, or leave keep_run out"
            )
        self._follow_new_names()
        super().__post_init__()
        if (self.model_init_kwargs or {}).get("trust_remote_code"):
            raise ConfigError(
                f"model_init_kwargs={self.model_init_kwargs!r}: {REFUSED['trust_remote_code']}; leave that out, and "
                "take a model whose classes transformers itself has"
            )
        if self.mask.covariance is not None and not self.updates_once:
            raise ConfigError(
                "mask covariance with several updates of a batch (num_iterations, steps_per_generation): its tokens "
                "would have to be drawn anew at each; leave one of them out"
            )
        if self.asynchronous is not None:
            self._refuse_groups_too_old()

    def _follow_new_names(self) -> None:
        """Give transformers what TRL calls by a name that it has renamed (`activation_checkpointing`, since 5.24)."""
        for name in ("checkpointing", "checkpointing_kwargs"):
            if hasattr(self, f"activation_{name}") and getattr(self, f"activation_{name}") is None:
                setattr(self, f"activation_{name}", getattr(self, f"gradient_{name}"))

    def _ask_for_vllm(self) -> None:
        """Read TRL's `use_vllm` as the engine's backend, and take it back: TRL would load a vLLM of its own."""
        engine = self.engine or {}
        values = engine.model_dump() if isinstance(engine, EngineConfig) else dict(EngineConfig.written_out(engine))
        backend = values.get("backend", "auto")
        if backend not in ("auto", "vllm", "server"):
            raise ConfigError(f"use_vllm=True and engine.backend {backend!r} are two engines; leave one of them out")
        if backend == "auto" and not values.get("servers"):
            values["backend"] = "vllm"
        self.engine = values
        self.use_vllm = False

    def _is_from(self, config: Config | None) -> bool:
        """Whether these arguments are those of a config, none of them replaced, so that it has checked them."""
        if config is None or self.task_sampling != config.tasks.sampling:
            return False
        if self.num_generations != config.train.group_size:
            return False
        is_same = [getattr(self, name) is getattr(config, name) for name in _sections()]
        is_same += [getattr(self, name) == getattr(config.train, name) for name in _train_keys()]
        return all(is_same)

    @property
    def updates_once(self) -> bool:
        """Whether each batch is in a single update."""
        values: Any = self
        return bool(values.gradient_accumulation_steps % (values.steps_per_generation * values.num_iterations) == 0)

    def _refuse_biased_losses(self) -> None:
        """Raises ConfigError. Sets `epsilon_high` for CISPO."""
        high: float | None = getattr(self, "epsilon_high")  # noqa: B009 - TRL's fields have no types for mypy
        if getattr(self, "loss_type") == "cispo":  # noqa: B009
            self.epsilon_high = CISPO_MOST if high is None else high
            if self.epsilon_high < 1:
                raise ConfigError(
                    f"loss_type cispo with epsilon_high={high:g}: it bounds the ratio itself there, which is about 1, "
                    f"so the loss would be {high:g} times as large; leave it out ({CISPO_MOST:g}), or give 1 or more"
                )
        if self.vllm_importance_sampling_mode not in _CORRECTIONS:
            mode = self.vllm_importance_sampling_mode
            raise ConfigError(f"vllm_importance_sampling_mode={mode!r}: give {' or '.join(_CORRECTIONS)}")
        is_corrected: bool = getattr(self, "vllm_importance_sampling_correction")  # noqa: B009
        if self.mask.needs_ratios and not is_corrected:
            raise ConfigError(
                "mask geometric, veto or covariance with vllm_importance_sampling_correction=False: they need the "
                "trainer's probabilities before the update, which nothing computes then; leave one of them out"
            )
        if self.asynchronous is not None and self.asynchronous.ahead and not is_corrected:
            raise ConfigError(
                "asynchronous with vllm_importance_sampling_correction=False: tokens are sampled by older weights, and "
                "nothing would make up for it; leave the second out, or set asynchronous: {max_staleness: 0}"
            )

    def _refuse_groups_too_old(self) -> None:
        """Raises ConfigError where what waits in the queue would be too old whenever its turn comes."""
        values: Any = self
        updates = -(-values.steps_per_generation * values.num_iterations // values.gradient_accumulation_steps)
        age = self.asynchronous.ahead * updates
        if age > self.asynchronous.max_staleness:
            raise ConfigError(
                f"asynchronous.queue {self.asynchronous.ahead}: what waits for so many batches is {age} updates old by "
                f"then, with {updates} of them per batch (num_iterations, steps_per_generation), and max_staleness "
                f"{self.asynchronous.max_staleness} forbids it; set max_staleness: {age} or more, or queue: 0"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON types only, as the Hugging Face trainer stores it."""
        stored: dict[str, Any] = super().to_dict()
        for name in (*_sections(), *TrainConfig.sections_in(ReplGRPOConfig)):
            section = getattr(self, name)
            stored[name] = section and section.model_dump(mode="json")
        del stored["config"]  # its sections are there
        return stored

    @property
    def sampling(self) -> SamplingConfig:
        return SamplingConfig(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
