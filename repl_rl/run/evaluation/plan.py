"""What is to be evaluated: every model with every dialect on the same problems. What can fail early fails here."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from repl_rl.config import Config, load_config
from repl_rl.engine.environment import prepare_environment
from repl_rl.errors import ConfigError, ModelError, RunError
from repl_rl.models import find_model
from repl_rl.rollout import Checked, check_rollouts, environment_pays
from repl_rl.run.evaluate import longest_prompt
from repl_rl.run.folder import RunFolder
from repl_rl.tasks import Split, load_tasks
from repl_rl.trajectory import Task


@dataclass(frozen=True, slots=True)
class Combination:
    """One model with one dialect: the model as the user named it, and the config that evaluates it, checked."""

    model: str
    config: Config
    checked: Checked

    @property
    def dialect(self) -> str:
        return self.config.dialect.name

    @property
    def label(self) -> str:
        return f"{self.model}, {self.dialect}"


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Combinations in the order in which they are evaluated, each with `samples` rollouts of every task."""

    combinations: tuple[Combination, ...]
    tasks: tuple[Task, ...]
    samples: int
    ks: tuple[int, ...]
    split: Split = "heldout"

    @property
    def config(self) -> Config:
        """The config of the first combination; the others differ from it in model and dialect."""
        return self.combinations[0].config


def make_plan(
    source: str,
    overrides: Sequence[str] = (),
    models: Sequence[str] = (),
    dialects: Sequence[str] = (),
    samples: int = 1,
    ks: Sequence[int] = (),
    split: Split = "heldout",
) -> EvaluationPlan:
    """Every model (default: the config's) with every dialect (default: the config's), ordered by model, then dialect.

    The problems are the held-out ones, or those that training would take, which are sampled as in training.

    pass@1 is always reported; if `ks` is empty, pass@`samples` as well. Raises a ReplRLError that says what to change.
    Tokenizers are loaded, weights are not.
    """
    if samples < 1:
        raise ConfigError(f"-n {samples}: give at least one sample of each problem")
    for k in ks:
        if not 1 <= k <= samples:
            raise ConfigError(
                f"--k {k}: pass@{k} needs k from 1 to the {samples} samples of a problem; raise -n or lower k"
            )
    shared = list(overrides)
    if split == "train":
        shared.append("eval.temperature=null")  # then evaluations sample at the temperature of training
    # Without names, the config's own model or dialect is the only one.
    model_names: Sequence[str | None] = models or [None]
    dialect_names: Sequence[str | None] = dialects or [None]
    configs = []
    for model, dialect in product(model_names, dialect_names):
        chosen = []
        # A JSON string is also a YAML string, so a name is never read as another type.
        if model is not None:
            chosen.append(f"model.path={json.dumps(model)}")
        if dialect is not None:
            chosen.append(f"dialect.name={json.dumps(dialect)}")
        configs.append(load_config(source, (*shared, *chosen)))
    if samples > 1 and configs[0].eval_sampling.temperature == 0:
        raise ConfigError(
            f"at temperature 0 the {samples} samples of a problem would be one; leave -n out, or set "
            f"{'sampling' if split == 'train' else 'eval'}.temperature"
        )
    combinations = []
    for config in configs:
        checkpoint = config.model.model_copy(update={"path": checkpoint_of(config.model.path)})
        evaluated = config.model_copy(update={"model": checkpoint})
        find_model(evaluated.model.path)
        combinations.append(Combination(config.model.path, evaluated, check_rollouts(evaluated)))
    first = configs[0]
    compared = not environment_pays(first)
    if split == "train":
        tasks = load_tasks(first.tasks, split, first.seed, first.tasks.train, compared=compared)
    else:
        tasks = load_tasks(first.tasks, split, 0, first.eval.problems, compared=compared)
    for combination in combinations:
        # Refuse a prompt that fills the context now, not after evaluating earlier combinations.
        prepare_environment(combination.config.engine.kv_cache_gib)
        longest_prompt(combination.config, tasks, f"{combination.label}: ")
    reported_ks = {1}.union(ks or [samples])
    return EvaluationPlan(tuple(combinations), tuple(tasks), samples, tuple(sorted(reported_ks)), split)


def checkpoint_of(path: str) -> str:
    """A model as `find_model` takes it; a run's folder stands for its newest checkpoint, else for its final `model/`.

    Training ends with a checkpoint, so the newest one is never older than `model/`. Raises RunError for a run that
    holds neither and for a missing folder in `runs/`, ModelError for a missing path in any other folder.
    """
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "config.json").is_file():
        checkpoint = RunFolder(folder).last_checkpoint()
        final = folder / "model"
        if checkpoint is None and not final.is_dir():
            raise RunError(f"run {folder} has no complete checkpoint and no model yet; train it for longer")
        return str(final if checkpoint is None else checkpoint)
    if not folder.exists() and folder.parts[:-1] == ("runs",):
        raise RunError(f"there is no run {path!r}{_neighbours(folder.parent)}")
    if not folder.exists() and len(folder.parts) > 1 and folder.parent.is_dir():
        raise ModelError(f"there is no checkpoint {path!r}{_neighbours(folder.parent)}")
    return path


def _neighbours(parent: Path) -> str:
    names = []
    if parent.is_dir():
        names = sorted(path.name for path in parent.iterdir() if path.is_dir())
    if not names:
        return f"; there is nothing in {parent}"
    return f"; in {parent} there are {', '.join(names)}"
