"""Runs followed by the real wandb (offline), trackio (local) and tensorboard, read back from what these wrote."""

import html
import json
import logging
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import rows
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from tracked import HOSTILE, TRACKERS
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from repl_rl.config import Config, load_config, parse_config
from repl_rl.config.train import TRACKERS as KNOWN
from repl_rl.errors import ConfigError
from repl_rl.run.folder import RunFolder
from repl_rl.run.trackers import Trackers, as_code, columns, open_trackers, require_trackers, spread
from repl_rl.trajectory import read_jsonl


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `tracked.py` has been: without an account, a home or a network."""
    folder = tmp_path_factory.mktemp("tracked")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TRACKIO_", "HF_"))}
    own = {"HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    own |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, str(Path(__file__).with_name("tracked.py"))]
    done = subprocess.run(command, cwd=folder, env=kept | own, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said").write_text(done.stdout + done.stderr)
    return folder


@dataclass(frozen=True, slots=True)
class WandbRun:
    """What the offline files of one sitting hold."""

    id: str
    project: str
    name: str
    config: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    files: Path

    def column(self, key: str) -> list[tuple[int, Any]]:
        return [(row["train/global_step"], row[key]) for row in self.rows if key in row]

    def tables(self, key: str) -> dict[int, Any]:
        return {step: json.loads((self.files / entry["path"]).read_text()) for step, entry in self.column(key)}


def wandb_runs(folder: Path) -> list[WandbRun]:
    return [read_wandb(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime)]


def read_wandb(path: Path) -> WandbRun:
    from wandb.proto import wandb_internal_pb2

    about: dict[str, str] = {}
    config: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for stored in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(stored)
        if record.HasField("run"):
            about = {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
        for update in (*record.run.config.update, *record.config.update):
            config[update.key] = json.loads(update.value_json)
        if record.HasField("history"):
            rows.append(_row(record.history.item))
    return WandbRun(**about, config=config, rows=tuple(rows), files=path.parent / "files")


def _row(items: Iterable[Any]) -> dict[str, Any]:
    """Keys and values; those of a table and the like are in parts, `["train/rollouts", "path"]`."""
    row: dict[str, Any] = {}
    for item in items:
        head, *below = item.nested_key or [item.key]
        value = json.loads(item.value_json)
        if below:
            row.setdefault(head, {})["/".join(below)] = value
        else:
            row[head] = value
    return row


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, chunks of checksum, length, type and bytes."""
    header_bytes, block_bytes = 7, 32 * 1024
    at, parts = header_bytes, b""
    while at + header_bytes <= len(data):
        if block_bytes - at % block_bytes < header_bytes:
            at += block_bytes - at % block_bytes
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + header_bytes])
        at += header_bytes + length
        parts += data[at - length : at]
        if kind in (1, 4):  # whole, or the last part of several
            yield parts
            parts = b""


def trackio_rows(tracked: Path, project: str, table: str) -> Iterator[dict[str, Any]]:
    connection = sqlite3.connect(tracked / "runs" / "tiny" / "trackers" / "trackio" / f"{project}.db")
    try:
        connection.row_factory = sqlite3.Row
        for row in connection.execute(f"SELECT * FROM {table}").fetchall():
            yield {key: _parsed(value) for key, value in dict(row).items()}
    finally:
        connection.close()


def _parsed(value: Any) -> Any:
    text = value.decode("utf-8") if isinstance(value, bytes) else value
    return json.loads(text) if isinstance(text, str) and text[:1] in ("[", "{") else text


