"""What the checks share: records that survive a kill, times, peaks, and models with random weights.

A record is a line of JSON in $OUT/results.jsonl, written and flushed at once. With DAY_TINY=1 everything is small and
runs on a CPU, to try the code paths.
"""

import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TINY = os.environ.get("DAY_TINY") == "1"
OUT = Path(os.environ.get("OUT") or "/tmp/gpu-out")
_SHM = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
_HAS_ROOM = _SHM is not None and _SHM.f_bavail * _SHM.f_frsize > 8e9
FAST = Path(os.environ.get("DAY_FAST") or ("/dev/shm/gpu-models" if _HAS_ROOM and not TINY else "/tmp/gpu-models"))
"""Where models with random weights lie."""
QWEN = os.environ.get("GPU_QWEN", "")
PEAK_FLOPS = 989e12
"""Dense bfloat16 of an H100 or H200 by the datasheet; check 0 measures what a large product reaches."""

DIMENSIONS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
SHAPES: dict[str, tuple[int, ...]] = {
    "tiny": (64, 128, 2, 4, 2, 16),
    "small": (256, 512, 2, 4, 2, 64),
    "0.6B": (1024, 3072, 28, 16, 8, 128),
    "1.7B": (2048, 6144, 28, 16, 8, 128),
    "4B": (2560, 9728, 36, 32, 8, 128),
    "moe": (1024, 3072, 12, 16, 4, 128),
    "tiny-moe": (64, 128, 2, 4, 2, 16),
}
"""Qwen3's, by size; `moe` is a small Qwen3-MoE; `small` and `tiny` are for trying the checks on a CPU."""
EXPERTS: dict[str, dict[str, int]] = {
    "moe": {"moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4},
    "tiny-moe": {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2},
}
VOCABULARY = 4096 if TINY else 151_936


def record(check: int | str, name: str, **values: Any) -> None:
    """Write a result, and print it."""
    line = json.dumps({"check": check, "name": name, **{key: rounded(value) for key, value in values.items()}})
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    print(line, flush=True)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    return value if isinstance(value, str | int | bool | None) else str(value)


def attempt(check: int | str, name: str, work: Callable[[], Any]) -> Any:
    """What `work` returns; a failure is recorded, with where it happened, and None returned."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever a check meets is a result
        where = [
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        record(check, name, failed=f"{type(error).__name__}: {error}"[:600], where=where[-4:])
        print(traceback.format_exc()[-1500:], flush=True)
        return None
    finally:
        free()


def free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def median_ms(work: Callable[[], Any], rounds: int = 10, warm_up: int = 3) -> float:
    """Median time of `work` with the device, by the host's clock around synchronised calls."""
    if TINY:
        rounds, warm_up = 2, 1
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(rounds):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def reset_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def peak_gb() -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def config_of(size: str, **more: Any) -> Any:
    from transformers import Qwen3Config, Qwen3MoeConfig

    shape = dict(zip(DIMENSIONS, SHAPES[size], strict=True))
    shape |= {"vocab_size": VOCABULARY, "max_position_embeddings": 40_960, "rope_theta": 1_000_000.0, **more}
    if size in EXPERTS:
        return Qwen3MoeConfig(**shape, **EXPERTS[size], norm_topk_prob=True, tie_word_embeddings=True)
    return Qwen3Config(**shape, tie_word_embeddings=True)


def random_model(size: str, dtype: Any, seed: int = 0) -> Any:
    """A model with the weights that transformers begins with, made on the device."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with torch.device(device()):
        return AutoModelForCausalLM.from_config(config_of(size), dtype=dtype).to(device())


def body_parameters(model: Any) -> int:
    """Weights that each token is multiplied with: without the embedding, and of experts those that it is sent to."""
    config = model.config
    total = sum(
        weight.numel() for name, weight in model.named_parameters() if "embed" not in name and "lm_head" not in name
    )
    if hasattr(config, "num_experts"):
        experts = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
        total -= experts - experts * config.num_experts_per_tok // config.num_experts
    return total


def tokenizer() -> Any:
    """Qwen's where it was carried; nano's otherwise."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_path())


def tokenizer_path() -> str:
    if QWEN and not TINY and Path(QWEN).is_dir():
        return QWEN
    from repl_rl.models.nano import NANO_PATH

    return str(NANO_PATH)


def model_folder(size: str) -> str:
    """A checkpoint in bfloat16 with random weights and Qwen's tokenizer; made once. With DAY_TINY, nano."""
    if TINY:
        from repl_rl.models.nano import NANO_PATH

        return str(NANO_PATH)
    import torch

    folder = FAST / f"qwen3-{size}"
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        model = random_model(size, torch.bfloat16)
        tokenizer().save_pretrained(folder)
        model.save_pretrained(folder)
        del model
        free()
    return str(folder)


def config_folder(size: str) -> str:
    """A checkpoint folder without weights, for engines that make weights up (`load_format: dummy`)."""
    folder = FAST / f"empty-{size}"
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        config = config_of(
            size, architectures=["Qwen3MoeForCausalLM" if "moe" in size else "Qwen3ForCausalLM"], dtype="bfloat16"
        )
        config.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return str(folder)
