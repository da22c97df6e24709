"""Check 6: vLLM in this process on the GPU, through the product's engine, with a random Qwen3-0.6B.

    python3 c6_vllm.py [WAY]        # WAY: where in LADDER to begin

It starts with what a config for one GPU has (bfloat16, 256 places, CUDA graphs) and sleep mode; if that fails, without
sleep mode, then with vLLM's other model runner, then without compiling. Then, each recorded by itself:

- which model runner, attention, graphs and cache there are, and how long the start took;
- greedy lines, and a first batch's lines at temperature 1, beside transformers' forward pass over the same ids;
- weights that change while lines are under way: each token has the log-probability of its recorded version's weights;
- reload time; memory before, in and after sleep; lines that are under way as the engine falls asleep.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from common import TINY, attempt, device, free, model_folder, record, wait

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.engine.environment import prepare_environment

prepare_environment()
os.environ["VLLM_LOGGING_LEVEL"] = "INFO"  # the start's log says what was chosen

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

CONTEXT = 1024 if TINY else 4096
PLACES = 16 if TINY else 256
DTYPE = "float32" if TINY else "bfloat16"
OUTPUT = 12
"""Tokens that stand for an interpreter's output after each line."""
LADDER: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("as configured, with sleep mode", {}, {"enable_sleep_mode": True}),
    ("as configured", {}, {}),
    ("the first model runner", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {}),
    ("eager", {}, {"enforce_eager": True}),
]


def start(path: str, vocabulary: Any, rung: int) -> tuple[Any, bool]:
    """The engine, and whether it can sleep. If it can't be started so, this program begins again with the next way."""
    name, environment, arguments = LADDER[rung]
    os.environ.update(environment)
    began = time.time()
    config = EngineConfig(
        backend="vllm", context_tokens=CONTEXT, places=PLACES, gpu_memory_utilization=0.4, vllm=arguments
    )
    engine = attempt(
        6, f"start, {name}", lambda: make_engine(path, vocabulary, ModelConfig(path=path, dtype=DTYPE), config, 0)
    )
    if engine is not None:
        record(6, f"start, {name}", seconds=time.time() - began)
        return engine, "enable_sleep_mode" in arguments
    if rung + 1 == len(LADDER):
        sys.exit(1)
    # a process that holds nothing
    return os.execv(sys.executable, [sys.executable, "-W", "ignore", __file__, str(rung + 1)])


def describe(engine: Any) -> None:
    core = engine.llm.llm_engine.engine_core.engine_core
    config = engine.llm.llm_engine.vllm_config
    runner = engine.llm.llm_engine.model_executor.driver_worker.worker.model_runner
    compilation = config.compilation_config
    sizes = compilation.cudagraph_capture_sizes or []

    def backends() -> list[str]:
        found = {
            type(layer.impl).__module__.rpartition(".")[2]
            for layer in compilation.static_forward_context.values()
            if hasattr(layer, "impl")
        }
        return sorted(found)

    record(
        6,
        "engine",
        runner=f"{type(runner).__module__}.{type(runner).__name__}",
        v2=getattr(config, "use_v2_model_runner", None),
        scheduler=type(core.scheduler).__name__,
        asynchronous=config.scheduler_config.async_scheduling,
        attention=attempt(6, "attention", backends),
        graphs=str(compilation.cudagraph_mode),
        largest_graph=max(sizes, default=0),
        graphs_captured=len(sizes),
        mode=str(compilation.mode),
        block=config.cache_config.block_size,
        blocks=config.cache_config.num_gpu_blocks,
        capacity_tokens=sum(room.capacity for room in engine.admission.rooms),
        most_batched_tokens=config.scheduler_config.max_num_batched_tokens,
    )


