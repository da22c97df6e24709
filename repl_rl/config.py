"""The YAML file as pydantic models. Unknown keys are refused with the nearest known one; ranges stand on the fields.

Each module gets its own small section, never the whole `Config`.
"""

from __future__ import annotations

import difflib
import re
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from repl_rl.errors import ConfigError
from repl_rl.resources import resource_folder
from repl_rl.trajectory import LineKind

Reward = Annotated[FiniteFloat, Field(ge=-100.0, le=100.0)]


class Section(BaseModel):
    """A part of the file: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    path: str = "nano"
    """`nano`, a local checkpoint folder, or a hub id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Weights of sampler and trainer alike: with different types their log-probabilities drift apart."""
    chat: bool | None = None
    """Put the problem through the chat template. None: if the tokenizer has one."""


class TasksConfig(Section):
    families: tuple[str, ...] | None = None
    """Names of problem families; None takes all."""
    train: int = Field(2048, ge=1)
    """Training problems to make; the trainer walks through them in a seeded order."""


class DialectConfig(Section):
    name: Literal["python"] = "python"
    system: str | None = None
    """System prompt. None: the dialect's own for chat models, nothing for base models."""
    examples: int = Field(0, ge=0)
    """Worked sessions shown before the problem."""
    max_output_chars: int = Field(1000, ge=64)
    """Longer outputs are cut in the middle before they are encoded."""


class KernelConfig(Section):
    size: int = Field(64, ge=1, le=4096)
    """Kernels alive at once, running and started ahead of need."""
    backend: str = Field("fork", min_length=1)
    """`fork`: sessions forked from a warm server. Else the name of a Jupyter kernelspec."""
    sandbox: Literal["auto", "bwrap", "sandlock", "none"] = "auto"
    """`auto`: bwrap where it works, else sandlock (Landlock)."""
    profile: str = Field("default", min_length=1)
    """Of `kernels/profiles`: what is preloaded, mounted and limited."""
    line_s: float | None = Field(None, gt=0)
    """Wall seconds that one cell may run. For this and the next three, null is the profile's own: 5, 1, 3600, 512."""
    grace_s: float | None = Field(None, gt=0)
    """Seconds between the interrupt and the kill."""
    session_s: float | None = Field(None, gt=0)
    """Wall seconds that one session may live."""
    memory_mb: int | None = Field(None, ge=64)
    """Of each process of a session, beyond what the profile preloads."""
    budget_mb: int | None = Field(None, ge=64)
    """Of all sessions together; null is four fifths of what is available. Beyond it, sessions wait."""


class EngineConfig(Section):
    """`engine: transformers` in a file is short for `engine: {backend: transformers}`."""

    backend: Literal["auto", "vllm", "server", "transformers"] = "auto"
    """`auto`: servers if any are named, else vLLM in this process where it is installed, else transformers."""
    servers: tuple[str, ...] = ()
    """Base URLs of `vllm serve` processes that all serve the same model, such as http://node1:8000."""
    weights_folder: str | None = None
    """Servers only: a folder that trainer and servers share, for new weights. null is a temporary one, which serves
    if all run on this machine."""
    context_tokens: int = Field(1024, ge=32)
    """Prompt and completion together."""
    places: int = Field(64, ge=1)
    """Sequences in one engine batch."""
    kv_cache_gib: int = Field(1, ge=1)
    """CPU only: memory of the KV cache, in whole GiB."""
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1)
    """GPU only: share of the device that the engine takes beside the trainer."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, values: Any) -> Any:
        return {"backend": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _servers_fit_the_backend(self) -> EngineConfig:
        if self.backend == "server" and not self.servers:
            raise ValueError("backend server needs the URLs of its servers; set servers: [http://host:8000]")
        if self.servers and self.backend not in ("auto", "server"):
            raise ValueError(f"servers are named, but the backend is {self.backend}; leave one of the two out")
        return self


class SamplingConfig(Section):
    temperature: float = Field(1.0, ge=0, le=2)
    """0 is greedy; vLLM takes no more than 2."""
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0 is off."""


class BudgetConfig(Section):
    """When a trajectory has to end; each has a `StopReason` of its own."""

    line_tokens: int = Field(64, ge=1)
    lines: int = Field(12, ge=1)
    tokens: int = Field(400, ge=1)
    """Completion tokens, outputs included."""
    seconds: float = Field(120.0, gt=0)
    """Wall time from the moment that engine and kernel are there."""
    finish_share: float = Field(1.0, gt=0, le=1)
    """Training only: once this share of a batch has finished, the rest is cut, kept as data and in no loss. A group of
    which fewer than two have finished runs on until two have. Below 1, short trajectories are favoured."""