def tensorboard(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def scalars(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def texts(events: Any, tag: str) -> dict[int, str]:
    found = events.Tensors(f"{tag}/text_summary")
    return {event.step: event.tensor_proto.string_val[0].decode("utf-8") for event in found}


def metrics(run: Path, kind: str, key: str) -> list[tuple[int, float]]:
    return [(row["step"], row[key]) for row in rows(run, kind)]


def near(pairs: list[tuple[int, float]]) -> list[tuple[int, Any]]:
    """Files of tensorboard hold floats of four bytes."""
    return [(step, pytest.approx(value, rel=1e-5)) for step, value in pairs]


@pytest.mark.slow
def test_tensorboard_has_each_step_once_and_the_config_and_rollouts(tracked: Path) -> None:
    run = tracked / "runs" / "tiny"
    events = tensorboard(run / "trackers" / "tensorboard")
    assert len(list((run / "trackers" / "tensorboard").iterdir())) == 2
    rewards = metrics(run, "train", "reward")
    assert [step for step, _ in rewards] == [1, 2, 3]
    assert scalars(events, "train/reward") == near(rewards)
    assert scalars(events, "train/lines_per_trajectory") == near(metrics(run, "train", "lines_per_trajectory"))
    assert scalars(events, "eval/solve_rate") == near(metrics(run, "eval", "solve_rate"))
    assert [step for step, _ in metrics(run, "eval", "solve_rate")] == [0, 3]
    assert texts(events, "config")[0] == as_code((run / "config.yaml").read_text())
    shown = texts(events, "train/rollouts")
    assert list(shown) == [1, 3]
    assert list(texts(events, "eval/rollouts")) == [0, 2, 3], "tensorboard takes out scalars, and keeps texts"
    first = next(read_jsonl(run / "rollouts" / "step_00003.jsonl"))
    assert shown[3].startswith(f"    step: 3\n    task: {first.task_id}\n    verdict: ")
    assert shown[3].count("    verdict: ") == 3


@pytest.mark.slow
def test_wandb_goes_on_with_the_run_of_the_folder_and_has_its_config_and_rollouts(tracked: Path) -> None:
    run = tracked / "runs" / "tiny"
    first, resumed = wandb_runs(run / "trackers")
    assert first.id == resumed.id == (run / "trackers" / "wandb.id").read_text()
    for sitting in (first, resumed):
        assert (sitting.project, sitting.name) == ("tiny", "tiny")
    assert [step for step, _ in first.column("train/reward")] == [1, 2]
    assert [step for step, _ in first.column("eval/solve_rate")] == [0, 2]
    assert [step for step, _ in resumed.column("eval/solve_rate")] == [3]
    assert [*first.column("train/reward")[:1], *resumed.column("train/reward")] == metrics(run, "train", "reward")
    assert resumed.config["repl_rl"] == load_config(str(run / "config.yaml")).model_dump(mode="json")
    assert (first.config["repl_rl"]["train"]["steps"], resumed.config["repl_rl"]["train"]["steps"]) == (2, 3)
    assert first.config["learning_rate"] == 1e-3
    tables = first.tables("train/rollouts") | resumed.tables("train/rollouts")
    assert list(tables) == [1, 3]
    assert list(first.tables("eval/rollouts") | resumed.tables("eval/rollouts")) == [0, 2, 3]
    for step, table in tables.items():
        trajectories = list(read_jsonl(run / "rollouts" / f"step_{step:05d}.jsonl"))
        shown = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        assert shown == [columns(trajectories[index], step) for index in (0, 1, 2)]
        assert all("\n› " in row["transcript"] for row in shown)


@pytest.mark.slow
def test_trackio_goes_on_with_the_run_of_the_name_and_has_its_rollouts(tracked: Path) -> None:
    run = tracked / "runs" / "tiny"
    logged_rows = list(trackio_rows(tracked, "tiny", "metrics"))
    assert len({row["run_id"] for row in logged_rows}) == 1
    assert {row["run_name"] for row in logged_rows} == {"tiny"}
    logged = [(row["metrics"]["train/global_step"], row["metrics"]) for row in logged_rows]
    rewards = [(step, values["train/reward"]) for step, values in logged if "train/reward" in values]
    assert [step for step, _ in rewards] == [1, 2, 2, 3]
    assert [rewards[0], *rewards[2:]] == metrics(run, "train", "reward")
    assert [step for step, values in logged if "eval/solve_rate" in values] == [0, 2, 3]
    (config,) = [row["config"] for row in trackio_rows(tracked, "tiny", "configs")]
    assert config["repl_rl"]["train"]["report_to"] == TRACKERS
    assert config["repl_rl"]["budget"] == load_config(str(run / "config.yaml")).budget.model_dump(mode="json")
    traces = list(trackio_rows(tracked, "tiny", "traces"))
    kinds = [(0, "eval"), (1, "train"), (2, "eval"), (3, "eval"), (3, "train")]
    expected = [(step, f"{kind}/rollouts") for step, kind in kinds for _ in range(2 if kind == "eval" else 3)]
    assert sorted((row["metadata"]["step"], row["key"]) for row in traces) == expected
    trajectory = next(read_jsonl(run / "rollouts" / "step_00001.jsonl"))
    trace = next(row for row in traces if row["key"] == "train/rollouts")
    assert trace["messages"][0] == {"role": "user", "content": trajectory.prompt}
    assert trace["messages"][1] == {"role": "assistant", "content": trajectory.lines[0].text}
    assert trace["metadata"]["task"] == trajectory.task_id
    assert trace["metadata"]["stop"] == str(trajectory.stop_reason)


@pytest.mark.slow
def test_hostile_text_reaches_every_tracker_made_harmless_and_bounded(tracked: Path) -> None:
    assert "failed, and training goes on" not in (tracked / "said").read_text()
    (run,) = wandb_runs(tracked / "hostile" / "trackers")
    (table,) = run.tables("train/rollouts").values()
    shown = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["lines"] for row in shown] == [3, 1000]
    assert shown[0]["transcript"].startswith("¶ \\ud800\\x00\\x1b[31m\\x85\\u202e</pre><script>")
    assert 10_000 < len(shown[1]["transcript"]) < 20_100
    text = texts(tensorboard(tracked / "hostile" / "trackers" / "tensorboard"), "train/rollouts")[1]
    assert all(line.startswith("    ") or line in ("", "---") for line in text.split("\n"))
    messages = [row["messages"] for row in trackio_rows(tracked, "hostile", "traces")]
    assert [len(each) for each in messages] == [1 + 2 * 3, 1 + 2 * 200 + 1]
    assert messages[1][201] == {"role": "system", "content": "[800 lines left out]"}
    assert all(HOSTILE not in message["content"] for each in messages for message in each)


@pytest.mark.slow
def test_trackers_and_logged_completions_are_as_with_trl_without_a_run_folder(tracked: Path) -> None:
    (run,) = wandb_runs(tracked)
    assert [step for step, _ in run.column("train/reward")] == [1]
    entry = next(row["completions"] for row in run.rows if "completions" in row)
    table = json.loads((run.files / entry["path"]).read_text())
    assert table["columns"][:3] == ["step", "prompt", "completion"]
    assert [row[1] for row in table["data"]] == ["What is a?", "What is a?"]
    logged = [row["metrics"] for row in trackio_rows(tracked, "plain", "metrics")]
    assert any("completions" in row for row in logged)
    assert [row["train/global_step"] for row in logged if "train/reward" in row] == [1]
    assert len(list((tracked / "plain" / "completions").glob("*.parquet"))) == 1


def with_tensorboard(folder: Path, **settings: Any) -> RecordedTrainer:
    settings = {"per_device_train_batch_size": 2, "report_to": ["tensorboard"], **settings}
    return recorded_trainer(folder, recorded, make_tasks_named("a"), **settings)


@pytest.mark.more
def test_a_tracker_that_fails_is_told_about_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = with_tensorboard(tmp_path, max_steps=3)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with caplog.at_level(logging.WARNING, "repl_rl"), open_trackers(trainer, Config(), RunFolder(tmp_path)) as trackers:
        for name in ("add_scalar", "add_text", "flush"):
            monkeypatch.setattr(f"torch.utils.tensorboard.SummaryWriter.{name}", fail)
        trainer.train()
        trackers.evaluated({"step": 3, "solve_rate": 0.5, "problems": 2, "seconds": 1.0, "families": {}}, [])
    assert trainer.state.global_step == 3
    said = [record.getMessage() for record in caplog.records if record.name == "repl_rl.run.trackers"]
    [message] = said
    assert message.startswith("the tracker tensorboard failed, and training goes on; its run may lack rows: tracker ")
    assert "' raised OSError: [Errno 28] No space left on device (" in message


@pytest.mark.more
def test_a_tracker_that_cannot_be_started_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "trackers").write_text("a file, where a folder has to be")
    trainer = with_tensorboard(tmp_path)
    expected = "train.report_to names tensorboard, which can't be started: .*; or take it out"
    with pytest.raises(ConfigError, match=expected), open_trackers(trainer, Config(), RunFolder(tmp_path)):
        pass


