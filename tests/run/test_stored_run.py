"""What an earlier version stored opens, resumes, replays and can be looked at.

`stored/` holds a tiny checkpoint, a config, and the run of two steps that version 0.1.0 made of them on 2026-11-22;
`step_00003.jsonl` is what that version sampled when it resumed the run for one more step.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repl_rl import LineKind, StopReason, read_jsonl
from repl_rl.cli import main
from repl_rl.config import load_config

STORED = Path(__file__).parent / "stored"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, from whose folder the run's model is `model`."""
    shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(tmp_path / "stored")
    return tmp_path / "stored"


def test_its_config_is_read_and_means_the_same(here: Path) -> None:
    """Of what a file leaves out, only the credit has other defaults now; a run keeps those that it began with."""
    given, resolved = load_config("sample.yaml"), load_config("run/config.yaml")
    assert given.model_copy(update={"credit": resolved.credit}) == resolved
    assert (resolved.credit.baseline, resolved.credit.scale) == ("mean", "group")
    assert resolved.rewards.kinds[LineKind.SYNTAX_ERROR] == -0.3
    assert (resolved.engine.backend, resolved.credit.estimator) == ("transformers", "return_to_go")


def test_its_trajectories_are_read(here: Path) -> None:
    first = list(read_jsonl(Path("run/rollouts/step_00001.jsonl")))
    raw = [json.loads(line) for line in Path("run/rollouts/step_00001.jsonl").read_text().splitlines()]
    assert len(first) == len(raw) == 4
    for trajectory, record in zip(first, raw, strict=True):
        again = json.loads(json.dumps(trajectory.to_dict()))
        assert {name: again[name] for name in record if name != "lines"} == {
            name: value for name, value in record.items() if name != "lines"
        }
        for line, old in zip(again["lines"], record["lines"], strict=True):
            assert {name: line[name] for name in old} == old
    assert first[0].stop_reason is StopReason.MAX_LINES


def test_it_can_be_looked_at(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "run/rollouts/step_00001.jsonl"]) == 0
    assert "Compute 99**344 mod 862." in capsys.readouterr().out
    assert main(["view", "run", "--export", "run.html"]) == 0
    page = Path("run.html").read_text(encoding="utf-8")
    assert "Compute 99**344 mod 862." in page
    assert "modpow-train-99-344-862" in page


def test_it_replays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "run/rollouts/step_00001.jsonl"]) == 0
    assert "4 equal" in capsys.readouterr().out


def test_it_goes_on_as_it_would_have_gone_on(here: Path) -> None:
    assert main(["train", "--resume", "run", "--set", "train.steps=3"]) == 0
    then, now = (list(read_jsonl(Path(path))) for path in ("step_00003.jsonl", "run/rollouts/step_00003.jsonl"))
    assert [one.completion_ids for one in now] == [one.completion_ids for one in then]
    for new, old in zip(now, then, strict=True):
        assert new.logprobs == pytest.approx(old.logprobs, abs=1e-4)
        assert [line.reward for line in new.lines] == pytest.approx([line.reward for line in old.lines])
        assert [line.advantage for line in new.lines] == pytest.approx([line.advantage for line in old.lines], abs=1e-6)
    steps = [json.loads(row)["step"] for row in Path("run/metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 2, 3, 3]
