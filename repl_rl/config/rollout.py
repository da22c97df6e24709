"""The sections that a rollout is made from: model, dialect, kernel, engine, sampling, budget."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from repl_rl.config.section import Excluding, Names, Section, known_or_own
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind
from repl_rl.utils.import_path import imported


class ModelConfig(Section):
    """The model that samples and is trained."""

    SHORT_FOR: ClassVar[str | None] = "path"

    path: str = "nano"
    """A name (nano, nano-conventions, nano-rlm, qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, gemma-270m), a local
    checkpoint folder, a .gguf file, or a hub id. What begins with `.`, `/` or `~`, or ends with `/`, is local."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the sampler's weights, and of the trainer's passes if it is bfloat16. The weights that are trained have
    `train.dtype`."""
    chat: bool | None = None
    """Put the problem through the chat template. null: do so if the tokenizer has one."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """What the chat template takes besides, such as `{enable_thinking: false}` of Qwen3's. What it does not name is
    refused."""

    @model_validator(mode="after")
    def _template_is_used(self) -> ModelConfig:
        if self.chat is False and self.chat_template_kwargs:
            raise ValueError("chat_template_kwargs: with chat: false there is no template to take them; leave one out")
        for name, value in self.chat_template_kwargs.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                kind = type(value).__name__
                raise ValueError(
                    f"chat_template_kwargs: {name} is a {kind}, which is not handed to a template; write it as text: "
                    f"'{value}', with the quotes"
                ) from error
        return self


class DialectConfig(Section):
    """What the model reads and how its turns are read. docs/dialects.md shows all of them."""

    SHORT_FOR: ClassVar[str | None] = "name"

    name: str = Field("python", min_length=1)
    """python, ipython, fenced, inline, tool_call or text; `package.module:Class` of your own dialect; or the path
    of a .yaml file with texts for one of them (`dialect: fenced`)."""
    system: str | None = None
    """System prompt. null: the dialect's own for chat models, nothing for base models. Empty text: none."""
    examples: int | None = Field(None, ge=0)
    """Worked sessions shown before the problem. null: all that the dialect has under a chat template, else none."""
    max_output_chars: int = Field(500, ge=64)
    """Longer outputs are cut in the middle before they are encoded."""


