"""`repl-rl train CONFIG --dry-run --gpu 80`: what would fit on GPUs of so much memory, of which none need be here.

Arithmetic on the config and on the shape of its model. Each trainer process has a GPU of its own. vLLM and CUDA are not
asked: what they take besides weights, keys and values is assumed.

Not covered: keys and values of models whose layers don't all attend to all tokens, and engines of the user's own. For
these it says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from repl_rl.config import Config
from repl_rl.engine.factory import ENGINES, engine_backend
from repl_rl.errors import ConfigError
from repl_rl.models.find import config_of_model
from repl_rl.models.skeleton import config_alone
from repl_rl.run.memory import (
    BYTES,
    GIB,
    Architecture,
    Division,
    Shapes,
    TrainerMemory,
    architecture_of,
    division_of,
    longest_session,
    token_bytes,
    tokens_of_pass,
    trainer_memory,
)
from repl_rl.utils.text import nearest

GPUS = {"a100": 79.1, "a100-40gb": 39.4, "b200": 178.3, "h100": 79.1, "h200": 139.7, "l40s": 44.3}
"""The memory of some GPUs in GiB, as torch reports it; it differs by 0.1 from one driver to another. nvidia-smi shows
somewhat more: 81,559 MiB of an H100, which are 79.6 GiB."""
_MOST_GIB = 2048
_CUDA_BYTES = GIB
"""A process's CUDA context, and what its libraries allocate by themselves. Assumed."""
_VLLM_BYTES = 3 * GIB // 2
"""What vLLM takes of its share for CUDA graphs, logits and workspaces. Assumed: with its passes that makes 1.6 to 2 GiB
for models of some billion parameters, as logs say that people publish."""
_ASLEEP_BYTES = GIB
"""What of that stays while vLLM sleeps, such as its graphs. Assumed."""
_LEAST_BATCHED_TOKENS = 4096
"""vLLM in this process takes so many tokens in a pass, or a whole context (`load_llm`)."""
_MARGIN, _MARGIN_CHECKPOINTED = 0.17, 0.05
"""How much more than the formula says one H200 took to train, at the most, without gradient checkpointing and with."""
_HIGHEST_SHARE = 0.95
_BLOCK_TOKENS = 16
"""Of vLLM's blocks of keys and values on a GPU, by default."""
_SERVERS_SHARE = 0.92
"""`--gpu-memory-utilization` of `vllm serve`, by default."""
_CACHE_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of a number by vLLM's `kv_cache_dtype`. Other types pack several numbers, or keep scales beside them."""
_NOT_COUNTED = ("kv_cache_memory_bytes", "num_gpu_blocks_override", "quantization", "speculative_config")
"""Arguments of vLLM that change what is computed here."""
_SYNC_EACH = "train.trl: {accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}}"


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU that is supposed, or here."""

    name: str
    gib: float

    @property
    def memory_bytes(self) -> int:
        return int(self.gib * GIB)


def gpu_of(gib: float) -> GPU:
    return GPU(f"GPU of {gib:.4g} GiB", gib)


def parse_gpu(text: str) -> GPU:
    """The value of `--gpu`: GiB, or one of `GPUS`. Raises ConfigError."""
    name = text.strip().lower()
    if name in GPUS:
        return GPU(f"{name.upper()}, {GPUS[name]:g} GiB", GPUS[name])
    usage = "give the memory of one GPU in GiB, which are 1,024 of the MiB that nvidia-smi shows (--gpu 80)"
    try:
        gib = float(name)
    except ValueError:
        raise ConfigError(
            f"--gpu {text!r} is neither a number nor a GPU that is known here: {usage}, or a name; "
            f"{nearest(name, list(GPUS))}"
        ) from None
    if not 0 < gib <= _MOST_GIB:
        raise ConfigError(f"--gpu {text}: no GPU has so many GiB; {usage}, or a name ({', '.join(GPUS)})")
    return gpu_of(gib)


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values in one process, in blocks of tokens, as vLLM holds them where all layers are alike."""

    memory_bytes: int
    token_bytes: int
    block_tokens: int = _BLOCK_TOKENS

    @property
    def blocks(self) -> int:
        """Blocks for sessions; vLLM keeps one to itself."""
        return max(0, self.memory_bytes // (self.block_tokens * self.token_bytes) - 1)

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def sessions(self, tokens: int) -> int:
        """How many sessions of so many tokens it holds at once."""
        return self.blocks // math.ceil(tokens / self.block_tokens)

    def mean_tokens(self, sessions: int) -> int:
        """How many tokens so many sessions may have on average, if all are held at once."""
        return self.blocks // sessions * self.block_tokens


def why_cache_is_unknown(config: Config) -> str | None:
    """Why nothing can be said about keys and values; None if it can. Raises ModelError."""
    path = config.model.path
    settings = config_of_model(path) or {}
    with_defaults = config_alone(path)

    def setting(name: str) -> Any:
        return settings.get(name, getattr(with_defaults, name, None))

    kinds = set(setting("layer_types") or ()) - {"full_attention"}
    if setting("sliding_window") and setting("use_sliding_window") is not False:
        kinds.add("sliding_attention")
    if kinds:
        return (
            f"not all layers of this model attend to all tokens ({', '.join(sorted(kinds))}), and vLLM divides its "
            "memory among kinds of layers by rules of its own"
        )
    if setting("kv_lora_rank"):
        return "this model keeps keys and values compressed (MLA)"
    cache_type = config.engine.vllm.get("kv_cache_dtype", "auto")
    if cache_type != "auto" and cache_type not in _CACHE_BYTES:
        return f"how much kv_cache_dtype {cache_type} takes is not known here"
    return None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a trainer process and its GPU would hold. Numbers are bytes, unless something else is said."""

    config: Config
    shapes: Shapes
    prompt_tokens: int | None
    """Of the longest prompt, where it is known."""
    gpu: GPU
    model: Architecture
    division: Division
    trainer: TrainerMemory

    @property
    def backend(self) -> str:
        if self.config.cluster is not None and self.config.cluster.replicas:
            return "server"
        return engine_backend(self.config.engine)

    @property
    def samples_here(self) -> bool:
        """Whether each trainer process has an engine of ours beside it, on its GPU."""
        return self.backend in ENGINES and self.backend != "server"

    @property
    def sleeps(self) -> bool:
        """Whether trainer and sampler take turns with the memory."""
        return self.backend == "vllm" and bool(self.config.engine.vllm.get("enable_sleep_mode"))

    @property
    def share(self) -> int:
        """The engine's part of the GPU."""
        if not self.samples_here:
            return 0
        return int(self.config.engine.gpu_memory_utilization * self.gpu.memory_bytes)

    @property
    def sampler_weights(self) -> int:
        return self.model.parameters * BYTES[self.config.model.dtype] // self.config.engine.shards

    @property
    def cache(self) -> Cache:
        """The engine's keys and values: what its share leaves, below 0 if it does not even hold the weights."""
        engine = self.config.engine
        number_bytes = BYTES[self.config.model.dtype]
        left = self.share - self.sampler_weights
        if self.backend != "vllm":
            return Cache(left, token_bytes(self.model, number_bytes), 1)
        number_bytes = _CACHE_BYTES.get(engine.vllm.get("kv_cache_dtype", "auto"), number_bytes)
        block_tokens = engine.vllm.get("block_size") or _BLOCK_TOKENS
        return Cache(
            left - self.passes(engine.shards), token_bytes(self.model, number_bytes, engine.shards), block_tokens
        )

    def passes(self, shards: int) -> int:
        """What vLLM takes of its share besides: beside what is assumed, the largest pass through an MLP."""
        engine = self.config.engine
        tokens = engine.vllm.get("max_num_batched_tokens") or max(_LEAST_BATCHED_TOKENS, engine.context_tokens)
        numbers = 3 * self.model.mlp // shards + 2 * self.model.hidden
        return _VLLM_BYTES + tokens * numbers * BYTES[self.config.model.dtype]

    @property
    def resting(self) -> int:
        """What the trainer keeps while sessions are sampled: no gradients, and nothing of a pass."""
        resting = self.trainer.weights + self.trainer.moments + self.trainer.reference
        if self.division == Division.WHOLE:
            resting += self.trainer.exchanged
        return resting

    @property
    def training(self) -> int:
        """What is held while the trainer computes."""
        return self.trainer.peak + _CUDA_BYTES + (_ASLEEP_BYTES if self.sleeps else self.share)

    @property
    def sampling(self) -> int:
        """What is held while sessions are sampled here."""
        return self.resting + _CUDA_BYTES + self.share if self.samples_here else 0

    @property
    def margin(self) -> int:
        """By how much the trainer may take more than the formula says."""
        return int((_MARGIN_CHECKPOINTED if self.trainer.again else _MARGIN) * self.trainer.peak)

    @property
    def highest_share(self) -> float:
        """The largest `gpu_memory_utilization` that leaves the trainer what it needs, with its margin."""
        of_trainer = self.resting if self.sleeps else self.trainer.peak + self.margin
        left = self.gpu.memory_bytes - _CUDA_BYTES - of_trainer
        return max(0.0, min(_HIGHEST_SHARE, math.floor(100 * left / self.gpu.memory_bytes) / 100))

    @property
    def sessions_at_once(self) -> int:
        """How many sessions one engine, or all servers, are asked to hold at once."""
        train = self.config.train
        of_process = train.trajectories_per_process * train.oversample
        if self.backend != "server":
            return min(self.config.kernel.size, of_process * self.config.engine.shards)
        loops = 1 if self.has_one_loop else train.processes
        return min(self.config.kernel.size * loops, of_process * train.processes)

    @property
    def has_one_loop(self) -> bool:
        """Whether the main process rolls out for all, onto servers."""
        return self.config.train.asynchronous is not None or self.config.cluster is not None


def make_forecast(config: Config, shapes: Shapes, prompt_tokens: int | None, gpu: GPU) -> Forecast | str:
    """What would be held, or why that is not known. Raises ModelError."""
    model = architecture_of(config.model.path, shapes)
    if model is None:
        return "not known what fits, as the memory is not known"
    division = division_of(config.train)
    if division is None:
        return "not known what fits: train.trl.deepspeed is not of stage 3, or a file that can't be read"
    trainer = trainer_memory(config, shapes, model, tokens_of_pass(config, prompt_tokens), division)
    return Forecast(config, shapes, prompt_tokens, gpu, model, division, trainer)


def forecast_rows(
    config: Config, shapes: Shapes, prompt_tokens: int | None, gpu: GPU, notes: list[str]
) -> list[tuple[str, str]]:
    """A dry run's rows: whether the run fits, what is held when, and how many sessions. Notes what does not fit.
    Raises ModelError."""
    forecast = make_forecast(config, shapes, prompt_tokens, gpu)
    if isinstance(forecast, str):
        return [(gpu.name, forecast)]
    rows = [(gpu.name, _verdict(forecast, notes)), ("while training", _training(forecast))]
    if forecast.samples_here:
        rows.append(("while sampling", _sampling(forecast)))
    rows += [("sessions", _sessions(forecast)), ("processes", _processes(forecast))]
    changed = [name for name in _NOT_COUNTED if name in config.engine.vllm]
    if changed:
        notes.append(f"engine.vllm: {', '.join(changed)} would change what fits, and is not in these figures")
    notes.append(
        f"what fits is arithmetic: {_gib(_VLLM_BYTES)} GiB for vLLM's CUDA graphs and workspaces and "
        f"{_gib(_CUDA_BYTES)} for CUDA are assumed, and one H200 took 1 to 17% more to train than the formula says "
        "(docs/gpus.md)"
    )
    return rows


def _verdict(forecast: Forecast, notes: list[str]) -> str:
    context = forecast.config.engine.context_tokens
    has_formula = forecast.samples_here and why_cache_is_unknown(forecast.config) is None
    if has_formula and forecast.cache.sessions(context) == 0:
        cache = forecast.cache
        text = (
            f"the engine does not start: its share of {_gib(forecast.share)} GiB leaves {_gib(cache.memory_bytes)} for "
            f"keys and values, and a session of engine.context_tokens ({context:,}) takes "
            f"{_gib(context * cache.token_bytes)}"
        )
        way_out = "lower that, or take GPUs with more memory"
        if forecast.highest_share > forecast.config.engine.gpu_memory_utilization:
            way_out = f"raise engine.gpu_memory_utilization (to {forecast.highest_share:g} at most), or lower that"
        notes.append(f"{text}; {way_out}")
        return text
    needed = max(forecast.training, forecast.sampling)
    when = "while it trains" if needed == forecast.training else "while it samples"
    spare = forecast.gpu.memory_bytes - needed
    if spare < 0:
        notes.append(
            f"does not fit: the trainer takes about {_gib(forecast.trainer.peak)} GiB, the sampler's share is "
            f"{_gib(forecast.share)}, and the GPU has {forecast.gpu.gib:,.1f}; {_ways_out(forecast)}"
        )
        return f"does not fit: {_gib(needed)} GiB {when}, which are {_gib(-spare)} too many"
    text = f"{_gib(needed)} GiB at the most, {when}, and {_gib(spare)} to spare"
    if forecast.training + forecast.margin > forecast.gpu.memory_bytes:
        more = _gib(forecast.margin)
        return f"close: {text}; the trainer may take {more} more than this formula says: {_ways_out(forecast)}"
    return f"fits: {text}"


def _ways_out(forecast: Forecast) -> str:
    train = forecast.config.train
    ways = []
    if forecast.training > forecast.sampling:
        ways.append("lower train.micro_batch (or micro_batch_tokens)")
    if forecast.samples_here and not (forecast.sleeps and forecast.training > forecast.sampling):
        ways.append("lower engine.gpu_memory_utilization")
    if forecast.backend == "vllm" and not forecast.sleeps:
        ways.append("set engine.vllm: {enable_sleep_mode: true}")
    if not forecast.trainer.again:
        ways.append("set train.trl.gradient_checkpointing")
    if forecast.trainer.added_up > forecast.trainer.gradients:
        ways.append(f"divide the gradients of each pass ({_SYNC_EACH})")
    if train.lora is None:
        ways.append("train adapters (train.lora)")
    return f"{', '.join(ways)}, or take more GPUs"


def _training(forecast: Forecast) -> str:
    text = (
        f"{_gib(forecast.training)} GiB: {_gib(forecast.trainer.peak)} of memory as above, {_gib(_CUDA_BYTES)} for CUDA"
    )
    if forecast.sleeps:
        return f"{text}, and {_gib(_ASLEEP_BYTES)} that vLLM keeps while it sleeps"
    if forecast.samples_here:
        return f"{text}, and the engine's share of {_gib(forecast.share)}"
    if forecast.backend not in ENGINES:
        return f"{text}, without what your engine takes, which is not known"
    return text


def _sampling(forecast: Forecast) -> str:
    engine = forecast.config.engine
    of_share = [f"{_gib(forecast.sampler_weights)} for weights"]
    if engine.shards > 1:
        of_share = [f"{_gib(forecast.sampler_weights)} for its part of {engine.shards} of the weights"]
    if forecast.backend == "vllm":
        of_share.append(f"{_gib(forecast.passes(engine.shards))} for vLLM's passes and CUDA graphs")
    of_share.append(f"{_gib(max(0, forecast.cache.memory_bytes))} for keys and values")
    return (
        f"{_gib(forecast.sampling)} GiB: {_gib(forecast.resting)} for the trainer's weights and moments, "
        f"{_gib(_CUDA_BYTES)} for CUDA, and the engine's share of {_gib(forecast.share)} "
        f"(engine.gpu_memory_utilization {engine.gpu_memory_utilization:g}): {', '.join(of_share)}"
    )


def _sessions(forecast: Forecast) -> str:
    """How many are held at once, and what waits: sessions in our engine (`ThreadedEngine.admission`), lines in vLLM."""
    if forecast.backend not in ENGINES:
        return "what your engine holds at once is not known"
    reason = why_cache_is_unknown(forecast.config)
    if reason is not None:
        return f"how many are held at once is not known: {reason}; vLLM logs it when it starts (GPU KV cache size)"
    full = longest_session(forecast.config, forecast.prompt_tokens)
    length = f"{full:,} tokens"
    if forecast.prompt_tokens is None:
        length += " beside the prompt"
    if forecast.backend == "server":
        return _sessions_of_servers(forecast, full, length)
    engine = forecast.config.engine
    cache = forecast.cache
    count = forecast.sessions_at_once
    held = cache.sessions(full)
    text = (
        f"keys and values take {cache.token_bytes / 1024:,.4g} KiB a token, and {cache.tokens:,} tokens fit: they hold"
    )
    if forecast.backend == "transformers":
        held = min(count, cache.sessions(engine.context_tokens))
        return f"{text} {held} of {count} sessions, each with room for engine.context_tokens; the rest waits"
    if held >= count:
        return f"{text} all {count} sessions at their full length ({length})"
    text = (
        f"{text} {held} of {count} sessions at their full length ({length}), and all {count} at a mean of "
        f"{cache.mean_tokens(count):,} tokens. The rest waits: a session until there is room for the mean of those "
        f"before it, lines beyond {engine.places} (engine.places) in vLLM's queue"
    )
    if forecast.highest_share > engine.gpu_memory_utilization:
        text += f". engine.gpu_memory_utilization may be {forecast.highest_share:g} at most"
    return text


def _sessions_of_servers(forecast: Forecast, full: int, length: str) -> str:
    number_bytes = BYTES[forecast.config.model.dtype]
    weights = forecast.model.parameters * number_bytes
    share = int(_SERVERS_SHARE * forecast.gpu.memory_bytes)
    sizes = []
    for gpus in (1, 2, 4, 8):
        left = share - weights // gpus - forecast.passes(gpus)
        cache = Cache(left, token_bytes(forecast.model, number_bytes, gpus))
        sizes.append(f"{cache.tokens:,} with {gpus}")
    count = forecast.sessions_at_once
    whole_kib = token_bytes(forecast.model, number_bytes) / 1024
    return (
        f"keys and values take {whole_kib:,.4g} KiB a token; {count} sessions at once have {count * full:,} tokens at "
        f"their full length ({length}). A server whose GPUs are like this one holds, by its --tensor-parallel-size and "
        f"with vLLM's default share ({_SERVERS_SHARE:g}), {', '.join(sizes)}; lines beyond that wait in its queue"
    )


def _processes(forecast: Forecast) -> str:
    """What each of them does, and in what they differ."""
    config = forecast.config
    train = config.train
    if train.processes == 1:
        return "one, which samples and trains" if forecast.samples_here else "one, which trains"
    sessions = (
        f"{train.trajectories_per_process * train.oversample} sessions of a step with {config.kernel.size} kernels"
    )
    shards = config.engine.shards
    if forecast.backend == "server" and forecast.has_one_loop:
        work = f"the first rolls out for all with {config.kernel.size} kernels, and sends the weights"
    elif forecast.backend == "server":
        work = f"each rolls out {sessions} and trains on them, and the first sends the weights"
    elif shards > 1:
        work = (
            f"the first of every {shards} rolls out for these with {config.kernel.size} kernels, and the others hold "
            "their part of vLLM's model and sample nothing"
        )
    else:
        work = f"each samples {sessions} and trains on them"
    peaks = []
    for division in (Division.FSDP_2, Division.ZERO_3, Division.WHOLE):
        memory = trainer_memory(config, forecast.shapes, forecast.model, forecast.trainer.tokens, division)
        peaks.append(f"{_gib(memory.peak)} with {division}")
    weights = forecast.model.parameters * BYTES[train.dtype]
    return (
        f"{train.processes}, whose GPUs hold alike: {work}. To train, each takes {', '.join(peaks)}. In the machine's "
        f"memory, each holds the whole weights until the model is divided, {_gib(train.processes * weights)} GiB "
        f"together, and the first holds them again ({_gib(weights)}) when the model is saved; it alone writes metrics, "
        "rollouts and the report"
    )


def _gib(count: int) -> str:
    return f"{count / GIB:,.1f}"
