"""`repl-rl train CONFIG --dry-run`: what a run would be, and everything that can be checked without a model or a GPU.

Checked: the config, what the engine and the kernels need, rewards, tasks, the files of a local checkpoint, its
tokenizer, the prompts in its tokens, and whether TRL accepts the arguments. Only reported: what would be fetched from a
hub (of models whose architecture is known here, their size too), which servers would be used, which GPUs there are.
Writes nothing. An environment is begun once, for the first task, and closed.

Memory is estimated by formula, also that of GPUs which are only supposed. Not covered: whether servers answer.
"""

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.config import Config, CreditConfig, EngineConfig, RewardsConfig, SamplingConfig, TrainConfig
from repl_rl.config.rewards import ShapingConfig
from repl_rl.dialect.answers import open_thought
from repl_rl.engine.environment import gpus_here, prepare_environment
from repl_rl.engine.factory import engine_backend
from repl_rl.errors import ConfigError
from repl_rl.kernel.memory import default_budget_mb
from repl_rl.models.find import config_of_model
from repl_rl.models.nano import NANO_PATH, SHIPPED
from repl_rl.rollout import NoAnswerError, RolloutSetup, SubCalls, environment_of, limits_of, make_prompt
from repl_rl.run.evaluate import longest_prompt
from repl_rl.run.launch import launch_command
from repl_rl.run.memory import Shapes, memory, shapes_of
from repl_rl.run.pays import row_and_notes
from repl_rl.run.places import places_row
from repl_rl.run.suppose import GPU, forecast_rows, gpu_of
from repl_rl.run.training import Inputs, check_inputs, choose_run, training_arguments
from repl_rl.tools import Toolbox
from repl_rl.tools.environments import EnvironmentSession
from repl_rl.trajectory import LineKind, SubCall, Task
from repl_rl.utils.text import cut_middle, visible
from repl_rl.utils.threads import BackgroundLoop
from repl_rl.view.words import counted

_BASELINES = {
    "mean": "the group's mean",
    "leave_one_out": "the others' mean",
    "place": "the others' mean from the same line number on",
    "state": "the mean of the others' lines that began in the same interpreter state",
    "none": "nothing",
}
_THOUGHT_SWITCHES = ("enable_thinking", "thinking")
"""Arguments of chat templates that close the thought of a turn, if they are false."""
_HIGH, _HIGH_FOR_ADAPTERS = 1e-4, 1e-3
"""Learning rates at which weights that were trained before are lost."""
_MOST_SHOWN_CHARS = 120
"""How much of an environment's first text is in its row; the first prompt has all of it."""
_SESSION_MB = 4.2
"""Private memory of a forked session, and of a stock Jupyter kernel, as measured in BENCHMARKS.md."""
_STOCK_KERNEL_MB = 73.3
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys that a `config.json` of a model with routers has one of."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would be. `rows` are pairs of name and text to print; `notes` say what could not be checked here."""

    rows: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    prompt: str | None = None
    """The first one, as the model reads it; None if it isn't known."""


