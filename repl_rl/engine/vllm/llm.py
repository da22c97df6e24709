"""A `vllm.LLM` in this process, with weights that can be replaced."""

import gc
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from vllm import LLM
from vllm.distributed import parallel_state
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, get_layerwise_info
from vllm.platforms import current_platform

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine.environment import engine_threads
from repl_rl.engine.vllm.scheduler import AsyncLineScheduler, LineScheduler
from repl_rl.errors import ConfigError, EngineError
from repl_rl.models.find import loading
from repl_rl.utils.distributed import process_count

_log = logging.getLogger(__name__)

_CPU_BLOCK_TOKENS = 32
"""vLLM's default on a CPU is 128. A line whose blocks were given back may compute up to a block of tokens again."""


class LocalLLM:
    """The base of engines with a `vllm.LLM`. They have `paused` and `update`, as a `ThreadedEngine` does.

    Raises ModelError or ConfigError if the checkpoint can't be served as asked.
    """

    def __init__(self, path: str, model: ModelConfig, config: EngineConfig, seed: int) -> None:
        self.llm = load_llm(path, model.dtype, config, seed)
        self._sleeps = bool(config.vllm.get("enable_sleep_mode"))
        self._rest: ExitStack | None = None
        """While it sleeps: the pause that it sleeps in."""
        self.takes_adapters = self.llm.llm_engine.vllm_config.lora_config is not None
        """Whether vLLM was started with `enable_lora`."""
        self.adapter: LoRARequest | None = None
        """What lines are sampled with, beside the weights."""
        self.threads: int | None = None
        """The OpenMP threads to compute with; None: one per core, or a GPU."""
        (parameter_count,) = self.llm.apply_model(_count_parameters)
        if not torch.cuda.is_available():
            self.threads = engine_threads(parameter_count)
        elif self.runner == "V1" and config.line_seeds:
            _log.warning(
                "vLLM runs its first model runner, which launches a kernel for each line's seed at every step; with "
                "engine.line_seeds: false it draws for all lines at once"
            )
        _log.info("vLLM: model runner %s, CUDA graphs %s", self.runner, self.graphs)
        _open.add(self)

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights, named as in the checkpoint. Lines under way go on with them from their next token on."""
        with self._change():
            self.reload(named_weights)

    @contextmanager
    def _change(self: Any) -> Iterator[None]:
        """Weights are replaced inside the block. A sleeping engine is woken for them, and gets its cache after them."""
        with self._rest or self.paused():
            self._rest = None
            self._wake("weights")
            yield
            self._wake("kv_cache")
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.update()

    def _wake(self, tag: str) -> None:
        """Give a sleeping engine its memory back. vLLM takes it from the device and not from torch, which keeps what
        the trainer has freed until it is told not to."""
        if self._sleeps:
            torch.cuda.empty_cache()
            self.llm.wake_up(tags=[tag])

    def sleep(self: Any) -> bool:
        """Give up weights and cache until the next ones come; returns False if it stays awake, because `engine.vllm`
        has no `enable_sleep_mode`. Lines under way, and those that are asked for meanwhile, wait and go on with these.
        """
        if self._sleeps and self._rest is None:
            with ExitStack() as stack:
                stack.enter_context(self.paused())
                level = 1 if self.takes_adapters else 2  # 1 keeps weights, in the CPU's memory
                self.llm.sleep(level, mode="keep")
                self._rest = stack.pop_all()
        return bool(self._sleeps)

    def end_rest(self) -> None:
        """Let go of the pause of an engine that sleeps, before it is closed."""
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def reload(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights without counting a version. Only inside of `paused`.

        vLLM packs weights again as its kernels want them, and keeps what it is given until it has all of a layer.
        Raises EngineError for a name or shape that vLLM's model does not have; a layer that had not all of its weights
        by then keeps those from before.
        """
        # vLLM gets copies: it keeps them, and a weight that the trainer gathers is only there until the next is read.
        copies = ((name, weight.clone()) for name, weight in named_weights)
        worker = self.llm.llm_engine.model_executor.driver_worker
        try:
            worker.reload_weights(weights_iterator=copies)
        except BaseException as error:
            _end_reload(worker.get_model(), worker.model_config)
            if not isinstance(error, ValueError | KeyError | AssertionError):
                raise
            raise EngineError(
                f"vLLM can't load these weights: {error}; if it names the weights of this kind of model otherwise than "
                "transformers does, sample with engine.backend transformers"
            ) from error

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        """Sample with the PEFT adapter that `save` writes to a folder. Raises ConfigError for one that vLLM doesn't
        support."""
        with self._change(), tempfile.TemporaryDirectory(prefix="repl_rl_adapter_") as folder:
            save(Path(folder))
            load = LoRARequest("trained", 1, folder, load_inplace=True)
            try:
                self.llm.llm_engine.model_executor.driver_worker.add_lora(load)
            except ValueError as error:
                raise ConfigError(
                    f"vLLM can't sample with this adapter ({error}); leave engine.vllm: {{enable_lora: ...}} out, and "
                    "it gets merged weights"
                ) from error
            self.adapter = LoRARequest("trained", 1, folder)

    @property
    def runner(self) -> str:
        """Which of vLLM's model runners there is: V1 or V2."""
        return "V2" if self.llm.llm_engine.vllm_config.use_v2_model_runner else "V1"

    @property
    def graphs(self) -> str:
        """The CUDA graphs that vLLM has recorded, in words; "none" without any."""
        compilation = self.llm.llm_engine.vllm_config.compilation_config
        if not compilation.cudagraph_capture_sizes:
            return "none"
        most_tokens = max(compilation.cudagraph_capture_sizes)
        return f"{compilation.cudagraph_mode.name}, up to {most_tokens} tokens"

    def shut_down(self) -> None:
        """Unload the model."""
        _open.discard(self)
        client = self.llm.llm_engine.engine_core
        # vLLM's shutdown, now or by the garbage collector, takes down what all engines of this process share, and
        # the process group, which is not its own where there are several processes.
        if _open or process_count() > 1:
            client._finalizer.detach()
            client.engine_core.model_executor.shutdown()
        else:
            client.shutdown()
        del self.llm, client
        gc.collect()


