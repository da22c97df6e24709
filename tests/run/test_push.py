"""What `repl-rl push` writes: a model, a card and a data set that others load without this package."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from integrations.chat_server import JsonHandler, serving
from run.conftest import STORED

from repl_rl import Trajectory, read_jsonl
from repl_rl.cli import main
from repl_rl.config import load_config

Said = Callable[..., str]


@pytest.fixture
def here(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a complete run, `run`, and the model that it began with. No token is in reach."""
    shutil.copytree(stored / "model", stored / "run" / "model")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return stored


def header(card: Path) -> Any:
    """The metadata at the head of a card."""
    return yaml.safe_load(card.read_text(encoding="utf-8").split("---")[1])


def table_rows(folder: Path, split: str) -> list[dict[str, Any]]:
    from datasets import Dataset

    data = Dataset.from_parquet(
        str(folder / f"data/{split}-00000-of-00001.parquet"), cache_dir=str(folder.parent / "cache")
    )
    return list(data)


@pytest.mark.more
def test_a_folder_gets_model_card_and_rollouts(here: Path, said: Said) -> None:
    (here / "run" / "model" / "training_args.bin").write_bytes(b"pickled")
    (here / "run" / "trace").mkdir()
    (here / "run" / "trace" / "step_00001.json.gz").write_bytes(b"a timeline")
    told = said("push", "run", "--to", "./out/pushed/")
    assert "8 rollouts in split train" in told
    assert "timelines (trace/) are left out: they say when this machine did what" in told
    pushed = here / "out" / "pushed"
    assert sorted(path.name for path in here.glob("*")) == ["model", "out", "run", "sample.yaml", "step_00003.jsonl"]
    assert {str(path.relative_to(pushed)) for path in pushed.rglob("*") if path.is_file()} == {
        *(f"model/{path.name}" for path in (STORED / "model").iterdir()),
        *("model/README.md", "model/curve.svg", "model/run_config.yaml"),
        *("rollouts/README.md", "rollouts/data/train-00000-of-00001.parquet"),
        "rollouts/data/heldout-00000-of-00001.parquet",
    }
    assert (pushed / "model/model.safetensors").read_bytes() == (STORED / "model/model.safetensors").read_bytes()
    assert (pushed / "model/curve.svg").read_text().startswith("<?xml")
    assert load_config(str(pushed / "model/run_config.yaml")).train.steps == 2
    card = (pushed / "model/README.md").read_text(encoding="utf-8")
    assert header(pushed / "model/README.md")["library_name"] == "transformers"
    assert "![Learning curve: the share of problems solved, by step](curve.svg)" in card
    assert "| all | 2 | 0.0% | 0.0% |\n| product | 1 | 0.0% | 0.0% |" in card
    assert ">>> # Compute the product of 3485 and 5655.\n>>>" in card
    assert "from_pretrained('./out/pushed/model')" in card
    assert "estimator: return_to_go" in card
    assert header(pushed / "rollouts/README.md")["configs"][0]["data_files"] == [
        {"split": "train", "path": "data/train-00000-of-00001.parquet"},
        {"split": "heldout", "path": "data/heldout-00000-of-00001.parquet"},
    ]


@pytest.mark.more
@pytest.mark.parametrize("to", ["./out/pushed/", "user/name"])
def test_a_dry_run_lists_what_would_be_published_and_writes_nothing(here: Path, said: Said, to: str) -> None:
    before = sorted(here.rglob("*"))
    shown = said("push", "run", "--to", to, "--dry-run")
    assert sorted(here.rglob("*")) == before
    names = [row.split()[-1] for row in shown.splitlines() if " MB  " in row]
    assert {"model/model.safetensors", "model/README.md", "rollouts/data/heldout-00000-of-00001.parquet"} <= set(names)
    assert "8 rollouts in split train" in shown
    assert shown.endswith(f" MB, would be pushed to {to}; nothing was\n")
    assert shown.splitlines()[-1].startswith(f"{len(names)} files, ")


def test_rows_are_trajectories_to_the_token(here: Path) -> None:
    assert main(["push", "run", "--to", "./out"]) == 0
    files = [STORED / f"run/rollouts/step_{step:05d}.jsonl" for step in (1, 2)]
    told = [(step, trajectory) for step, file in enumerate(files, 1) for trajectory in read_jsonl(file)]
    rows = table_rows(here / "out/rollouts", "train")
    assert [(row["step"], Trajectory.from_dict(row)) for row in rows] == told
    first = told[0][1]
    assert rows[0]["transcript"].startswith(first.prompt + first.lines[0].text)
    assert rows[0]["reward"] == pytest.approx(sum(line.reward or 0.0 for line in first.lines))