def dry_run(
    config: Config | None,
    runs: Path,
    resume: Path | None = None,
    overrides: tuple[str, ...] = (),
    arguments: str = "train CONFIG",
    *,
    like: Path | None = None,
    gpu: GPU | None = None,
) -> DryRun:
    """Check everything. Takes what `prepare` takes, and raises the ReplRLError that training would raise, before
    anything is loaded or written. `arguments` are those of the command that would train. `like` is a run, or a file of
    rollouts, whose sessions say how full the sampler will be. With `gpu`, say what would fit if each process had such a
    GPU; without it, what fits on those that are here, if there are any.
    """
    folder, config, notes = choose_run(config, runs, resume, overrides)
    trace = "trace/, " if config.train.trace else ""
    files = f"{folder.path}/: config.yaml, metrics.jsonl, rollouts/, checkpoints/, eval/, {trace}model/, report.html"
    if resume is not None:
        folder.require_free()
        steps = config.train.steps
        remain = f"{steps - folder.reached()} of {steps} steps remain"
        if folder.finished(config):
            remain = "the run is finished, and nothing would be done"
        elif folder.reached() == steps:
            remain += "; what is missing would be measured and saved"
        files = f"{folder.path}/, resumed from step {folder.reached()}: {remain}"
    inputs = check_inputs(config, asks_hub=False)
    prepare_environment(config.engine.kv_cache_gib)
    gpus, gpu_gib = gpus_here()
    if gpus or config.train.processes > 1:
        training_arguments(config, folder)
    supposed = gpu
    if gpu is None and gpus:
        gpu = gpu_of(gpu_gib)
    trajectories = config.train.prompts_per_step * config.train.group_size * config.train.oversample
    tokens = trajectories * config.budget.tokens
    lines = trajectories * config.budget.lines
    environment = _try_environment(config, inputs, notes)
    longest, lengths, prompt = _prompts(config, inputs, environment, notes)
    notes += idle_settings(config, config.train.processes if supposed else gpus)
    shapes = shapes_of(config.model.path, Path(inputs.model_path))
    rows = [
        ("model", _model(config, inputs, shapes, notes)),
        ("prompts", lengths),
        ("memory", memory(config, shapes, longest, gpu is not None, notes)),
    ]
    if gpu is not None:
        rows += forecast_rows(config, shapes, longest, gpu, notes)
    rows += [
        ("engine", _engine(config)),
        ("convention", _convention(config, inputs)),
    ]
    if like is not None:
        rows.insert(-1, ("places", places_row(config, like)))
    if environment is not None:
        rows.append(("environment", environment.in_words))
    pays, holes = row_and_notes(config, inputs.checked.table)
    notes += holes
    rows += [
        ("rewards", rewards_in_words(config.rewards, environment.pays if environment else None)),
        ("what pays", pays),
        ("advantages", credit_in_words(config.credit)),
        ("GPUs", _gpu_needs(config, gpus, supposed, arguments, notes)),
        ("a step", _step(config)),
        ("learning rate", _learning_rate(config, notes)),
        ("tokens of a step", f"at most {tokens:,} of completion, outputs included, in at most {lines:,} lines"),
        ("kernels", _kernels(config)),
        ("problems", _problems(config, inputs, notes)),
        ("trackers", _trackers(config, folder.path)),
        ("files", files),
    ]
    return DryRun(tuple(rows), tuple(notes), prompt)


def print_dry_run(console: Console, made: DryRun) -> None:
    """Print every row, the first prompt, then the notes; without a terminal each row is one line."""
    width = max(len(name) for name, _ in made.rows) + 2
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, text in made.rows:
            table.add_row(Text(name, style="bold"), Text(text))
        console.print(table)
    else:
        for name, text in made.rows:
            console.print(Text(f"{name:<{width}}{text}"), soft_wrap=True)
    if made.prompt is not None:
        console.print(Text("the first prompt, as the model reads it:", style="bold"))
        prompt = textwrap.indent(visible(made.prompt), "| ", lambda line: True)  # blank lines, too
        console.print(Text(prompt, style="dim"), soft_wrap=True)
    for note in made.notes:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)


def _convention(config: Config, inputs: Inputs) -> str:
    parts = [f"dialect {config.dialect.name}"]
    tools = [f"{tool.name} ({tool.where})" for tool in inputs.checked.extensions.toolbox.tools]
    if tools:
        parts.append(f"tools {', '.join(tools)}")
    environment = environment_of(config)
    if environment:
        parts.append(f"environment {environment}")
    if config.rollout:
        parts.append(f"loop {config.rollout}")
    if config.guests:
        parts.append(f"guests {', '.join(config.guests)}")
    return "; ".join(parts)


def _trackers(config: Config, folder: Path) -> str:
    train = config.train
    if not train.report_to:
        return "none (train.report_to)"
    steps = f"every {train.report_rollouts_every} steps, the first one in"
    rollouts = f"{train.report_rollouts} rollouts of {steps}" if train.report_rollouts_every else "no rollouts"
    return f"{', '.join(train.report_to)}: project {config.name}, run {folder.name}, {rollouts}"


def _problems(config: Config, inputs: Inputs, notes: list[str]) -> str:
    if config.tasks.is_from_hub:
        name, train = config.tasks.dataset, config.tasks.train
        notes.append(f"data set {name} would be fetched from the hub, or its cache: nothing of it was checked")
        return f"{train:,} of {name} at most to train on; {config.eval.problems:,} at most held out"
    train, heldout = len(inputs.train_tasks), len(inputs.heldout_tasks)
    return f"{train:,} to train on; {heldout:,} held out, for before and after training"