_open: WeakSet[LocalLLM] = WeakSet()
"""Those of this process that are not shut down."""


def _count_parameters(model: Any) -> int:
    return sum(weights.numel() for weights in model.parameters())


def _end_reload(model: Any, config: Any) -> None:
    """Put back the tensors that vLLM took out of a model before it began to load others.

    Left out, they would be missing in other models of this process too: those of one shape share the table of rotary
    positions.
    """
    for layer in model.modules():
        loading = get_layerwise_info(layer)
        loading.loaded_weights.clear()
        loading.load_numel = 0
    finalize_layerwise_reload(model, config)


def _ensure_expert_group() -> None:
    """Make the group of processes that share experts, if an open engine made vLLM's groups without it.

    vLLM makes it for a mixture of experts only, and makes no groups where there are some already: beside a dense model
    a mixture would not load. Experts are shared by the processes that share a model's tensors.
    """
    if not parallel_state.model_parallel_is_initialized() or parallel_state._EP is not None:
        return
    world = parallel_state.get_world_group()
    size = parallel_state.get_tensor_model_parallel_world_size()
    ranks = [list(range(start, start + size)) for start in range(0, world.world_size, size)]
    backend = torch.distributed.get_backend(world.device_group)
    parallel_state._EP = parallel_state.init_model_parallel_group(ranks, world.local_rank, backend, group_name="ep")


def load_llm(path: str, dtype: str, config: EngineConfig, seed: int) -> LLM:
    """Load the checkpoint at `path` with our scheduler, replaceable weights and, on a CPU, small blocks.

    Raises ModelError with vLLM's reason.
    """
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        # oneDNN repacks linear weights when the model is built, and `load_weights` can't fill them afterwards.
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False
        # The sampler's few compiled functions need a C++ compiler and a cache that all processes of a user share; two
        # installations of torch that fill it at once corrupt it. Eager functions cost nothing here.
        type(current_platform).simple_compile_backend = "eager"
    device: dict[str, Any] = {}
    if on_cpu:
        device["block_size"] = _CPU_BLOCK_TOKENS
    else:
        device["gpu_memory_utilization"] = config.gpu_memory_utilization
    if process_count() > 1:
        # Each process has its own GPU (LOCAL_RANK) and a whole engine. Otherwise, all would take the first GPU.
        device["distributed_executor_backend"] = "external_launcher"
    arguments: dict[str, Any] = {
        "model": path,
        "dtype": dtype,
        "seed": seed,
        "max_model_len": config.context_tokens,
        "max_num_seqs": config.places,
        "max_num_batched_tokens": max(4096, config.context_tokens),
        "enforce_eager": on_cpu,
        "enable_prefix_caching": not config.deterministic,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "scheduling_policy": "priority",  # with equal priorities: by arrival, and a line arrives when its slot did
        "scheduler_cls": LineScheduler if on_cpu else AsyncLineScheduler,
    }
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # without a GPU, vLLM asks for Triton in vain
    with loading(f"vLLM can't load {path!r}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.distributed.reduce_op` is deprecated", FutureWarning)
        _ensure_expert_group()
        return LLM(**{**arguments, **device, **config.vllm})
