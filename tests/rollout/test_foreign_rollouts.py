"""64 rollouts through real kernels of other languages, behind bwrap, are exact to the token."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from exactness import RecordingEngine, assert_exact
from real_kernels import RealKernel, pari_kernel, r_kernel
from scripted import ScriptedEngine, rollout_of

from repl_rl.config import DialectConfig
from repl_rl.engine import Vocabulary
from repl_rl.trajectory import LineKind, StopReason, Task

COUNT = 64
Turns = list[tuple[str, str, LineKind]]
"""What is typed, what is shown after it, and the line's kind."""


TURNS = yaml.safe_load((Path(__file__).parent / "foreign_turns.yaml").read_text(encoding="utf-8"))


def turns_of(language: str, n: int) -> Turns:
    def worked_out(text: str) -> str:
        return re.sub("<<(.+?)>>", lambda found: str(eval(found[1], {"n": n})), text)

    return [(worked_out(typed), worked_out(shown), LineKind(kind)) for typed, shown, kind in TURNS[language]]


@pytest.fixture
def kernel(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealKernel:
    return r_kernel() if language == "r" else pari_kernel(tmp_path, monkeypatch.setenv)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("language", TURNS)
async def test_64_rollouts_are_exact(vocabulary: Vocabulary, kernel: RealKernel, language: str) -> None:
    turns = {n: turns_of(language, n) for n in range(1, COUNT + 1)}

    def script(prompt: str) -> Sequence[str]:
        return [typed for typed, _, _ in turns[int(prompt.split("number ")[1].split(".")[0])]]

    engine = RecordingEngine(ScriptedEngine(vocabulary, script))
    dialect, budget = DialectConfig(max_output_chars=400), {"line_tokens": 100, "lines": 20, "tokens": 3000}
    async with kernel.pool(6) as pool:
        rollout = rollout_of(engine, pool, dialect=dialect, context_tokens=4000, budget=budget, at_once=6)
        trajectories = await rollout.many([Task(str(n), f"This is number {n}.", "") for n in turns])
    assert_exact(trajectories, engine, vocabulary)
    for trajectory, expected in zip(trajectories, turns.values(), strict=True):
        assert trajectory.error is None
        assert [(line.text, line.output, line.kind) for line in trajectory.lines] == expected
        assert trajectory.stop_reason is StopReason.EOS