def _model(config: Config, inputs: Inputs, shapes: Shapes, notes: list[str]) -> str:
    path = Path(inputs.model_path)
    _note_layers(config, inputs, notes)
    training = f"trained in {config.train.dtype}"
    if inputs.adapted is not None:
        training = f"frozen in {config.train.dtype}, with adapters on {inputs.adapted.share:.1%} of them"
    if path.is_dir():
        name = "nano, of this package" if path == NANO_PATH else str(path)
    else:
        name = f"{path}, from the hub"
        before_use = f"{path} would be fetched from the hub"
        if path.is_absolute():
            name = f"{config.model.path}, as a GGUF file"
            before_use = f"{config.model.path} would be converted into {path} first, once"
        unchecked = "its tokenizer and its prompts were not checked" if shapes else "nothing of it was checked"
        notes.append(f"{before_use}: {unchecked}")
    size = ""
    if shapes:
        parameters = sum(math.prod(shape) for shape in shapes.values())
        size = f"{parameters / 1e6:,.1f} million parameters, "
    return f"{name}: {size}sampled in {config.model.dtype}, {training}"


def _note_layers(config: Config, inputs: Inputs, notes: list[str]) -> None:
    model = config_of_model(config.model.path) or {}
    layers = set(model.get("layer_types") or ())
    recurrent = sorted(layers - {"full_attention", "sliding_attention", "chunked_attention"})
    if recurrent:
        notes.append(
            f"this model has recurrent layers ({', '.join(recurrent)}): vLLM keeps their state at block boundaries, "
            "and each line computes the tokens since the last one again; engine.vllm.mamba_block_size makes these fewer"
        )
    if config.model.dtype != "float32" and any(model.get(key) for key in _EXPERTS):
        notes.append(
            f"in {config.model.dtype}, the routers of sampler and trainer choose other experts for some tokens, where "
            "rounding decides: drift/logprob_max shows it, and importance weights bound what it does to the gradient"
        )
    if inputs.adapted is not None and inputs.adapted.frozen_experts:
        notes.append(f"train.lora leaves the experts frozen: {', '.join(inputs.adapted.frozen_experts)}")


@dataclass(frozen=True, slots=True)
class _TriedEnvironment:
    """An environment as it began, on trial, for the first task: the task as the model would be asked it, the tools of
    the session, and what the environment pays, if it does."""

    task: Task
    toolbox: Toolbox
    pays: str | None
    in_words: str


class _NoModel:
    """A `TextModel` for an environment that asks one as it begins."""

    async def complete(self, prompt: str, max_tokens: int, sampling: SamplingConfig) -> SubCall:
        raise NoAnswerError("dry run", "a dry run has no model")


def _try_environment(config: Config, inputs: Inputs, notes: list[str]) -> _TriedEnvironment | None:
    """The environment after one `reset`, for the first task; None if there is none, or no task. It is closed then.

    Raises EnvironmentFailure, which names the line that raised, and ConfigError if no session can have its tools.
    """
    make = inputs.checked.extensions.environment
    if make is None:
        return None
    tasks = [*inputs.train_tasks, *inputs.heldout_tasks]
    if not tasks:
        notes.append(f"environment {environment_of(config)} was not tried, because no task is here")
        return None
    task = tasks[0]

    async def open_and_close() -> tuple[Toolbox, str, Any]:
        subcalls = SubCalls(_NoModel(), config.subcalls, config.sampling, task.id)
        session = EnvironmentSession(make, model=subcalls)
        try:
            toolbox, observation = await session.open(task)
            return toolbox, observation, session.instance
        finally:
            await session.close()
            await subcalls.close()

    with BackgroundLoop() as loop:
        toolbox, observation, instance = loop.run(open_and_close())
    class_name = type(instance).__name__
    reward_method = None
    for name in ("get_reward", "reward"):
        if callable(getattr(instance, name, None)):
            reward_method = name
            break

    parts = [f"{class_name}, tried with task {task.id!r}"]
    if toolbox.tools:
        parts.append(f"tools {', '.join(tool.signature for tool in toolbox.tools)}")
    else:
        parts.append("no tools")
    if toolbox.values:
        parts.append(f"values {', '.join(toolbox.values)}")
    excerpt = cut_middle(" ".join(observation.split()), _MOST_SHOWN_CHARS, " ... ")
    parts.append(f"it says first: {excerpt}" if excerpt else "it says nothing first")
    if reward_method is not None:
        parts.append(f"its {reward_method} decides what a session is worth")
    else:
        parts.append("the task's answer decides, as without it")
    return _TriedEnvironment(
        task=replace(task, question=f"{task.question}{observation}"),
        toolbox=inputs.checked.extensions.toolbox.joined(toolbox),
        pays=None if reward_method is None else f"{class_name}.{reward_method}",
        in_words="; ".join(parts),
    )


