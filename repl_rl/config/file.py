"""The YAML file as one model: found by path or name, overridden key by key. Errors suggest the nearest known key."""

from __future__ import annotations

import json
import shlex
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import Field, ValidationError, model_validator

from repl_rl.config.cluster import ClusterConfig
from repl_rl.config.credit import CreditConfig
from repl_rl.config.estimators import ESTIMATOR_RECORDS, NEUTRAL_BASELINES, Trees
from repl_rl.config.rewards import RewardsConfig
from repl_rl.config.rollout import (
    BranchConfig,
    BudgetConfig,
    DialectConfig,
    EngineConfig,
    KernelConfig,
    ModelConfig,
    SamplingConfig,
    SubcallsConfig,
    ToolsConfig,
)
from repl_rl.config.section import YES_OR_NO, Excluding, Names, Section, options_of
from repl_rl.config.sft import SftConfig
from repl_rl.config.tasks import TasksConfig
from repl_rl.config.train import OTHER_NAMES, EvalConfig, MaskConfig, TrainConfig
from repl_rl.errors import ConfigError
from repl_rl.files import read_file
from repl_rl.utils.folders import resource_folder, shipped_configs
from repl_rl.utils.import_path import look_in
from repl_rl.utils.text import nearest
from repl_rl.utils.yaml import MOST_BYTES, read_yaml, write_yaml


