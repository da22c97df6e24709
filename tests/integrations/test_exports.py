"""Sessions in the formats of others, read by the others' own packages in processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_trajectories import line, made

from repl_rl.cli import main
from repl_rl.rollout.scripted import type_session
from repl_rl.trajectory import Compaction, LineKind, StopReason, SubCall, Task, Trajectory, write_jsonl

FORMATS = Path(__file__).parents[2] / ".venv" / "formats"
TASK = Task("sum", "What is 1 + 2?", "3")
TYPED = " # A thought.\n print('shown')\n x = 1 + 2\n submit_final_answer(x)\n"
READ_ATIF = """
import json, pathlib, sys
import atif
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    print(json.dumps(atif.Trajectory.model_validate_json(path.read_text()).to_json_dict()))
"""


def with_formats(*command: str) -> str:
    """What Python says that has these packages besides."""
    environment = os.environ | {"PYTHONPATH": str(FORMATS)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sessions() -> list[Trajectory]:
    """A right one, one that was compacted and asked a model, and one that the machinery lost."""
    right = asyncio.run(type_session(TASK, TYPED))
    right = replace(right, outcome_reward=1.0, reference="3", grade_reason="equal")
    asked = SubCall("Who?", "Me.", trajectory=replace(made([line("me")]), task_id="sub"))
    half = line("x", output="half a character: \ud83d\n")
    long = made([half, replace(line("ask()"), subcalls=(asked,)), line("y")])
    long = replace(long, task_id="sum", outcome_reward=0.0, compactions=(Compaction(2, "What was: x\n>>>", (7, 8)),))
    lost = replace(made([line("z", LineKind.KILLED)], "other"), stop_reason=StopReason.ABORTED, error="no kernel")
    return [right, long, lost]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, sessions: list[Trajectory]) -> Path:
    path = tmp_path_factory.mktemp("exports") / "sessions.jsonl"
    write_jsonl(path, sessions)
    return path


@pytest.mark.more
def test_atif_reads_what_was_typed_and_shown(file: Path, sessions: list[Trajectory]) -> None:
    folder = file.with_name("atif")
    with_formats("-m", "repl_rl.cli", "export", str(file), "--to", "atif", "--out", str(folder), "--model", "me")
    right, long, lost = map(json.loads, with_formats("-c", READ_ATIF, str(folder)).splitlines())
    assert right["agent"]["model_name"] == "me"
    assert [step["source"] for step in right["steps"]] == ["user", *["agent"] * 4]
    assert right["steps"][0]["message"] == TASK.question

    text = right["steps"][0]["extra"]["prompt"]
    for step in right["steps"][1:]:
        text += step["message"] + step["extra"]["output"]
    session = sessions[0]
    assert text.startswith(session.prompt)
    assert "".join(step["message"] for step in right["steps"][1:]) == TYPED
    calls = [call["arguments"]["code"] for step in right["steps"][1:] for call in step.get("tool_calls", [])]
    assert calls == [cell.source for line in session.lines for cell in line.cells]
    assert right["steps"][2]["observation"]["results"] == [{"source_call_id": "1.0", "content": "shown\n"}]
    ids: list[int] = []
    for step in right["steps"][1:]:
        ids += step["metrics"]["completion_token_ids"]
    sampled = zip(session.completion_ids, session.sampled_mask, strict=True)
    assert ids == [token for token, was_sampled in sampled if was_sampled]
    assert right["steps"][1]["metrics"]["prompt_token_ids"] == list(session.prompt_ids)
    assert right["extra"]["outcome_reward"] == 1.0
    assert right["final_metrics"]["total_completion_tokens"] == session.sampled_tokens

    assert long["steps"][1]["observation"]["results"][0]["content"] == "half a character: \\ud83d\n"
    assert [step["source"] for step in long["steps"]] == ["user", "agent", "system", "agent", "agent"]
    assert long["steps"][3]["metrics"]["prompt_token_ids"] == [7, 8]
    [result] = [each for each in long["steps"][3]["observation"]["results"] if "subagent_trajectory_ref" in each]
    [subagent] = long["subagent_trajectories"]
    assert result["subagent_trajectory_ref"][0]["trajectory_id"] == subagent["trajectory_id"]
    assert lost["extra"]["error"] == "no kernel"


@pytest.mark.more
def test_inspect_reads_samples_epochs_and_grades(file: Path) -> None:
    log_file = file.with_name("log.eval")
    with_formats("-m", "repl_rl.cli", "export", str(file), "--to", "inspect", "--out", str(log_file), "--model", "m/1")
    log: dict[str, Any] = json.loads(with_formats("-m", "inspect_ai", "log", "dump", str(log_file)))
    assert (log["status"], log["eval"]["model"], log["eval"]["dataset"]["samples"]) == ("success", "m/1", 2)
    assert log["eval"]["config"]["epochs"] == 2
    samples = {(sample["id"], sample["epoch"]): sample for sample in log["samples"]}
    assert sorted(samples) == [("other", 1), ("sum", 1), ("sum", 2)]
    right = samples["sum", 1]
    assert right["scores"]["grade"]["value"] == 1.0
    assert right["scores"]["grade"]["explanation"] == "equal"
    assert right["target"] == "3"
    roles = [message["role"] for message in right["messages"]]
    assert roles == ["user", "assistant", "assistant", "tool", "assistant", "tool", "assistant", "tool"]
    assert samples["other", 1]["error"]["message"] == "no kernel"
    [score] = log["results"]["scores"]
    assert (score["metrics"]["mean"]["value"], score["scored_samples"]) == (0.5, 2)


@pytest.mark.more
def test_inspects_viewer_takes_the_log(file: Path) -> None:
    logs = file.with_name("logs")
    logs.mkdir()
    with_formats("-m", "repl_rl.cli", "export", str(file), "--to", "inspect", "--out", str(logs / "a.eval"))
    bundle = file.with_name("bundle")
    with_formats("-m", "inspect_ai", "view", "bundle", "--log-dir", str(logs), "--output-dir", str(bundle))
    listing = json.loads((bundle / "logs" / "listing.json").read_text())
    assert listing["a.eval"]["status"] == "success"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "atif", "--out", "folder"], "pip install atif"),
        (["--to", "inspect", "--out", "log.eval"], "pip install inspect-ai"),
        (["--to", "inspect", "--out", "folder"], "ends in .eval or .json"),
    ],
)
def test_what_is_missing_is_told(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(file), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