@pytest.mark.more
def test_only_the_main_process_has_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = with_tensorboard(tmp_path)
    monkeypatch.setenv("RANK", "1")
    with open_trackers(trainer, Config(), RunFolder(tmp_path)):
        monkeypatch.delenv("RANK")
        trainer.train()
    kinds = {type(callback) for callback in trainer.callback_handler.callbacks}
    assert Trackers in kinds
    assert not kinds & set(INTEGRATION_TO_CALLBACK.values())
    assert not (tmp_path / "trackers").exists()


def test_one_name_needs_no_list_and_two_of_a_name_are_one() -> None:
    both = ["wandb", "mlflow", "wandb"]
    found = [parse_config({"train": {"report_to": asked}}).train.report_to for asked in ("wandb", "none", None, both)]
    assert found == [("wandb",), (), (), ("wandb", "mlflow")]
    assert Config().train.report_to == ()


@pytest.mark.more
@pytest.mark.parametrize("given", [{}, {"WANDB_MODE": "offline"}, {"WANDB_API_KEY": 40 * "a"}])
def test_wandb_without_a_login_is_refused_before_anything_loads(tmp_path: Path, given: dict[str, str]) -> None:
    asks = "from repl_rl.run.trackers import require_trackers\nrequire_trackers(['wandb'])"
    own = os.environ | {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")} | given
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, env=own, check=False)
    said = "ConfigError: train.report_to names wandb, and nobody is logged in; log in with `wandb login`"
    assert (said in done.stderr, done.returncode) == ((True, 1) if not given else (False, 0)), done.stderr


def test_the_trackers_of_transformers_are_known_and_installed_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert set(KNOWN) == set(INTEGRATION_TO_CALLBACK)
    require_trackers(["tensorboard", "trackio", "wandb", "kubeflow"])


def test_a_sample_is_spread_over_the_step() -> None:
    asked = [(0, 3), (2, 3), (3, 3), (64, 4), (5, 2), (7, 1)]
    expected = [[], [0, 1], [0, 1, 2], [0, 16, 32, 48], [0, 2], [0]]
    assert [spread(range(length), count) for length, count in asked] == expected


def test_markdown_of_an_indented_block_is_the_text_itself() -> None:
    markdown = pytest.importorskip("markdown")
    text = "# no heading\n\n<b>&amp;</b>\n```\n| a | b |\n---\n[x](javascript:alert(1))"
    shown = markdown.markdown(as_code(text), extensions=["tables"])
    assert shown == f"<pre><code>{html.escape(text, quote=False)}\n</code></pre>"