def _prompts(
    config: Config, inputs: Inputs, environment: _TriedEnvironment | None, notes: list[str]
) -> tuple[int | None, str, str | None]:
    """The length of the longest prompt, a text with the budgets, in tokens, and the first prompt; None for what isn't
    known. Raises ConfigError if it fills the context."""
    context = config.engine.context_tokens
    budget = config.budget.tokens
    tasks = [*inputs.train_tasks, *inputs.heldout_tasks]
    if not tasks or not Path(inputs.model_path).is_dir():
        return None, f"context of {context:,} tokens, of which a completion takes {budget:,} at most", None
    longest = longest_prompt(config, tasks)
    if context - longest < budget:
        notes.append(
            f"the longest prompt leaves {context - longest} of {context} tokens, less than budget.tokens ({budget}): "
            "such trajectories stop at the context"
        )
    output_chars = config.dialect.max_output_chars  # of which many models make a token each, if they are digits
    output = "".join(Random(0).choices("0123456789", k=output_chars))
    setup = RolloutSetup.for_model(config, inputs.model_path, inputs.checked.extensions)
    _note_template(setup, notes)
    digits = len(setup.vocabulary.encode_output(output))
    if digits >= budget:
        notes.append(
            f"an output of {output_chars:,} digits, which dialect.max_output_chars lets through, takes {digits:,} "
            f"tokens of this model, and budget.tokens is {budget:,}: a session that prints one ends there, without an "
            "answer; if your problems print that much, lower the first or raise the other"
        )
    if environment is not None:
        task = environment.task
        toolbox = environment.toolbox
    else:
        task = tasks[0]
        toolbox = inputs.checked.extensions.toolbox
    dialect = setup.dialect_with(toolbox.tools)
    prompt = make_prompt(dialect, setup.vocabulary, task.question, setup.chat, task.history)
    if len(prompt.ids) >= context:
        raise ConfigError(
            f"the prompt of task {task.id!r}, with what the environment says first, has {len(prompt.ids)} tokens and "
            f"engine.context_tokens is {context}; raise it, or let the environment say less"
        )
    text = (
        f"{longest} tokens at most, beside {budget} of completion, in a context of {context}; the first has "
        f"{len(prompt.ids)}; an output of {output_chars:,} characters is up to {digits:,} tokens"
    )
    return longest, text, prompt.text


def _note_template(setup: RolloutSetup, notes: list[str]) -> None:
    """Note what the chat template makes of a prompt that its writer would not expect."""
    dialect = setup.dialect_with(setup.extensions.toolbox.tools)
    vocabulary = setup.vocabulary
    if not setup.in_chat(dialect):
        return
    prompt = dialect.chat_prompt("?")
    if prompt.messages[0]["role"] == "system" and not vocabulary.has_system_role:
        notes.append(
            "this model's chat template has no system role: the system text stands at the head of the first question "
            "(dialect.system: '' leaves it out)"
        )
    closing = open_thought(vocabulary.render_chat(prompt.messages, prompt.tools, opens=True))
    if closing is None:
        return
    way_out = (
        f"close it with a file of texts of your own (dialect.name: my.yaml) whose opening begins with {closing}, or "
        "take the dialect fenced or tool_call, where the model closes it"
    )
    for name in _THOUGHT_SWITCHES:
        if not vocabulary.template_names(name):
            continue
        without = vocabulary.with_template_kwargs({name: False})
        if open_thought(without.render_chat(prompt.messages, prompt.tools, opens=True)) is None:
            way_out = f"close it with model.chat_template_kwargs: {{{name}: false}}"
    if prompt.prefill:
        notes.append(
            f"the chat template begins the model's turn inside a thought, which only {closing} ends, so the session "
            f"would be typed inside the thought; {way_out}"
        )
    elif way_out.startswith("close it with model."):
        notes.append(
            f"the chat template begins the model's turn inside a thought, which takes tokens of the budget until the "
            f"model writes {closing}; if that is not meant, {way_out}"
        )