def test_rows_hold_what_few_trajectories_have(here: Path) -> None:
    """Branches, weights that changed, calls, answers, and text that no file can hold."""
    path = here / "run/rollouts/step_00002.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    record["branch"] = {"parent": 0, "line": 1, "weight": 0.5, "by": "replay"}
    record |= {"updates": [[1, 2]], "answer": ["'\ud800'"]}
    record["lines"][0] |= {
        "calls": [{"name": "look", "error_name": "ValueError", "duration_s": 0.5}],
        "subcalls": [{"prompt": "2?", "text": "3", "tokens": 7}],
        "cells": [{"source": "x", "output": "1\n", "images": [base64.b64encode(b"png").decode()]}],
    }
    path.write_text(json.dumps(record) + "\n" + '{"cut off')
    assert main(["push", "run", "--to", "./out"]) == 0
    read = Trajectory.from_dict(table_rows(here / "out/rollouts", "train")[-1])
    assert read.branch is not None
    assert (read.branch.by, read.branch.weight, read.updates, read.answer) == ("replay", 0.5, ((1, 2),), (r"'\ud800'",))
    line = read.lines[0]
    assert (line.calls[0].error_name, line.subcalls[0].tokens, line.cells[0].output) == ("ValueError", 7, "1\n")


def test_reference_answers_are_published_of_training_alone(here: Path) -> None:
    for path in (here / "run/rollouts/step_00001.jsonl", here / "run/eval/step_00002.jsonl"):
        records = [json.loads(line) | {"reference": "the-key", "grade_reason": "not the-key"} for line in path.open()]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["push", "run", "--to", "./out"]) == 0
    first = Trajectory.from_dict(table_rows(here / "out/rollouts", "train")[0])
    assert (first.reference, first.grade_reason) == ("the-key", "not the-key")
    heldout = here / "out/rollouts/data/heldout-00000-of-00001.parquet"
    assert {row["reference"] for row in table_rows(here / "out/rollouts", "heldout")} == {None}
    assert b"the-key" not in heldout.read_bytes()


def test_what_is_the_machines_own_stays_here(here: Path) -> None:
    text = (here / "run/config.yaml").read_text()
    text = text.replace("path: model", f"path: {here / 'model'}").replace("trl: {}", "trl: {hub_token: hf_secret}")
    (here / "run/config.yaml").write_text(text)
    assert main(["push", "run", "--to", "./out"]) == 0
    for path in (here / "out").rglob("*"):
        if path.is_file():
            assert str(here).encode() not in path.read_bytes()
            assert b"hf_secret" not in path.read_bytes()
    assert "path: model\n" in (here / "out/model/run_config.yaml").read_text()


def test_hostile_text_stays_in_its_place(here: Path) -> None:
    def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            change(row)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    families = {"families": {"a|b <script>": 0.5}}
    rewrite(here / "run/metrics.jsonl", lambda row: row.update(families if row["kind"] == "eval" else {}))
    output = {"output": "```\n<img src=x>\n````\n"}
    rewrite(here / "run/eval/step_00002.jsonl", lambda record: record["lines"][0].update(output))
    assert main(["push", "run", "--to", "./out"]) == 0
    card = (here / "out/model/README.md").read_text()
    assert r"| a\|b &lt;script&gt; |" in card
    assert card.count("`````") == 2
    assert card.index("`````python") < card.index("<img src=x>") < card.rindex("`````")


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("out", "neither user/name on the hub (no user is named) nor a folder: write a folder as ./out"),
        ("a/b/c", "neither user/name on the hub"),
        ("me/what is this", "neither user/name on the hub"),
        ("me/name", "there is no token: make one at https://huggingface.co/settings/tokens"),
        ("./model", "--to model is not empty"),
        ("./sample.yaml", "is a file; give another folder"),
    ],
)
def test_bad_places_are_refused_before_anything_is_written(here: Path, said: Said, to: str, message: str) -> None:
    before = sorted(here.rglob("*"))
    assert message in said("push", "run", "--to", to, code=2)
    assert sorted(here.rglob("*")) == before


def test_a_run_without_a_model_says_how_to_get_one(here: Path, said: Said) -> None:
    shutil.rmtree(here / "run/model")
    message = said("push", "run", "--to", "./out", code=2)
    assert "run has no model to push" in message
    assert "newest checkpoint is of step 2 of 2" in message
    assert "repl-rl train --resume run" in message
    assert not (here / "out").exists()
    assert "model is not a run" in said("push", "model", "--to", "./out", code=2)


def test_the_model_of_an_earlier_step_is_not_pushed(here: Path, said: Said) -> None:
    """Of a run that was resumed, and then interrupted."""
    state = json.loads((here / "run/checkpoints/checkpoint-2/trainer_state.json").read_text("utf-8"))
    later = here / "run/checkpoints/checkpoint-3"
    later.mkdir()
    (later / "trainer_state.json").write_text(json.dumps(state | {"global_step": 3}), "utf-8")
    message = said("push", "run", "--to", "./out", code=2)
    assert "run has a model of another step: it is written when training ends" in message
    assert "newest checkpoint is of step 3 of 2" in message
    assert not (here / "out").exists()