class McpConfig(Section):
    """An MCP server: a program of this machine, or an address. docs/tools.md"""

    command: Names = ()
    """A program with its arguments, which speaks over its standard streams."""
    url: str | None = None
    """In place of a program: an address that speaks Streamable HTTP."""
    env: Names = ()
    """Names of variables of the environment that the program gets, besides HOME, PATH, USER and their like."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Of requests to an address. `${NAME}` stands for a variable of the environment, so that no file has a secret."""
    only: Names = ()
    """Names of the tools that the model gets. None: all."""
    prefix: str = ""
    """Put before the names of the tools."""
    timeout_s: float = Field(10.0, gt=0)
    """Seconds that a call may take."""
    at_once: int = Field(8, ge=1)
    """Calls of one tool at a time, over all trajectories."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an MCP server has a command or a url: give one of them")
        return self


class ToolsConfig(Section):
    """Functions that the model may call, besides all of Python."""

    SHORT_FOR: ClassVar[str | None] = "functions"

    functions: Names = ()
    """Import paths, `package.module:function`, of functions with annotations and a docstring."""
    where: Literal["sandbox", "host"] = "sandbox"
    """Where functions run that don't say so themselves: inside the interpreter, or on the host, called through a
    proxy."""
    mcp: dict[str, McpConfig] = Field(default_factory=dict)
    """MCP servers by a name of your own. Their tools run on the host."""


class KernelConfig(Section):
    """The interpreters: one per trajectory, in a sandbox. docs/threat-model.md says what the sandbox prevents."""

    SHORT_FOR: ClassVar[str | None] = "backend"

    size: int = Field(64, ge=1, le=4096)
    """Kernels alive at once, running and started ahead of need."""
    backend: str = Field("fork", min_length=1)
    """`fork`: sessions forked from a warm server. Else the name of a Jupyter kernelspec, of any language.
    docs/kernelspecs.md"""
    sandbox: Literal["auto", "bwrap", "sandlock", "none"] = "auto"
    """`auto`: bwrap where it works, else sandlock (Landlock)."""
    profile: str = Field("default", min_length=1)
    """What is preloaded, mounted and limited: `default`, `math`, or the path of a .toml file of your own, looked up in
    the working folder and then beside the YAML file. docs/sessions.md"""
    line_s: float | None = Field(None, gt=0)
    """Seconds of processor time that one cell may take. For this and the next four keys, null takes the profile's
    value: 5, five times `line_s`, 1, 3600, 512."""
    line_wall_s: float | None = Field(None, gt=0)
    """Wall seconds that one cell may run: more than `line_s`, because it may wait, and its machine may be busy."""
    grace_s: float | None = Field(None, gt=0)
    """Seconds between the interrupt and the kill."""
    session_s: float | None = Field(None, gt=0)
    """Wall seconds that one session may live."""
    memory_mb: int | None = Field(None, ge=64)
    """Memory of each process of a session, beyond what the profile preloads."""
    budget_mb: int | None = Field(None, ge=64)
    """Memory of all sessions together; null is four fifths of what is available. New sessions wait while it is used
    up."""

    @field_validator("profile")
    @classmethod
    def _is_found_from_anywhere(cls, name: str, info: ValidationInfo) -> str:
        """The path of an own profile is made absolute, so that a stored config finds it from any folder."""
        if "/" not in name and not name.endswith(".toml"):
            return name
        beside = [] if info.context is None else [info.context["folder"]]
        paths = [Path(os.path.abspath(folder / Path(name).expanduser())) for folder in (Path.cwd(), *beside)]
        return str(next((path for path in paths if path.is_file()), paths[0]))


_OWN_ARGUMENTS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "seed": "the key seed",
    "max_model_len": "engine.context_tokens",
    "max_num_seqs": "engine.places",
    "gpu_memory_utilization": "engine.gpu_memory_utilization",
    "scheduler_cls": "our own, which ends lines",
    "logprobs_mode": "processed_logprobs, which training needs",
    "enable_prefix_caching": "engine.deterministic's to decide",
    "pipeline_parallel_size": "for servers: name them in engine.servers",
    "data_parallel_size": "for servers: name them in engine.servers",
    "trust_remote_code": "off: no code that comes with a checkpoint is run here",
}
"""Arguments of vLLM that are decided elsewhere, and where."""
_BACKENDS = ("auto", "vllm", "server", "transformers")


class EngineConfig(Section):
    """What samples, and how much of it at a time."""

    SHORT_FOR: ClassVar[str | None] = "backend"

    backend: Annotated[str, known_or_own(_BACKENDS, "engine", "package.module:function")] = "auto"
    """auto, vllm, server or transformers; or `package.module:function`, which makes your own engine.
    docs/engines.md shows all of them. `auto`: servers if any are named, else vLLM in this process where it is
    installed, else transformers. `rollout` and `live` take transformers for up to four sessions on a CPU."""
    servers: Names = ()
    """Base URLs of `vllm serve` processes that all serve the same model, such as http://node1:8000."""
    weights_folder: str | None = None
    """Servers only: a folder that trainer and servers share, for new weights. null makes a temporary one,
    which is enough if all of them run on this machine."""
    context_tokens: int = Field(1024, ge=32)
    """The most tokens that prompt and completion take together."""
    places: int = Field(64, ge=1)
    """Sequences in one engine batch. Servers have their own limit (`--max-num-seqs`); one that does not say it is sent
    so many requests at a time."""
    kv_cache_gib: int = Field(1, ge=1)
    """CPU only: memory of the KV cache, in whole GiB."""
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1)
    """GPU only: share of the device's memory that the engine takes, beside the trainer."""
    vllm: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM in this process, by vLLM's names (`EngineArgs`): `enforce_eager`, `kv_cache_dtype`,
    `compilation_config`, ... With `enable_sleep_mode` it gives its memory to the trainer between a step's rollouts and
    the next one's. With `tensor_parallel_size`, so many trainer processes of a machine hold its model together, and the
    first of them rolls out for all of them. Servers get theirs on their own command lines."""
    line_seeds: bool = True
    """Whether each line draws its tokens by a seed of its own, which follows from the run's. A resumed run then goes on
    with the random numbers that it would have had. vLLM's first model runner launches a kernel for each such line at
    every step; `repl-rl doctor --train` says which runner there is, and a run warns at its start where it costs.
    Without seeds, vLLM draws for the whole batch at once, and a resumed run begins with the numbers of its start; start
    each server with another `--seed` then. transformers draws by seeds in any case."""
    deterministic: bool = False
    """For debugging: one trajectory at a time, its random numbers from the run's seed, the step and its index. On a CPU
    two runs of one config are then equal to the bit, resumed or not, as far as the typed code asks for no time, chance
    or address and no limit in seconds strikes. Nothing that was computed for an earlier line is used again, so that no
    cache decides about the last bits. Sampling takes as long as its trajectories one after another."""

    EXCLUDING: ClassVar[tuple[Excluding, ...]] = (
        (("deterministic", "servers"), "a server batches lines as they come"),
    )

    @model_validator(mode="after")
    def _servers_fit_the_backend(self) -> EngineConfig:
        if self.backend == "server" and not self.servers:
            raise ValueError("backend server needs the URLs of its servers; set servers: [http://host:8000]")
        if self.servers and self.backend in ("vllm", "transformers"):
            raise ValueError(f"servers are named, but the backend is {self.backend}; leave one of the two out")
        if self.vllm and (self.servers or self.backend not in ("auto", "vllm")):
            raise ValueError("vllm holds arguments for vLLM in this process; give servers theirs as flags")
        if self.deterministic and not self.line_seeds:
            raise ValueError("deterministic takes its random numbers from the seeds of lines; leave line_seeds out")
        for name in self.vllm:
            if name in _OWN_ARGUMENTS:
                raise ValueError(f"vllm: {name} is {_OWN_ARGUMENTS[name]}; leave it out there")
        if not (isinstance(self.shards, int) and self.shards > 0):
            raise ValueError(f"vllm: tensor_parallel_size {self.shards!r} is not a number of processes")
        return self

    @property
    def shards(self) -> int:
        """The trainer processes that hold vLLM's model together (tensor parallelism)."""
        return self.vllm.get("tensor_parallel_size", 1)  # type: ignore[no-any-return]