def _engine(config: Config) -> str:
    backend = engine_backend(config.engine)
    if ":" in backend:
        return f"one of your own, made by {backend}"
    if config.cluster is not None and config.cluster.replicas:
        return f"{counted(config.cluster.replicas, 'vLLM server')}, started in the cluster"
    if backend == "server":
        return f"vLLM servers, not asked now: {', '.join(config.engine.servers)}"
    name = "vLLM" if backend == "vllm" else backend
    return f"{name} in this process, {config.engine.places} sequences at once"


def _gpu_needs(config: Config, gpus: int, supposed: GPU | None, arguments: str, notes: list[str]) -> str:
    processes = config.train.processes
    dtype = config.model.dtype
    if processes > 1:
        notes.append(f"start it with: {launch_command(config)} {arguments}")
    if supposed is not None:
        return f"{processes} needed, one for each trainer process; as many are supposed ({supposed.name}), {gpus} here"
    if processes == 1 and gpus == 0:
        if dtype != "float32":
            notes.append(f"without a GPU, it would compute in {dtype} on the CPU: possible, and for small models only")
        return "one process, on a GPU if there is one; none here"
    if gpus < processes:
        notes.append(f"this machine has {gpus} GPUs, and the run needs {processes}: it can't be trained here")
    return f"{processes} needed, one for each trainer process; {gpus} here"


def _step(config: Config) -> str:
    train = config.train
    micro_batch = train.micro_batch or train.trajectories_per_process
    passes = ""
    if train.micro_batch_tokens is not None:
        passes = f" (in passes of at most {train.micro_batch_tokens:,} tokens)"
    group = ""
    tree = config.branch
    if tree:
        group = f"; of a problem, {tree.roots} roots, {tree.forks} forks into {tree.branches}, {tree.at}"
    if train.oversample > 1:
        group += f"; of {train.oversample * train.group_size} rollouts of a problem, {train.group_size} are kept"
    return (
        f"{train.prompts_per_step} problems x {train.group_size} = {train.prompts_per_step * train.group_size} "
        f"trajectories = {micro_batch} at a time{passes} x {train.processes} processes x "
        f"{train.trajectories_per_process // micro_batch} accumulated; {train.steps} steps{group}"
    )


def _learning_rate(config: Config, notes: list[str]) -> str:
    train = config.train
    rate = train.learning_rate
    if train.lora is not None:
        high = _HIGH_FOR_ADAPTERS
        weights = "adapters"
        usual = "1e-5 to 2e-4"
    else:
        high = _HIGH
        weights = "all weights"
        usual = "1e-6 to 2e-6"
    if config.model.path not in SHIPPED and rate >= high:
        notes.append(
            f"train.learning_rate is {rate:g}, which suits nano and its like: pretrained weights are lost at it within "
            f"a few steps. The configs that ship train {weights} of such models with {usual}"
        )
    warmup = f" after {train.warmup_steps} steps of warm-up" if train.warmup_steps else ""
    optimizer = train.trl.get("optim", "AdamW")
    return (
        f"{rate:g} ({train.schedule}{warmup}; {optimizer}), gradients scaled down to a norm of {train.max_grad_norm:g}"
    )


def _kernels(config: Config) -> str:
    kernel = config.kernel
    session_mb = _SESSION_MB if kernel.backend == "fork" else _STOCK_KERNEL_MB
    usual_mb = kernel.size * session_mb
    budget_mb = default_budget_mb() if kernel.budget_mb is None else kernel.budget_mb
    where = " in each process" if config.train.processes > 1 else ""
    return (
        f"{kernel.size}{where} ({kernel.backend}, {kernel.sandbox}): about {usual_mb:,.0f} MB, at most "
        f"{limits_of(kernel).memory_mb:,} MB a session and {budget_mb:,.0f} MB together"
    )


