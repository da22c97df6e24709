"""Sessions in the formats of others, read by the others' own packages in processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from made_trajectories import line, made

from repl_rl.cli import main
from repl_rl.rollout.scripted import type_session
from repl_rl.trajectory import (
    Compaction,
    LineKind,
    RewardPart,
    StopReason,
    SubCall,
    Task,
    ToolCall,
    Trajectory,
    read_jsonl,
    write_jsonl,
)

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
    asked = SubCall("Who?", "Me.", tokens=3, trajectory=replace(made([line("me")]), task_id="sub"))
    half = line("x", output="half a character: \ud83d\n")
    paid = replace(
        line("y", fingerprint="f1"),
        reward=0.5,
        reward_parts=(RewardPart("outcome", 0.75), RewardPart("novelty", -0.25)),
        calls=(ToolCall("search", "KeyError", 0.5),),
    )
    long = made([half, replace(line("ask()"), subcalls=(asked,)), paid])
    long = replace(
        long,
        task_id="sum",
        outcome_reward=0.0,
        environment_reward=0.25,
        environment_reason="it saw \ud83d",
        version=5,
        updates=((2, 6),),
        answer=("x",),
        answer_forms=("Symbol('x')",),
        compactions=(Compaction(2, "What was: x\n>>>", (7, 8)),),
    )
    lost = replace(made([line("z", LineKind.KILLED)], "other"), stop_reason=StopReason.ABORTED, error="no kernel")
    return [right, long, lost]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, sessions: list[Trajectory]) -> Path:
    path = tmp_path_factory.mktemp("exports") / "sessions.jsonl"
    write_jsonl(path, sessions)
    return path


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as a training step writes it: a root, and a branch that typed two other lines after the first one."""
    root = replace(made([line("a"), line("b")]), outcome_reward=0.0)
    other = replace(made([line("a"), line("c"), line("d")]), outcome_reward=1.0, version=1)
    path = tmp_path_factory.mktemp("trees") / "step_00001.jsonl"
    write_jsonl(path, [root, other.as_branch(1, 0, 0.5)])
    return path


def atif_documents(file: Path, *options: str) -> list[dict[str, Any]]:
    """The documents of a file, as the package reads them."""
    folder = file.with_suffix(".atif")
    with_formats("-m", "repl_rl.cli", "export", str(file), "--to", "atif", "--out", str(folder), *options)
    return [json.loads(document) for document in with_formats("-c", READ_ATIF, str(folder)).splitlines()]


def inspect_log(file: Path, *options: str) -> dict[str, Any]:
    """The log of a file, as the package reads it."""
    log_file = file.with_suffix(".eval")
    with_formats("-m", "repl_rl.cli", "export", str(file), "--to", "inspect", "--out", str(log_file), *options)
    log: dict[str, Any] = json.loads(with_formats("-m", "inspect_ai", "log", "dump", str(log_file)))
    return log


@pytest.mark.more
def test_atif_reads_what_was_typed_and_shown(file: Path, sessions: list[Trajectory]) -> None:
    right, long, lost = atif_documents(file, "--model", "me")
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

    # All that training needs of a session is in its document.
    for document, session in zip((right, long, lost), sessions, strict=True):
        completion_ids: list[int] = []
        sampled_mask: list[bool] = []
        logprobs: list[float] = []
        for step in document["steps"]:
            if step["source"] != "agent":
                continue
            sampled_ids = step["metrics"]["completion_token_ids"]
            output_ids = step["metrics"].get("extra", {}).get("output_token_ids", [])
            completion_ids += sampled_ids + output_ids
            sampled_mask += [True] * len(sampled_ids) + [False] * len(output_ids)
            logprobs += step["metrics"]["logprobs"] + [0.0] * len(output_ids)
        assert completion_ids == list(session.completion_ids)
        assert sampled_mask == list(session.sampled_mask)
        assert logprobs == list(session.logprobs)
    agent_steps = [step for step in long["steps"] if step["source"] == "agent"]
    assert [step["metrics"]["extra"]["token_versions"] for step in agent_steps] == [[5], [6], [6]]
    assert "token_versions" not in right["steps"][1]["metrics"]["extra"]
    assert long["extra"]["version"] == 5
    assert long["extra"]["environment_reward"] == 0.25
    assert long["extra"]["environment_reason"] == "it saw \\ud83d"
    assert long["extra"]["answer_forms"] == ["Symbol('x')"]
    last = agent_steps[2]["extra"]
    assert last["reward_parts"] == [{"source": "outcome", "amount": 0.75}, {"source": "novelty", "amount": -0.25}]
    assert last["calls"] == [{"name": "search", "error_name": "KeyError", "duration_s": 0.5}]
    assert last["fingerprint"] == "f1"
    assert result["extra"]["tokens"] == 3
    assert "branch" not in long["extra"]