LEAST_TEMPERATURE = 0.01
"""vLLM samples at no lower temperature than this one, unless it is 0."""


class SamplingConfig(Section):
    """How lines are sampled in training, and in evaluation unless `eval` says otherwise."""

    temperature: float = Field(1.0, ge=0, le=2)
    """0 is greedy; vLLM takes no more than 2."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the most likely tokens that hold this share of the probability together. 1 is all of them, and what
    training needs."""
    top_k: int = Field(0, ge=0)
    """Sample from so many of the most likely tokens. 0 is off, and what training needs."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample from tokens at least this share as likely as the likeliest. 0 is off, and what training needs."""
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    """Divides the logits of tokens that are in the transcript already, prompt and outputs included, or multiplies
    negative ones. 1 is off, and what training needs. Code repeats names and digits, so more than 1.1 harms it."""

    def require_gradient(self) -> None:
        """Raises ConfigError for settings that no policy can be trained with: too low a temperature, and cut tails."""
        if self.temperature < LEAST_TEMPERATURE:
            raise ConfigError(
                f"sampling.temperature (temperature of TRL's arguments) is {self.temperature:g}, and training takes "
                f"{LEAST_TEMPERATURE:g} or more: below, samplers type what is likeliest, and a policy's gradient of "
                "that is not defined. Evaluation may have its own, eval.temperature"
            )
        plain = SamplingConfig(temperature=self.temperature)
        names = [name for name in SamplingConfig.model_fields if getattr(self, name) != getattr(plain, name)]
        if names:
            given = " and ".join(f"sampling.{name} {getattr(self, name):g}" for name in names)
            without = " and ".join(f"{name} {getattr(plain, name):g}" for name in names)
            raise ConfigError(
                f"{given} (of TRL's arguments too): the trainer's probabilities are those without it, so the ratio of "
                f"the two, and the gradient, would be biased; train with {without}. Evaluation and rollouts may have "
                f"it: `repl-rl eval` and `repl-rl rollout` with --set sampling.{names[0]}=..."
            )

    def seeded(self, seed: str) -> SeededSampling:
        """The same settings, with random numbers that are determined by `seed`."""
        return SeededSampling(**self.model_dump(include=set(SamplingConfig.model_fields)), seed=seed)