class Config(Section):
    """One run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The name of the run's folder. A number is appended if the folder exists already."""
    seed: int = Field(0, ge=0)
    """Seeds the training problems and their order, sampling, and training."""
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig = TasksConfig()
    dialect: DialectConfig = DialectConfig()
    tools: ToolsConfig = ToolsConfig()
    environment: str | None = None
    """`rlm`, or the import path, `package.module:Class`, of an environment. Each trajectory gets its own instance."""
    rollout: str | None = None
    """Import path of an async `(tasks, engine, kernels)` that replaces the line loop."""
    guests: Names = ()
    """Import paths, `package.module:Class`, of what looks on while sessions are typed. [tools.md](tools.md#guests)"""
    import_from: str | None = None
    """Folder in which import paths are looked up after the working folder; relative to the file. null: the file's own
    folder."""
    kernel: KernelConfig = KernelConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    budget: BudgetConfig = BudgetConfig()
    subcalls: SubcallsConfig = SubcallsConfig()
    branch: Annotated[BranchConfig | None, YES_OR_NO] = None
    cluster: Annotated[ClusterConfig | None, YES_OR_NO] = None
    rewards: RewardsConfig = RewardsConfig()
    credit: CreditConfig = CreditConfig()
    train: TrainConfig = TrainConfig()
    sft: SftConfig = SftConfig()
    eval: EvalConfig = EvalConfig()

    OTHER_NAMES: ClassVar[dict[str, str]] = OTHER_NAMES
    EXCLUDING: ClassVar[tuple[Excluding, ...]] = (
        (("engine.deterministic", "rollout"), "a loop of your own asks the engine as it likes"),
        (("guests", "rollout"), "a loop of your own has none"),
        (("budget.compact_at", "rollout"), "a loop of your own is not compacted"),
        (("branch", "rollout"), "a loop of your own does not fork"),
        (("cluster", "rollout"), "the workers of a cluster run the line loop, and no other"),
        (("branch", "train.oversample"), "a tree is kept whole"),
        (("branch", "budget.compact_at"), "branches begin with all lines of a session"),
        (("cluster.replicas", "engine.servers"), "the first starts servers, and the second names others"),
        (("cluster.replicas", "engine.vllm"), "servers take flags; give them in cluster.replica_arguments"),
        (("cluster.replicas", "engine.deterministic"), "a server batches lines as they come"),
        (("train.asynchronous", "tasks.sampling"), "groups are drawn before it is known how those before them ended"),
        (("train.asynchronous", "engine.vllm.tensor_parallel_size"), "shards sample in step; servers need not"),
    )

    @property
    def import_paths(self) -> list[str]:
        """The values that name something to import, `package.module:name`."""
        single = [
            self.dialect.name,
            self.environment,
            self.rollout,
            self.engine.backend,
            self.credit.estimator,
            self.train.mask.function,
            None if self.branch is None else self.branch.at,
        ]
        names = [name for name in single if name is not None]
        names += self.tools.functions
        names += self.guests
        names += self.tasks.families or ()
        names += self.rewards.model_dump(mode="json")["functions"]
        return [name for name in names if ":" in name]

    @property
    def eval_sampling(self) -> SamplingConfig:
        """How held-out problems are sampled."""
        if self.eval.temperature is None:
            return self.sampling
        return self.sampling.model_copy(update={"temperature": self.eval.temperature})

    @property
    def eval_settings(self) -> dict[str, Any]:
        """What has to be equal for two held-out rates of a run to be comparable."""
        return {"problems": self.eval.problems, "temperature": self.eval_sampling.temperature}

    def _trees_go_together(self) -> None:
        branch = self.branch
        estimator = self.credit.estimator
        shipped = self.credit.record
        if branch is None:
            if shipped is not None and shipped.trees is Trees.REQUIRED:
                raise ValueError(
                    f"credit.estimator: {estimator} compares the branches of trees, and nothing is forked without a "
                    "section branch; set branch: {roots: 4, forks: 1, branches: 3} and train.group_size: 12, or take "
                    "another estimator"
                )
            return
        if shipped is not None and shipped.trees is Trees.REFUSED:
            *first, last = [name for name, record in ESTIMATOR_RECORDS.items() if record.trees is not Trees.REFUSED]
            raise ValueError(
                f"credit.estimator: {estimator} would take the branches of a tree for sessions that have nothing in "
                f"common; with a section branch, take {', '.join(first)} or {last}"
            )
        if branch.roots < 2 and shipped is not None:
            raise ValueError(
                f"branch.roots: {branch.roots} leaves a group without a second session from the prompt to compare "
                f"with, so credit.estimator {estimator} would be biased for all that comes before the first fork; set "
                "branch.roots: 2 or more"
            )
        if self.train.group_size != branch.group_size:
            raise ValueError(
                f"train.group_size: {branch.roots} roots, with {branch.forks} forks into {branch.branches} each, are "
                f"groups of {branch.group_size}; set train.group_size: {branch.group_size} (num_generations of TRL's "
                f"arguments; got {self.train.group_size})"
            )

    def require_unbiased_forks(self) -> None:
        """Raises ConfigError for a rule that looks at outcomes, beside an estimator that is unbiased only without.

        A rule of the user's is imported for this, so it is no part of reading the file, which says where to look.
        """
        shipped = self.credit.record
        if self.branch is None or shipped is None or shipped.trees is not Trees.REQUIRED:
            return
        if self.branch.looks_at_outcomes:
            others = [name for name, record in ESTIMATOR_RECORDS.items() if record.trees is Trees.AS_SESSIONS]
            raise ConfigError(
                f"branch.at: {self.branch.at} chooses by outcomes where to fork, and credit.estimator "
                f"{self.credit.estimator} is unbiased only where that depends on nothing but what was typed before; "
                f"take {' or '.join(others)}, or at: random"
            )

    def _a_cluster_has_engines(self) -> None:
        if self.cluster is None:
            return
        if self.engine.backend in ("vllm", "transformers"):
            raise ValueError(
                f"engine.backend {self.engine.backend} samples in the trainer's process, and the workers of a cluster "
                "are elsewhere; name servers in engine.servers, or set cluster.replicas"
            )
        if not (self.engine.servers or self.cluster.replicas or ":" in self.engine.backend):
            raise ValueError(
                "cluster: its workers ask vLLM servers for lines, and there are none; name them in engine.servers, or "
                "set cluster.replicas to start some"
            )

    @model_validator(mode="after")
    def _sections_go_together(self) -> Config:
        if self.train.mask.void_turns and self.dialect.name in ("python", "ipython"):
            raise ValueError(
                f"train.mask.void_turns beside dialect {self.dialect.name}: its prompt has lines and no turns, "
                "and a comment is a thought; leave it out, or take fenced or tool_call"
            )
        self._trees_go_together()
        self._a_cluster_has_engines()
        shipped = self.credit.record
        if shipped is not None and shipped.compares_states and self.kernel.backend != "fork":
            raise ValueError(
                f"credit.estimator: {self.credit.estimator} compares lines by the fingerprint of the interpreter's "
                f"state, which kernel.backend {self.kernel.backend!r} does not tell; take backend fork, or another "
                "estimator"
            )
        if shipped is not None and not shipped.takes_negative_returns and self.rewards.least < 0:
            raise ValueError(
                f"credit.estimator: {self.credit.estimator} takes returns as shares of their mean, and rewards pay "
                f"{self.rewards.least:g} for "
                "something; leave out what is below 0, or take rloo or outcome"
            )
        if (length := self.rewards.length) and length.free >= self.budget.tokens:
            raise ValueError(
                f"rewards.length.free {length.free} is no less than budget.tokens {self.budget.tokens}, so nothing "
                "would be charged; lower it: free and over together are the budget in DAPO"
            )
        if self.rewards.shaping.mode == "potential" and self.credit.clip is not None:
            raise ValueError(
                f"credit.clip {self.credit.clip:g} cuts what a potential adds to one line and takes from another, so "
                "rewards.shaping.mode: potential would not be neutral any more; leave one of the two out"
            )
        if self.rewards.shaping.mode == "potential" and not self.credit.leaves_potentials_neutral:
            *baselines, last_baseline = NEUTRAL_BASELINES
            raise ValueError(
                f"rewards.shaping.mode: potential is not neutral under credit.estimator {self.credit.estimator} with "
                f"baseline {self.credit.baseline} and scale {self.credit.scale}: the policy would be pushed towards "
                f"high potentials. Take return_to_go with scale none and baseline {', '.join(baselines)} or "
                f"{last_baseline}, or outcome, dr_grpo, rloo or reinforce++"
            )
        self._potentials_see_all_that_was_typed()
        return self

    def _potentials_see_all_that_was_typed(self) -> None:
        train, estimator = self.train, self.credit.estimator
        if self.rewards.shaping.mode != "potential" or not self.credit.leaves_potentials_neutral_line_by_line:
            return
        choosing = {
            "train.mask": train.mask != MaskConfig(),
            "train.redraws": train.redraws > 0,
            "train.oversample": train.oversample > 1,
        }
        for key, chooses in choosing.items():
            if chooses:
                raise ValueError(
                    f"rewards.shaping.mode: potential beside {key} is not neutral under credit.estimator {estimator}: "
                    "what stays in the loss depends on what was typed, so what the potential adds to one line is not "
                    "taken from another. Leave one of the two out, or take rloo, outcome, dr_grpo or reinforce++"
                )