class Session:
    """A transcript: ids, which of them were sampled, their log-probabilities and versions."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)
        self.sampled: list[tuple[int, float, int]] = []
        """Offset, log-probability and version of each."""

    async def go(
        self, engine: Any, lines: int, sampling: SamplingConfig, most: int = 40, ends: threading.Event | None = None
    ) -> None:
        async with engine.slot(CONTEXT) as slot:
            for number in range(lines):
                if len(self.ids) + most + OUTPUT >= CONTEXT or (ends is not None and ends.is_set()):
                    break
                version = engine.version
                line = await slot.sample_line(self.ids, most, sampling)
                versions = [version] * len(line.ids)
                for start, later in line.versions:
                    versions[start:] = [later] * (len(line.ids) - start)
                for token, logprob, own in zip(line.ids, line.logprobs, versions, strict=True):
                    self.sampled.append((len(self.ids), logprob, own))
                    self.ids.append(token)
                self.ids += [(97 * number + n) % 600 + 5 for n in range(OUTPUT)]


def sessions(count: int) -> list[Session]:
    return [Session([(31 * index + 7 * n) % 600 + 5 for n in range(20 + 17 * index % 200)]) for index in range(count)]


def sample(engine: Any, made: list[Session], lines: int, sampling: SamplingConfig, **more: Any) -> float:
    async def together() -> None:
        await asyncio.gather(*(each.go(engine, lines, sampling, **more) for each in made))

    began = time.perf_counter()
    asyncio.run(together())
    return time.perf_counter() - began


@torch.no_grad()
def beside(model: Any, made: list[Session], version: int | None = None) -> dict[str, float]:
    """Mean and most of |transformers - vLLM| over sampled tokens, the share of greedy ones, and their number."""
    differences, greedy = [], []
    for each in made:
        chosen = [(offset, logprob) for offset, logprob, own in each.sampled if version is None or own == version]
        if not chosen:
            continue
        ids = torch.tensor([each.ids[: chosen[-1][0] + 1]], device=device())
        logps = model(input_ids=ids).logits[0].float().log_softmax(-1)
        offsets = torch.tensor([offset for offset, _ in chosen], device=device())
        tokens = ids[0, offsets]
        own = logps[offsets - 1]
        differences.append(
            (own.gather(1, tokens[:, None])[:, 0] - torch.tensor([lp for _, lp in chosen], device=device())).abs()
        )
        greedy.append(own.argmax(-1) == tokens)
    all_differences, all_greedy = torch.cat(differences), torch.cat(greedy)
    apart = {"mean": float(all_differences.mean()), "most": float(all_differences.max())}
    return {**apart, "likeliest": float(all_greedy.float().mean()), "tokens": len(all_greedy)}


def agreement(engine: Any, path: str) -> None:
    greedy, first = sessions(4 if TINY else 16), sessions(8 if TINY else 128)
    first_s = sample(engine, first, 3, SamplingConfig(temperature=1.0))
    greedy_s = sample(engine, greedy, 4, SamplingConfig(temperature=0.0))
    again = sessions(len(greedy))
    sample(engine, again, 4, SamplingConfig(temperature=0.0))
    record(6, "greedy twice", same=sum(a.ids == b.ids for a, b in zip(greedy, again, strict=True)), of=len(greedy))
    for dtype in (torch.float32,) if TINY else (torch.bfloat16, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device()).eval()
        for name, made, seconds in (("first batch", first, first_s), ("greedy", greedy, greedy_s)):
            record(6, f"{name} beside transformers", dtype=str(dtype), seconds=seconds, **beside(model, made))
        del model
        free()


def named(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, weight.data) for name, weight in model.named_parameters()]


def updates_in_flight(engine: Any, path: str, asleep: bool = False) -> None:
    """Three updates while lines are under way; each token against the weights of its version and of the one before.
    With `asleep`, the engine sleeps before each, as with `train.asynchronous`."""
    began_at = engine.version
    dtype = getattr(torch, DTYPE)
    models = {began_at: AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device()).eval()}
    for number in range(1, 4):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device()).eval()
        torch.manual_seed(number)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "proj" in name or "embed" in name:  # a tied head has to follow its embedding
                    weight.add_(0.5 * weight.std() * torch.randn_like(weight))
        models[began_at + number] = model
    made, ends, failures = sessions(12 if TINY else 32), threading.Event(), []

    def typing() -> None:
        try:
            sample(engine, made, 10_000, SamplingConfig(temperature=1.0), most=200, ends=ends)
        except BaseException as error:  # noqa: BLE001 - reported by the caller
            failures.append(error)

    thread = threading.Thread(target=typing)
    thread.start()
    reloads = []
    for number in range(1, 4):
        time.sleep(0.5)
        if asleep:
            engine.sleep()
            time.sleep(0.2)
        began = time.perf_counter()
        engine.load_weights(named(models[began_at + number]))
        reloads.append(time.perf_counter() - began)
    time.sleep(0.5)
    ends.set()
    thread.join()
    if failures:
        raise failures[0]
    several = sum(len({own for _, _, own in each.sampled}) > 1 for each in made)
    record(6, "updates in flight", asleep=asleep, reload_s=reloads, sessions=len(made), of_several_versions=several)
    for version, model in models.items():
        if any(own == version for each in made for _, _, own in each.sampled):
            other = models[version - 1] if version - 1 in models else models[version + 1]
            found, wrong = (beside(each, made, version) for each in (model, other))
            record(
                6,
                "tokens of a version",
                asleep=asleep,
                version=version,
                **found,
                mean_if_other_weights=wrong["mean"],
            )
    engine.load_weights(named(models[began_at]))


def held_gb() -> float:
    free_bytes, total = torch.cuda.mem_get_info()
    return (total - free_bytes) / 1e9


def sleeping(engine: Any, path: str) -> None:
    """As the trainer does between a step's rollouts and the next ones."""
    before = sessions(4)
    sample(engine, before, 2, SamplingConfig(temperature=0.0))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(device())
    wait()
    awake = held_gb()
    times = {}

    def timed(name: str, work: Any) -> None:
        began = time.perf_counter()
        work()
        wait()
        times[name] = time.perf_counter() - began

    with engine.paused():
        timed("sleep_s", lambda: engine.llm.sleep(level=2))
    asleep = held_gb()
    with engine.paused():
        timed("wake_weights_s", lambda: engine.llm.wake_up(tags=["weights"]))
        timed("reload_s", lambda: engine.reload(named(model)))
        timed("wake_cache_s", lambda: engine.llm.wake_up(tags=["kv_cache"]))
        engine.update()
    after = sessions(4)
    sample(engine, after, 2, SamplingConfig(temperature=0.0))
    same = sum(a.ids == b.ids for a, b in zip(before, after, strict=True))
    record(6, "sleep", awake_gb=awake, asleep_gb=asleep, after_gb=held_gb(), same_lines=same, of=len(before), **times)


def main() -> None:
    began = time.time()
    path = model_folder(os.environ.get("DAY_MODEL", "0.6B"))
    record(6, "model", seconds=time.time() - began)
    began = time.time()
    import vllm

    record(6, "import", version=vllm.__version__, seconds=time.time() - began)
    vocabulary = load_vocabulary(path)
    engine, can_sleep = start(path, vocabulary, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    attempt(6, "describe", lambda: describe(engine))
    attempt(6, "agreement", lambda: agreement(engine, path))
    attempt(6, "updates in flight", lambda: updates_in_flight(engine, path))
    if can_sleep:
        attempt(6, "sleep", lambda: sleeping(engine, path))
        attempt(6, "updates in flight, asleep", lambda: updates_in_flight(engine, path, asleep=True))
    engine.close()


if __name__ == "__main__":
    main()
