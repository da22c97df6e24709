"""What repl_rl relies on inside TRL, transformers and vLLM (`contracts.yaml`). Where one fails, read their change
first, then what is built on it: `trainer/grpo.py`, `models/whole.py` and `engine/vllm/scheduler.py`."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from pages import says

from repl_rl.config import load_config, shipped_configs
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.memory import architecture_of, shapes_of, token_bytes

if TYPE_CHECKING:
    from repl_rl.engine.vllm import VLLMEngine

CONTRACTS = yaml.safe_load(Path(__file__).with_name("contracts.yaml").read_text(encoding="utf-8"))
RELIED_ON = [(name, *promise) for name, promises in CONTRACTS["relied_on"].items() for promise in promises]


def method_of(name: str) -> Callable[..., Any]:
    owner, _, attribute = name.partition(".")
    method: Callable[..., Any] = getattr(pkgutil.resolve_name(CONTRACTS["classes"][owner]), attribute)
    return method


@pytest.mark.parametrize(("name", "parameters"), CONTRACTS["overridden"].items())
def test_an_overridden_method_keeps_its_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(method_of(name)).parameters) == parameters


@pytest.mark.parametrize(("name", "code", "promise"), RELIED_ON)
def test_a_method_still_does_what_is_built_on(name: str, code: str, promise: str) -> None:
    assert code in inspect.getsource(inspect.unwrap(method_of(name))), promise


def test_a_token_takes_as_much_of_vllms_cache_as_the_dry_run_says(vllm_engine: VLLMEngine) -> None:
    cache = vllm_engine.stepper.scheduler.kv_cache_config
    [group] = cache.kv_cache_groups
    page_bytes = group.kv_cache_spec.page_size_bytes * len(group.layer_names)
    model = architecture_of("nano", shapes_of("nano", NANO_PATH))
    assert model is not None
    assert page_bytes == group.kv_cache_spec.block_size * token_bytes(model, 4)
    assert vllm_engine.admission.rooms[0].capacity == cache.num_blocks * group.kv_cache_spec.block_size


def test_torch_gives_back_what_the_trainer_has_freed_before_vllm_wakes(
    vllm_engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM asks the device, which has nothing left if torch keeps it."""
    calls: list[str] = []
    monkeypatch.setattr(vllm_engine, "_sleeps", True)
    monkeypatch.setattr(vllm_engine, "version", vllm_engine.version)
    monkeypatch.setattr(vllm_engine.llm, "wake_up", lambda tags: calls.extend(tags))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("torch gives back"))
    with vllm_engine._change():
        calls.append("new weights")
    assert calls == ["torch gives back", "weights", "new weights", "torch gives back", "kv_cache"]


def _largest_graph(places: int, asked: int | None) -> int:
    """Tokens of the largest CUDA graph that vLLM records, on GPUs before Blackwell."""
    from vllm.config import CompilationConfig, VllmConfig
    from vllm.config.compilation import CUDAGraphMode

    compilation = CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, max_cudagraph_capture_size=asked)
    settings = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=places, max_num_batched_tokens=8192),
        uniform_decode_query_len=1,
        speculative_config=None,
        performance_mode="balanced",
    )
    VllmConfig._set_cudagraph_sizes(settings)
    return int(compilation.max_cudagraph_capture_size)


def test_vllm_records_graphs_of_twice_the_places_as_the_docs_say_and_the_gpu_configs_of_512_tokens() -> None:
    pytest.importorskip("vllm")
    assert [_largest_graph(places, None) for places in (64, 128, 256, 1024)] == [128, 256, 512, 512]
    assert says("engines.md", "by vLLM's default twice `engine.places`, at most 512")
    for name in shipped_configs():
        config = load_config(name)
        if config.engine.backend == "vllm":
            asked = config.engine.vllm.get("max_cudagraph_capture_size")
            assert _largest_graph(config.engine.places, asked) == 512, name
            assert (asked is None) == (config.engine.places >= 256), name
    assert says("engines.md", "`gpu-8`, with 128 places, asks for 512")