def load_config(source: str, overrides: tuple[str, ...] = ()) -> Config:
    """The config at a path, or the shipped one of that name, with `a.b=value` overrides.

    Values of overrides are YAML, not empty and without comments. If the file or an override names something by its
    import path, `import_from` becomes an absolute path, and modules there can be imported from now on. Raises
    ConfigError naming the key, its value and what is allowed.
    """
    path = Path(source)
    is_shipped = not path.is_file()
    if is_shipped:
        if source not in shipped_configs():
            raise ConfigError(no_config(source))
        path = resource_folder("configs") / f"{source}.yaml"
    try:
        values = read_yaml(read_file(path, most_bytes=MOST_BYTES).decode()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read as YAML: {error}") from error
    config = _read_config(values, overrides, path.parent)
    looks_nowhere_else = is_shipped and config.import_from is None
    if config.import_paths and not looks_nowhere_else:
        folder = Path.cwd() if is_shipped else path.parent.resolve()
        looked_in = str((folder / Path(config.import_from or "").expanduser()).resolve())
        look_in(looked_in, "the folder of the YAML file" if looked_in == str(folder) else "import_from")
        config = config.model_copy(update={"import_from": looked_in})
    config.require_unbiased_forks()
    return config


def no_config(source: str) -> str:
    """That no config is called `source`, and the nearest name: of what ships, or of a file in the folder it names."""
    folder, shipped = Path(source).parent, list(shipped_configs())
    files = [str(path) for pattern in ("*.yaml", "*.yml") for path in sorted(folder.glob(pattern))]
    hint = nearest(source, [*shipped, *files])
    if not hint.startswith("did you mean"):  # of a folder full of files, not all
        hint = nearest(source, shipped)
    return f"no config {source!r}: neither a file nor a shipped name; {hint}"


def parse_config(values: Any, overrides: tuple[str, ...] = (), folder: Path | None = None) -> Config:
    """A Config from what a YAML file in `folder` holds. Raises ConfigError."""
    config = _read_config(values, overrides, folder)
    config.require_unbiased_forks()
    return config


def _read_config(values: Any, overrides: tuple[str, ...], folder: Path | None) -> Config:
    """`parse_config` without importing anything."""
    if not isinstance(values, dict):
        raise ConfigError(f"a config is a mapping of sections, got {type(values).__name__}")
    for override in overrides:
        values = _with_override(values, override)
    try:
        return Config.model_validate(values, context=None if folder is None else {"folder": folder})
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"half a character can't be encoded as UTF-8: {error.object!r}") from error


