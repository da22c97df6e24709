"""A server dies in mid-batch and comes back: no trajectory is lost, none is made twice."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from exactness import RecordingEngine, RecordingSlot
from server_rollouts import assert_exact, metric, opened, roll_out, until
from serving import RunningServer, servers, start_server

from repl_rl.config import SamplingConfig
from repl_rl.engine import SampledLine, load_vocabulary
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.models.nano import NANO_PATH


class KillsOneServer(RecordingEngine):
    """Kills a server once so many lines have been sampled."""

    def __init__(self, engine: VLLMServerEngine, victim: RunningServer, after_lines: int) -> None:
        super().__init__(engine)
        self._victim = victim
        self._after_lines = after_lines

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[RecordingSlot]:
        async with super().slot(tokens) as slot:
            yield KillingSlot(slot, self)

    def maybe_kill(self) -> None:
        if len(self.calls) >= self._after_lines:
            self._victim.kill()


class KillingSlot:
    def __init__(self, slot: RecordingSlot, engine: KillsOneServer) -> None:
        self._slot = slot
        self._engine = engine

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        line = await self._slot.sample_line(ids, max_tokens, sampling)
        self._engine.maybe_kill()
        return line


@pytest.mark.covers("several vLLM servers", "one is killed in the middle of a batch, and no trajectory is lost")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_killed_in_mid_batch_costs_no_trajectory(tmp_path: Path) -> None:
    vocabulary = load_vocabulary(str(NANO_PATH))
    with servers(tmp_path, 2) as (staying, victim), opened([staying, victim], vocabulary) as engine:
        recorded = KillsOneServer(engine, victim, after_lines=60)
        trajectories = roll_out(recorded, vocabulary)
        assert victim.process.returncode == -signal.SIGKILL
        assert_exact(trajectories, recorded, vocabulary)
        moved = [server for server in engine._fleet.servers if not server.up]
        assert [server.url for server in moved] == [victim.url]
        assert metric(staying, "vllm:request_success_total") > len(recorded.calls) / 2

        back = start_server(tmp_path / "back.log", port=victim.port)
        try:
            back.wait_until_up()
            until(lambda: len(engine._fleet.up) == 2)
            again = RecordingEngine(engine)
            assert_exact(roll_out(again, vocabulary), again, vocabulary)
            assert metric(back, "vllm:request_success_total") > len(again.calls) / 4
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