class RewardsConfig(Section):
    outcome: Reward = 1.0
    """Paid once for a right answer, at the line that submitted it."""
    kinds: dict[LineKind, Reward] = Field(default_factory=dict)
    """Reward per line of a kind; kinds that are not named earn 0."""
    exceptions: dict[str, Reward] = Field(default_factory=dict)
    """Reward by exception name; replaces the kind's reward on such a line."""
    functions: tuple[str, ...] = ()
    """Import paths, `package.module:function`, of `(trajectory) -> list[float]`."""

    @model_validator(mode="before")
    @classmethod
    def _name_nearest_kind(cls, values: Any) -> Any:
        kinds = values.get("kinds", {}) if isinstance(values, dict) else {}
        for kind in kinds if isinstance(kinds, dict) else ():
            if kind not in set(LineKind):
                raise ValueError(f"kinds: unknown line kind {kind!r}; {_nearest(str(kind), list(LineKind))}")
        return values


class CreditConfig(Section):
    estimator: Literal["outcome", "return_to_go"] = "return_to_go"
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per line."""
    scale: bool = True
    """Divide by the group's standard deviation."""


class TrainConfig(Section):
    steps: int = Field(40, ge=1)
    prompts_per_step: int = Field(8, ge=1)
    group_size: int = Field(8, ge=2)
    learning_rate: float = Field(1e-3, gt=0)
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    warmup_steps: int = Field(0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    save_steps: int = Field(10, ge=1)
    processes: int = Field(1, ge=1)
    """Trainer processes, one for each GPU; `accelerate launch --num_processes` starts more than one."""
    micro_batch: int | None = Field(None, ge=1)
    """Trajectories per backward pass of a process; None takes its share of the step at once."""
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"] = "dapo"
    beta: float = Field(0.0, ge=0)
    """Weight of the KL term."""
    trl: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's GRPOConfig, as they are."""

    @property
    def trajectories_per_process(self) -> int:
        """Of one step."""
        return self.prompts_per_step * self.group_size // self.processes

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
    temperature: float | None = Field(None, ge=0, le=2)
    """None: the sampling section's, as in training."""
    problems: int = Field(240, ge=1)
    """Held-out problems, one rollout each."""


class Config(Section):
    """One run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = Field(0, ge=0)
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig = TasksConfig()
    dialect: DialectConfig = DialectConfig()
    kernel: KernelConfig = KernelConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    budget: BudgetConfig = BudgetConfig()
    rewards: RewardsConfig = RewardsConfig()
    credit: CreditConfig = CreditConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    @property
    def eval_sampling(self) -> SamplingConfig:
        """How held-out problems are sampled."""
        if self.eval.temperature is None:
            return self.sampling
        return self.sampling.model_copy(update={"temperature": self.eval.temperature})


def load_config(source: str, overrides: tuple[str, ...] = ()) -> Config:
    """The config at a path, or the shipped one of that name, with `a.b=value` overrides (values are YAML).

    Raises ConfigError naming the key, its value and what would do.
    """
    return parse_config(_read_yaml(_find(source)), overrides)


def parse_config(values: Any, overrides: tuple[str, ...] = ()) -> Config:
    """A Config from what a YAML file holds. Raises ConfigError."""
    if not isinstance(values, dict):
        raise ConfigError(f"a config is a mapping of sections, got {type(values).__name__}")
    for override in overrides:
        values = _with_override(values, override)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from error


def dump_config(config: Config) -> str:
    """YAML that `load_config` reads back to an equal Config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False)


def shipped_configs() -> list[str]:
    """Names of the configs in the package."""
    return sorted(path.stem for path in resource_folder("configs").glob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """YAML as people write it: `1e-3` is a number, as in YAML 1.2 and JSON; PyYAML's 1.1 reads a string."""


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that `_Loader` would take for numbers."""


for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def _find(source: str) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    if source in shipped_configs():
        return resource_folder("configs") / f"{source}.yaml"
    raise ConfigError(f"no config {source!r}: neither a file nor a shipped name ({', '.join(shipped_configs())})")


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read as YAML: {error}") from error


def _with_override(values: dict[str, Any], override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: write it as section.key=value")
    try:
        leaf = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not YAML ({error})") from error
    return _merged(values, key.split("."), leaf)


def _merged(values: dict[str, Any], keys: list[str], leaf: Any) -> dict[str, Any]:
    head, *rest = keys
    if not rest:
        return {**values, head: leaf}
    below = values.get(head)
    return {**values, head: _merged(below if isinstance(below, dict) else {}, rest, leaf)}


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {where!r}; {_nearest(str(problem['loc'][-1]), _known_keys(problem['loc'][:-1]))}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" + (f" (got {problem['input']!r})" if problem["type"] != "value_error" else "")


def _known_keys(sections: tuple[int | str, ...]) -> list[str]:
    section: type[BaseModel] = Config
    for name in sections:
        below = section.model_fields[str(name)].annotation
        if not isinstance(below, type):
            below = next(part for part in typing.get_args(below) if isinstance(part, type))
        section = below
    return list(section.model_fields)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {str(close[0])!r}?" if close else f"known are {', '.join(map(str, known))}"