@pytest.mark.more
def test_a_branch_is_a_whole_session_that_says_which_lines_are_its_own(tree: Path) -> None:
    root, branch = atif_documents(tree)
    assert [step["message"] for step in branch["steps"][1:]] == [" a\n", " c\n", " d\n"]
    assert [step.get("is_copied_context", False) for step in branch["steps"]] == [False, True, False, False]
    assert branch["extra"]["branch"] == {"parent": 0, "line": 1, "weight": 0.5, "by": "replay"}
    assert branch["extra"]["first_own_line"] == 1
    assert branch["steps"][0]["extra"]["prompt"] == root["steps"][0]["extra"]["prompt"] == ">>>"
    assert branch["steps"][1]["metrics"]["prompt_token_ids"] == [0]
    # The parent's line was typed by version 0, and its own lines by version 1.
    assert [step["metrics"]["extra"]["token_versions"] for step in branch["steps"][1:]] == [[0], [1], [1]]
    assert not any("is_copied_context" in step for step in root["steps"])

    log = inspect_log(tree, "--model", "m")
    first, second = log["samples"]
    typed = [message for message in second["messages"] if message["role"] == "assistant"]
    assert [message["content"] for message in typed] == [" a\n", " c\n", " d\n"]
    assert [message["metadata"].get("of_parent", False) for message in typed] == [True, False, False]
    assert second["metadata"]["first_own_line"] == 1
    assert second["metadata"]["branch"]["line"] == 1
    assert "branch" not in first["metadata"]
    # Each sampled token is counted once: two of the root, two of the branch.
    assert log["stats"]["model_usage"]["m"]["output_tokens"] == 4


@pytest.mark.more
def test_inspect_reads_samples_epochs_and_grades(file: Path) -> None:
    recorded_at = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    os.utime(file, (recorded_at.timestamp(), recorded_at.timestamp()))
    log = inspect_log(file, "--model", "m/1")
    for time in (log["eval"]["created"], log["stats"]["started_at"], log["stats"]["completed_at"]):
        assert datetime.fromisoformat(time) == recorded_at
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

    long = samples["sum", 2]["messages"]
    assert [message["role"] for message in long] == [
        *("user", "assistant", "tool"),
        *("user", "assistant", "tool", "tool"),
        *("assistant", "tool"),
    ]
    assert long[3]["content"] == "What was: x\n>>>"
    assert long[3]["metadata"] == {"compaction": True}
    call = long[4]["tool_calls"][1]
    assert (call["function"], call["arguments"]) == ("subcall", {"prompt": "Who?"})
    assert (long[6]["content"], long[6]["tool_call_id"]) == ("Me.", call["id"])


@pytest.mark.more
def test_inspects_viewer_takes_the_log(file: Path) -> None:
    logs = file.with_name("logs")
    logs.mkdir()
    command = ["export", str(file), "--to", "inspect", "--out", str(logs / "a.eval"), "--model", "m"]
    with_formats("-m", "repl_rl.cli", *command)
    bundle = file.with_name("bundle")
    with_formats("-m", "inspect_ai", "view", "bundle", "--log-dir", str(logs), "--output-dir", str(bundle))
    listing = json.loads((bundle / "logs" / "listing.json").read_text())
    assert listing["a.eval"]["status"] == "success"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "atif", "--out", "folder"], "pip install atif"),
        (["--to", "inspect", "--out", "log.eval", "--model", "m"], "pip install inspect-ai"),
        (["--to", "inspect", "--out", "folder"], "ends in .eval or .json"),
        (["--to", "inspect", "--out", "log.eval"], "does not say which model typed"),
        (["--to", "atif", "--out", "folder", "--name", "qwen/1.5b"], "--name qwen/1.5b: documents are files"),
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


def test_a_folder_with_documents_is_refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older = tmp_path / "older-00000.json"
    older.write_text("{}")
    assert main(["export", str(file), "--to", "atif", "--out", str(tmp_path)]) == 2
    assert "has documents already (older-00000.json, 1 in all)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [older]


def test_a_branch_without_its_parent_is_named_with_its_file(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, branch = read_jsonl(tree)
    orphans = tmp_path / "right.jsonl"
    write_jsonl(orphans, [replace(root, task_id="other"), branch])
    assert main(["export", str(orphans), "--to", "atif", "--out", str(tmp_path / "folder")]) == 2
    told = capsys.readouterr().err
    assert f"{orphans}#1: session 0 of task 't'" in told
    assert "export a file that holds its parent too" in told


@pytest.mark.more
def test_each_document_names_the_model_of_its_session(tmp_path: Path, sessions: list[Trajectory]) -> None:
    right, long, lost = sessions
    labels = [{"model": "small"}, {"model": "large"}]
    several = tmp_path / "several.jsonl"
    write_jsonl(several, [right, lost], labels=labels)
    assert [document["agent"]["model_name"] for document in atif_documents(several)] == ["small", "large"]
    one = tmp_path / "one.jsonl"
    write_jsonl(one, [right, long], labels=labels[:1] * 2)
    assert [document["agent"]["model_name"] for document in atif_documents(one)] == ["small", "small"]


def test_a_log_is_of_one_model(tmp_path: Path, sessions: list[Trajectory], capsys: pytest.CaptureFixture[str]) -> None:
    right, _, lost = sessions
    several = tmp_path / "several.jsonl"
    write_jsonl(several, [right, lost], labels=[{"model": "small"}, {"model": "large"}])
    assert main(["export", str(several), "--to", "inspect", "--out", str(tmp_path / "log.eval")]) == 2
    assert "sessions of 2 models (large, small), and a log is of one" in capsys.readouterr().err