def test_a_run_without_rollouts_gives_a_model_alone(here: Path, said: Said) -> None:
    shutil.rmtree(here / "run/rollouts")
    shutil.rmtree(here / "run/eval")
    shown = said("push", "run", "--to", "./out")
    assert "holds no rollouts" in shown
    assert "pushed to out/model\n" in shown
    assert [path.name for path in (here / "out").iterdir()] == ["model"]
    assert "A rollout" not in (here / "out/model/README.md").read_text()


def said_by(name: str, here: Path, tmp_path: Path) -> list[str]:
    """What a program beside this file prints that can't import this package."""
    program = Path(__file__).with_name(f"{name}.py.txt").read_text(encoding="utf-8")
    without = "import sys\nsys.modules['repl_rl'] = None  # importing it fails\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", without + program],
        cwd=here,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_others_load_it_without_this_package(here: Path, tmp_path: Path) -> None:
    assert main(["push", "run", "--to", "./out"]) == 0
    assert said_by("load_pushed", here, tmp_path) == [
        "{'train': 8, 'heldout': 4} ['step', 'task_id', 'transcript']",
        "True 2",
        "[]",
    ]


@pytest.mark.slow
def test_a_run_of_adapters_gives_merged_weights_and_the_adapter(here: Path, tmp_path: Path) -> None:
    options = ["--set", "train.lora={r: 2}", "--set", "train.steps=1", "--set", "engine.deterministic=false"]
    assert main(["train", "sample.yaml", "--runs", "runs", *options]) == 0
    assert main(["push", "runs/stored", "--to", "./out"]) == 0
    settings = json.loads((here / "out/model/adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["base_model_name_or_path"]) == (2, "model")
    assert "and alone in the folder `adapter`, for PEFT." in (here / "out/model/README.md").read_text()
    assert said_by("load_adapter", here, tmp_path) == ["True"]


class Hub(JsonHandler):
    """The part of the hub's interface that an upload uses. Commits are kept as they came, by repository."""

    made: list[tuple[str, str, bool]] = []  # noqa: RUF012
    commits: dict[str, dict[str, bytes]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/whoami-v2":
            self.answer({"name": "me", "type": "user"})
        else:
            self.answer({"id": "me/x", "sha": "0" * 40})

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            asked = json.loads(sent)
            kind = asked.get("type", "model")
            name, is_private = f"{asked['organization']}/{asked['name']}", asked.get("visibility") == "private"
            self.made.append((kind, name, asked.get("private") or is_private))
            self.answer({"url": f"https://huggingface.co/{name}"})
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(sent)["files"]]
            self.answer({"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]})
        elif "/commit/" in self.path:
            rows = [json.loads(line)["value"] for line in sent.splitlines() if b'"file"' in line]
            repository = self.path.removeprefix("/api/").split("/commit/")[0]
            self.commits[repository] = {row["path"]: base64.b64decode(row["content"]) for row in rows}
            address = f"https://huggingface.co/me/typist/commit/{'1' * 40}"
            self.answer({"success": True, "commitOid": "1" * 40, "commitUrl": address})
        else:
            self.answer({"errors": [], "warnings": []})


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.made.clear()
    Hub.commits.clear()
    with serving(Hub) as address:
        yield address


def push_to(hub: str, here: Path, token: str, *more: str) -> subprocess.CompletedProcess[str]:
    """`repl-rl push` in a process of its own: the client reads the hub's address when it is imported."""
    return subprocess.run(
        [sys.executable, "-m", "repl_rl", "push", "run", "--to", "me/typist", *more],
        env={**os.environ, "HF_ENDPOINT": hub, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_hub_gets_two_repositories(here: Path, hub: str) -> None:
    """A token that the hub refuses is an error before anything is made."""
    refused = push_to(hub, here, "hf_wrong")
    assert (refused.returncode, Hub.made) == (2, [])
    assert "--to me/typist" in refused.stderr
    assert "https://huggingface.co/settings/tokens" in refused.stderr
    done = push_to(hub, here, "hf_right", "--private")
    assert done.returncode == 0, done.stderr
    assert Hub.made == [("dataset", "me/typist-rollouts", True), ("model", "me/typist", True)]
    model, rollouts = Hub.commits["models/me/typist"], Hub.commits["datasets/me/typist-rollouts"]
    assert model["model.safetensors"] == (STORED / "model/model.safetensors").read_bytes()
    assert set(rollouts) == {"README.md", *(f"data/{split}-00000-of-00001.parquet" for split in ("train", "heldout"))}
    card = model["README.md"].decode()
    assert yaml.safe_load(card.split("---")[1])["datasets"] == ["me/typist-rollouts"]
    assert "from_pretrained('me/typist')" in card
    assert "https://huggingface.co/datasets/me/typist-rollouts" in card
