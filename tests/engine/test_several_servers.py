"""Several real vLLM servers, or one of several processes: weights reach them all, and one that dies costs nothing."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
import tcp_transfer
import torch
from exactness import RecordingEngine, assert_exact
from peft import LoraConfig, get_peft_model
from real_rollouts import TEMPERATURE, assert_logprobs, line_difference, metric, opened, roll_out, sample
from serving import CONTEXT_TOKENS, servers, start_server
from small import small_trainer
from transformers import AutoModelForCausalLM
from waiting import until

from repl_rl.config import SamplingConfig
from repl_rl.engine import TensorFacts, Vocabulary
from repl_rl.engine.server import VLLMServerEngine, transfer
from repl_rl.errors import EngineError
from repl_rl.models.nano import NANO_PATH

PROMPT = "What is 3 * 4?"


class Scaled:
    """nano's weights times a factor; `before` is called with each name as it is sent."""

    def __init__(self, factor: float, before: Callable[[str], None] = lambda name: None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(factor)
        self._before = before

    def facts(self) -> list[TensorFacts]:
        return [TensorFacts(name, weight.dtype, tuple(weight.shape)) for name, weight in self.model.named_parameters()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.model.named_parameters():
            self._before(name)
            yield name, weight.data


async def assert_all_sample_with(
    engine: VLLMServerEngine, vocabulary: Vocabulary, weights: Scaled, at_once: int
) -> None:
    ids = vocabulary.encode_prompt(PROMPT)
    for line in await asyncio.gather(*(sample(engine, ids, 40, 1.0) for _ in range(at_once))):
        assert line_difference(weights.model, ids, line) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.covers("a tensor-parallel or data-parallel vLLM server", "every rank samples with new weights")
@pytest.mark.parametrize("flag", ["--tensor-parallel-size=2", "--data-parallel-size=2"])
async def test_every_rank_samples_with_new_weights(flag: str, vocabulary: Vocabulary, tmp_path: Path) -> None:
    with servers(tmp_path, 1, flag) as running, opened(running, vocabulary) as engine:
        for factor in (1.1, 0.95):
            weights = Scaled(factor)
            engine.load_weights(weights)
            await assert_all_sample_with(engine, vocabulary, weights, at_once=8)
        async with AsyncExitStack() as stack:
            slots = [await stack.enter_async_context(engine.slot(400)) for _ in range(3)]
            for slot in slots:  # each takes the engine that has the fewest
                await slot.sample_line([5], 9, SamplingConfig())
            before = [metric(running[0], "vllm:prompt_tokens_total", rank) for rank in "01"]
            for _ in range(4):  # whichever engine is idle, lines go to that which has the prefix
                await asyncio.gather(*(slot.sample_line([5, 5], 99, SamplingConfig()) for slot in slots[::2]))
            after = [metric(running[0], "vllm:prompt_tokens_total", rank) for rank in "01"]
        assert sum(now > was for now, was in zip(after, before, strict=True)) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.covers("a data-parallel vLLM server with LoRA", "it gets the adapter alone, and samples with it")
async def test_a_server_gets_the_adapter_that_is_trained(vocabulary: Vocabulary, tmp_path: Path) -> None:
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    flags = ["--data-parallel-size=2", "--enable-lora", "--max-lora-rank=8", "--max-loras=1"]
    with servers(tmp_path, 1, *flags) as running:
        engine = {"context_tokens": CONTEXT_TOKENS, "servers": [running[0].url], "weights_folder": str(tmp_path / "w")}
        trained = {"max_steps": 3, "learning_rate": 2e-2, "engine": engine}
        with small_trainer(tmp_path, trainer={"peft_config": adapter}, **trained) as trainer:
            await asyncio.to_thread(trainer.train)
            drifts = [row["drift/logprob_max"] for row in trainer.state.log_history if "drift/logprob_max" in row]
            assert len(drifts) == trainer.engine.version == 3
            assert max(drifts) < 1e-3
            await asyncio.to_thread(trainer.sync_weights)
            [config] = (tmp_path / "w").glob("*/*/adapter_config.json")  # those before it are gone
            assert config.parent.name == trainer.engine.weights.label
            ids = vocabulary.encode_prompt(PROMPT)
            lines = await asyncio.gather(*(sample(trainer.engine, ids, 40, 1.0) for _ in range(8)))
            assert max(line_difference(trainer.model, ids, line) for line in lines) < 1e-4
            with trainer.model.disable_adapter():
                assert max(line_difference(trainer.model, ids, line) for line in lines) > 1e-3
        with opened(running, vocabulary) as engine:
            await assert_all_sample_with(engine, vocabulary, Scaled(1.0), at_once=4)
            large = get_peft_model(Scaled(1.0).model, LoraConfig(r=16, target_modules=["q_proj"]))
            with pytest.raises(EngineError, match=r"16 is greater than max_lora_rank 8"):
                engine.load_adapter(large.save_pretrained)
            await assert_all_sample_with(engine, vocabulary, Scaled(1.0), at_once=4)


@pytest.mark.covers(
    "two vLLM servers, weights sent without files", "all servers get them, or none is used; sockets in place of NCCL"
)
@pytest.mark.slow
async def test_all_servers_get_weights_without_files_or_none_is_used(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """By vLLM's own transfer. Between GPUs it is NCCL; here it is a socket."""
    tcp_transfer.register()
    program = Path(tcp_transfer.__file__).with_name("serve_with_tcp.py")
    flag = '--weight-transfer-config={"backend": "tcp"}'
    with servers(tmp_path, 2, flag, program=program) as running, opened(running, vocabulary) as engine:
        for number, factor in enumerate((1.1, 0.95), start=1):
            tcp_transfer.Sender.sent.clear()
            weights = Scaled(factor)
            engine.load_weights(weights)
            assert engine.version == number
            assert tcp_transfer.Sender.sent == [each.name for each in weights.facts()]
            assert engine.weights.files == ()
            await assert_all_sample_with(engine, vocabulary, weights, at_once=2)

        def kill_one_in_the_middle(name: str) -> None:
            if "layers.1" in name:
                running[1].kill()

        with pytest.raises(EngineError, match=r"the transfer of new weights \(tcp\) to .* failed: .*; start these"):
            engine.load_weights(Scaled(1.05, kill_one_in_the_middle))
        assert engine.version == 2
        assert not any(server.up for server in engine.servers)
        assert "on the way" in running[0].get("/weight_info")["weight_version"]


def test_servers_of_an_unknown_backend_or_without_a_gpu_get_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not transfer.can_transfer(None)
    assert not transfer.can_transfer("ipc")
    assert transfer.can_transfer("nccl") == torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert transfer.can_transfer("nccl")


@pytest.mark.covers("several vLLM servers", "one is killed in the middle of a batch, and no trajectory is lost")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_killed_in_mid_batch_costs_no_trajectory(vocabulary: Vocabulary, tmp_path: Path) -> None:
    def rolled_out(engine: VLLMServerEngine, after_line: Callable[[int], None]) -> int:
        """The number of lines, all of whose trajectories are exact."""
        recorded = RecordingEngine(engine, after_line)
        [trajectories] = roll_out(recorded, vocabulary)
        assert len({trajectory.task_id for trajectory in trajectories}) == 64
        assert_exact(trajectories, recorded, vocabulary)
        assert_logprobs(trajectories, NANO_PATH, TEMPERATURE)
        return len(recorded.calls)

    with servers(tmp_path, 2) as (staying, victim), opened([staying, victim], vocabulary) as engine:
        lines = rolled_out(engine, lambda lines: victim.kill() if lines >= 60 else None)
        assert victim.process.returncode == -signal.SIGKILL
        assert [server.url for server in engine.servers if not server.up] == [victim.url]
        assert metric(staying, "vllm:request_success_total") > lines / 2

        back = start_server(tmp_path / "back.log", port=victim.port)
        try:
            back.wait_until_up()
            until(lambda: all(server.up for server in engine.servers))
            lines = rolled_out(engine, lambda lines: None)
            assert metric(back, "vllm:request_success_total") > lines / 4
        finally:
            back.kill()


@pytest.mark.covers("several vLLM servers", "one whose first process is killed leaves no process")
@pytest.mark.slow
def test_all_of_a_server_ends_with_its_first_process(tmp_path: Path) -> None:
    with servers(tmp_path, 1) as [server]:
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert any("EngineCore" in "".join(each.cmdline()) for each in processes)
        server.process.kill()
        server.process.wait()
        assert psutil.wait_procs(processes, timeout=60)[1] == []