def rewards_in_words(config: RewardsConfig, graded_by: str | None = None) -> str:
    """What a session earns, and how that is limited. `graded_by` decides what it is worth, instead of its answer."""
    if graded_by is None:
        parts = [f"{config.outcome:+g} for a right answer"]
    else:
        parts = [f"{config.outcome:+g} times {graded_by}"]
    if config.length:
        parts.append(f"down to {-config.length.most:g} for length")
    line_rewards = [f"{reward:+g} {kind}" for kind, reward in config.kinds.items() if reward]
    line_rewards += [f"{reward:+g} {name}" for name, reward in config.exceptions.items()]
    line_rewards += [f"{rule.reward:+g} {rule.name}" for rule in config.rules]
    line_rewards += [str(function) for function in config.model_dump(mode="json")["functions"]]
    if line_rewards:
        parts.append(f"a line: {', '.join(line_rewards)}")
        parts += _shaping_in_words(config.shaping)
    return "; ".join(parts)


def _shaping_in_words(shaping: ShapingConfig) -> list[str]:
    parts = []
    if shaping.mode == "potential":
        parts.append("as a potential of the state")
    if shaping.novelty:
        parts.append("no gain for what changes and shows nothing new")
    if shaping.decay < 1:
        parts.append(f"gains times {shaping.decay:g} at each repetition")
    if shaping.clip is not None:
        parts.append(f"within {list(shaping.clip)} a line")
    if shaping.caps.gain is not None:
        parts.append(f"gains of a session at most {shaping.caps.gain:g}")
    if shaping.caps.loss is not None:
        parts.append(f"losses at most {shaping.caps.loss:g}")
    weight = shaping.weight
    if weight.end is not None:
        parts.append(f"times {weight.start:g}, falling to {weight.end:g} in {weight.steps} steps")
    elif weight.start != 1:
        parts.append(f"times {weight.start:g}")
    return parts


def credit_in_words(config: CreditConfig) -> str:
    """What a line's advantage is."""
    if config.record is None:
        return config.estimator
    description = config.record.description.format(baseline=_BASELINES[config.baseline], omega=config.omega)
    text = f"{config.estimator}: {description}"
    if config.scale != "none":
        text += f"; divided by the deviation ({config.scale})"
    if config.gamma != 1:
        text += f"; discounted by {config.gamma:g} a line"
    if config.clip is not None:
        text += f"; within {config.clip:g} of 0"
    return text


def idle_settings(config: Config, gpus: int) -> Iterator[str]:
    """Settings that differ from their defaults and do nothing beside the others: each with the reason."""
    rewards = config.rewards
    shaping = config.rewards.shaping
    engine = config.engine
    train = config.train
    if shaping.novelty:
        for kind in LineKind:
            if not kind.ran and rewards.kinds.get(kind, 0.0) > 0:
                yield f"rewards.kinds.{kind} is never paid: what runs nothing gains nothing (rewards.shaping.novelty)"
    is_shaped = any(rewards.kinds.values()) or rewards.exceptions or rewards.rules or rewards.functions
    if shaping != ShapingConfig() and not is_shaped:
        yield "rewards.shaping limits what lines earn, and none earns anything"
    if is_shaped and shaping.weight.start == 0 and not shaping.weight.end:
        yield "rewards: lines are paid nothing, because shaping.weight is 0; they are only logged"
    default = EngineConfig()
    if engine.weights_folder and not engine.servers and not config.cluster:
        yield "engine.weights_folder is for servers, and there are none"
    if gpus and engine.kv_cache_gib != default.kv_cache_gib:
        yield "engine.kv_cache_gib is for CPUs; here, engine.gpu_memory_utilization says what the engine takes"
    has_replicas = config.cluster is not None and config.cluster.replicas > 0
    if (engine.servers or has_replicas) and engine.gpu_memory_utilization != default.gpu_memory_utilization:
        yield "engine.gpu_memory_utilization is for vLLM in this process; a server has a flag of that name"
    if not train.report_to and train.report_rollouts != TrainConfig().report_rollouts:
        yield "train.report_rollouts: nobody is told (train.report_to)"