def dump_config(config: Config) -> str:
    """YAML that `load_config` reads back to an equal Config; with import paths, only `import_from` becomes absolute."""
    return write_yaml(config.model_dump(mode="json"))


def _with_override(values: dict[str, Any], override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: write it as section.key=value")
    try:
        leaf = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not YAML ({error})") from error
    quoted = "--set " + shlex.quote(f"{key}={json.dumps(text, ensure_ascii=False)}")
    if not text.strip():
        raise ConfigError(f"--set {override!r}: the value is empty; write --set {key}=null, or for empty text {quoted}")
    if _ends_in_comment(text, leaf):
        left = "nothing is left of the value" if leaf is None else f"the value would be {leaf!r}"
        raise ConfigError(f"--set {override!r}: '#' begins a comment in YAML, so {left}; quote it: {quoted}")
    head, *rest = key.split(".")
    if rest and (section := _section_at([head])) is not None:
        values = {**values, head: section.written_out(values.get(head))}
    return _merged(values, [head, *rest], leaf)


def _ends_in_comment(text: str, value: Any) -> bool:
    """Whether the end of `text`, which YAML reads as `value`, is a comment: then whatever follows changes nothing."""
    try:
        return "#" in text and bool(read_yaml(f"{text}x") == value)
    except yaml.YAMLError:
        return False


def _merged(values: dict[str, Any], keys: list[str], leaf: Any) -> dict[str, Any]:
    head, *rest = keys
    if not rest:
        return {**values, head: leaf}
    below = values.get(head)
    return {**values, head: _merged(below if isinstance(below, dict) else {}, rest, leaf)}


def _section_at(keys: Iterable[Any]) -> type[Section] | None:
    """The section below these keys; None for what is not a section. A number is an index into a list."""
    section: type[Section] = Config
    for key in keys:
        if not isinstance(key, str):
            continue
        field = section.model_fields.get(key)
        options = () if field is None else options_of(field.annotation)
        parts = [part for option in options for part in (option, *typing.get_args(option))]
        below = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
        if not below:
            return None
        section = below[0]
    return section


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    if problem["type"] == "extra_forbidden":
        *above, key = problem["loc"]
        owner = _section_at(above) or Config
        if (known := owner.OTHER_NAMES.get(str(key))) is not None:
            return f"unknown key {where!r}; here it is {known}"
        return f"unknown key {where!r}; {nearest(str(key), owner.model_fields)}"
    if problem["type"] == "model_type" and (section := _section_at(problem["loc"])) is not None:
        keys = ", ".join(section.model_fields)
        if problem["input"] is None:
            return f"{where}: the section is empty; leave it out, or give it some of its keys, which are {keys}"
        return f"{where}: it is a section, with keys of its own, which are {keys} (got {problem['input']!r})"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not where:
        return message
    return f"{where}: {message}" + (f" (got {problem['input']!r})" if problem["type"] != "value_error" else "")
