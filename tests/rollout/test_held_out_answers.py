"""The answers of problems stay outside: a session that searches all it can read does not find its own."""

import ast
import json
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from scripted import ScriptedEngine

from repl_rl.config import BudgetConfig, KernelConfig, RewardsConfig, SamplingConfig
from repl_rl.engine import Vocabulary
from repl_rl.rewards import RewardTable
from repl_rl.rewards.table import PROBE
from repl_rl.rollout import score
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import grade
from repl_rl.trajectory import Task, write_jsonl

SEARCH = Path(__file__).with_name("search_session.py.txt").read_text(encoding="utf-8")
MOST_TOKENS = 30_000


@pytest.mark.more
@pytest.mark.parametrize("apart", [False, True], ids=["sessions_of_this_process", "sessions_of_a_worker"])
def test_a_session_does_not_find_the_answer(vocabulary: Vocabulary, tmp_path: Path, apart: bool) -> None:
    since, secret = time.time() - 1, f"held-out-{uuid4().hex}"
    task = Task("t", "What is it?", secret, metadata={"graded_as": "text", "note": secret})
    commands: list[str] = []

    async def note(prompt: str, turn: int, sampling: SamplingConfig) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                commands.append(repr((process.cmdline(), process.environ())))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue

    lines = [f" exec({SEARCH.replace('SINCE', repr(since))!r})\n", " submit_final_answer('held' + '-in')\n"]
    budget = BudgetConfig(line_tokens=MOST_TOKENS, tokens=MOST_TOKENS)
    setup = RolloutSetup(
        vocabulary,
        context_tokens=2 * MOST_TOKENS,
        chat=False,
        budget=budget,
        kernel=KernelConfig(size=1, line_s=120, session_s=300),
    )
    write_jsonl(tmp_path / "step_00001.jsonl", [replace(PROBE, reference=secret)])  # as a run keeps earlier rollouts
    with start_service(ScriptedEngine(vocabulary, lines, note), setup, apart=apart) as service:
        [typed] = service.generate([task])
    assert ast.literal_eval(typed.lines[0].shown) == [f"held-out-{number:032x}" for number in range(1, 4)]
    assert secret not in json.dumps(typed.to_dict())
    assert any("repl_rl" in command for command in commands)
    assert not [command for command in commands if secret in command]
    [scored] = score([task], [typed], grade, RewardTable(RewardsConfig()))
    assert scored.trajectory.reference == secret
    assert scored.trajectory.grade_reason == f"answer read as held-in, reference read as {secret}: not equal"