class SeededSampling(SamplingConfig):
    """Sampling of a batch. Random numbers depend only on `seed`, the trajectory's index and the token's position, so
    no two lines share them, whichever engine, server or process samples them.

    Not a section of the file. Batches of other shapes may still round logits in another way: `engine.deterministic`.
    """

    seed: str
    first: int = 0
    """The index in the batch of the first trajectory that is asked for, if only a part of the batch is."""

    def of_trajectory(self, index: int) -> SeededSampling:
        """The sampling of one of the trajectories that are asked for."""
        return self.model_copy(update={"seed": f"{self.seed}/{self.first + index}", "first": 0})

    def line_seed(self, length: int) -> int:
        """The 63-bit seed of the line that begins after `length` tokens."""
        digest = hashlib.blake2b(f"{self.seed}/{length}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1


class BudgetConfig(Section):
    """When a trajectory has to end. Each limit has its own `StopReason`."""

    line_tokens: int = Field(128, ge=1)
    """Tokens of one line; a line that reaches it without a newline is `overlong` and does not run."""
    lines: int = Field(48, ge=1)
    """Lines of a trajectory, of every kind."""
    tokens: int = Field(512, ge=1)
    """Completion tokens, outputs included."""
    seconds: float = Field(120.0, gt=0)
    """Wall time from the moment that engine and kernel are there."""
    repeats: int | None = Field(4, ge=2)
    """Times that code fails in the same way, or shows the same and changes nothing; and, in a row, blank lines or one
    comment. A chat model is told from the second time on. null: there is no limit."""
    compact_at: float | None = Field(None, gt=0, le=1)
    """Share of `engine.context_tokens` at which a session's transcript is compacted: a summary and the last lines take
    its place, while the interpreter lives on. It happens earlier where a line of `line_tokens` would not fit any more.
    null: a session ends when its context is full. docs/rlm.md"""


class SubcallsConfig(Section):
    """What an environment may ask a language model (`environment: rlm`). Budgets are those of one trajectory; a
    question beyond them is answered with a text that says so. docs/rlm.md"""

    model: str = "policy"
    """`policy`: the model that is trained, at the same engine; or the URL of a server with OpenAI's API, such as
    `http://host:8000`."""
    served_name: str | None = None
    """The model's name at that server. null: the first that it lists."""
    calls: int = Field(64, ge=0)
    """Questions."""
    tokens: int = Field(16384, ge=0)
    """Tokens of all answers."""
    call_tokens: int = Field(256, ge=1)
    """Tokens of one answer."""
    at_once: int = Field(16, ge=1)
    """Questions of one session that are answered at a time."""
    seconds: float = Field(120.0, gt=0)
    """How long a server may take for an answer."""
    train: bool = False
    """Train what is sampled for sub-calls too: each answer of the policy becomes a row of the batch with the advantage
    of the line that asked."""

    EXCLUDING: ClassVar[tuple[Excluding, ...]] = ((("train", "model"), "only what the policy samples can be trained"),)

    @model_validator(mode="before")
    @classmethod
    def _without_what_has_left(cls, values: Any) -> Any:
        """Configs of earlier runs name `depth` and `session_tokens`, from when sessions could ask for sessions."""
        if not isinstance(values, dict):
            return values
        depth = values.get("depth", 1)
        if depth != 1:
            raise ValueError(
                f"depth {depth!r}: sub-calls have one level, and no session asks for another one; leave depth out, ask "
                "with llm_query in place of rlm_query, and put what it should know of the context into the prompt"
            )
        return {key: value for key, value in values.items() if key not in ("depth", "session_tokens")}

    @property
    def one_by_one(self) -> SubcallsConfig:
        """The same, without batches, whose makeup shows in the last bits of what is sampled."""
        return self.model_copy(update={"at_once": 1})

    @field_validator("model")
    @classmethod
    def _a_known_model(cls, model: str) -> str:
        if model != "policy" and not model.startswith(("http://", "https://")):
            raise ValueError(
                f"{model!r} is neither policy nor a URL; to ask a frozen model, serve it (vllm serve {model}) and give "
                "the server's URL"
            )
        return model


class BranchConfig(Section):
    """Trees: training sessions are forked as they go, so that several futures of one line are typed.

    A group is `roots` sessions that begin at the prompt, and for each of their forks `branches` - 1 more that begin
    there. Without the section, nothing is forked. docs/trees.md
    """

    roots: int = Field(4, ge=1)
    """Sessions of a group that begin at the prompt, and may fork."""
    forks: int = Field(1, ge=1)
    """Forks of each root. If a root ends before all of them, the branches that are left begin at the prompt."""
    branches: int = Field(3)
    """Futures of each fork, of which the root's own is one."""
    at: Annotated[str, known_or_own(("random", "entropy"), "rule", "package.module:Class")] = "random"
    """Where a root forks: after a line drawn at `random`; or after one that surprised its policy more than the lines
    before it did, by the mean of -log p over its tokens (`entropy`). Both look only at what has been typed. Or a rule
    of your own, `package.module:Class`. docs/trees.md"""
    within: int | None = Field(None, ge=2)
    """`random` draws a line among the first `within` - 1, so that a branch begins with one of the lines 2 to `within`,
    or later if the lines before may not fork. null is `budget.lines`. Set it to what sessions usually take."""
    skip: tuple[LineKind, ...] = (LineKind.COMMENT, LineKind.BLANK)
    """Kinds of lines after which nothing forks. Inside of an open cell nothing ever does."""
    by: Literal["fork", "replay"] = "fork"
    """How a branch comes to its root's state: the interpreter forks, where it can and the pool has room; else the lines
    run again in a fresh one. With `replay` they always do. If that shows anything different, the session begins at the
    prompt instead."""

    @field_validator("branches")
    @classmethod
    def _has_siblings(cls, branches: int) -> int:
        if branches < 2:
            raise ValueError(
                f"{branches} is no fork: the root's own future is one of them, so set 2 or more, or leave out the "
                "section branch"
            )
        return branches

    @property
    def looks_at_outcomes(self) -> bool:
        """Whether what came of a session decides where others begin, which biases the gradient. Raises ConfigError."""
        own = imported(self.at, "branch.at:", "package.module:Class") if ":" in self.at else None
        return bool(getattr(own, "looks_at_outcomes", False))

    @property
    def group_size(self) -> int:
        """Trajectories of a group."""
        return self.roots * (1 + self.forks * (self.branches - 1))
