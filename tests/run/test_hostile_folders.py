"""Run folders and checkpoints of strangers: whatever they hold, nothing hangs, nothing outside is read or written, and
what is wrong is said in a sentence."""

import json
import os
import shutil
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from repl_rl.cli import main
from repl_rl.engine.vocabulary import load_vocabulary
from repl_rl.errors import ModelError, ReplRLError
from repl_rl.models import find_model
from repl_rl.view.replay.notebooks import read_notebooks

CASES = yaml.safe_load(Path(__file__).with_name("hostile_folders.yaml").read_text(encoding="utf-8"))
HIDDEN = "what nobody else may read"
HANGS_AFTER_S = 300


def aliases(first: str, line: str, count: int) -> str:
    return "\n".join([f"a0: &a0 {first}", *(f"a{n}: &a{n} {line.replace('*', f'*a{n - 1}')}" for n in range(1, count))])


def record(run: Path) -> dict[str, Any]:
    path = next(path for path in (run / "eval").glob("*.jsonl") if path.is_file() and not path.is_symlink())
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    return loaded


def long_names(run: Path) -> str:
    long = record(run)
    long["task_id"] = "-1" * 500_000
    long["lines"][0]["error_name"] = "E" * 1_000_000
    return json.dumps(long) + "\n"


def image_names(run: Path) -> str:
    drawn = record(run)
    name = f"step_00001.images/{'0' * 32}.png"
    drawn["lines"][0]["cells"] = [{"source": "x", "output": "", "images": [name] * 1000}]
    return json.dumps(drawn) + "\n"


def index_with_triggers(folder: Path) -> None:
    folder.mkdir()
    with sqlite3.connect(folder / "index-1.sqlite") as connection:
        connection.executescript(
            "CREATE TABLE file (id INTEGER); "
            "CREATE TRIGGER t AFTER INSERT ON file BEGIN SELECT load_extension('/x'); END;"
        )


MADE: dict[str, Callable[[Path], str]] = {
    "alias bomb": lambda run: aliases("[x, x]", "[*, *, *, *, *, *, *, *, *, *]", 20),
    "merge bomb": lambda run: aliases("{k: 1}", "{<<: [*, *, *, *, *, *, *, *, *, *]}", 20),
    "long aliases": lambda run: f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 20_000}]",
    "alias chain": lambda run: aliases("[x]", "[*]", 5000),
    "brackets": lambda run: "[" * 100_000,
    "long number": lambda run: f"seed: 0x{'f' * 5000}",
    "bad rows": lambda run: "nonsense\n" * 100_000,
    "unlike evaluations": lambda run: "".join(
        json.dumps({"kind": "eval", "step": n, "solve_rate": 0.5, "settings": {"problems": n}}) + "\n"
        for n in range(20_000)
    ),
    "odd rows": lambda run: '{"kind": "train", "step": "1"}\n[]\n{"kind": "train"}\n{"step": 1e999, "kind": "eval"}\n',
    "many parts": lambda run: '{"prompt": "x", "lines": [' + "{}," * 600_000 + "{}]}\n",
    "long names": long_names,
    "image names": image_names,
    "sparse vocabulary": lambda run: json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}}
    ),
    "long model path": lambda run: f"model: {{path: /{'x' * 5000}}}",
}


@pytest.fixture
def run(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A complete run of a stranger; beside it, outside, what is private. A command that hangs fails."""
    shutil.copytree(stored / "model", stored / "run" / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("secret", "victim", "step_00001.jsonl", "tokenizer.json", f"{'0' * 32}.png"):
        (outside / name).write_text(HIDDEN)

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANGS_AFTER_S)
    yield stored / "run"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def put(what: str, path: Path, run: Path, outside: Path) -> None:
    made = MADE[what](run) if what in MADE else None
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind, _, rest = what.partition(" ")
    if made is not None:
        path.write_text(made)
    elif what == "index with triggers":
        index_with_triggers(path)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path.name)  # its path may be too long
        listening.close()
        Path(path.name).rename(path)
    elif what == "folder":
        path.mkdir()
    elif kind == "zeros":
        with path.open("wb") as file:
            file.truncate(int(rest))
    elif kind == "text":
        path.write_text(rest.replace("VICTIM", str(outside / "victim")))
    else:
        assert kind == "link", what
        targets = {"SECRET": outside / "secret", "VICTIM": outside / "victim", "OUTSIDE": outside}
        path.symlink_to(targets.get(rest, run.parent / "model" if rest == "MODEL" else Path(rest)))


COMMANDS = {
    "view": ["view", "run", "--summary"],
    "export": ["view", "run", "--export"],
    "push": ["push", "run", "--to", "./out"],
}


def written(*folders: Path) -> Iterator[Path]:
    """The files of these folders that are no links."""
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.mark.more
@pytest.mark.parametrize(
    ("case", "command"),
    [(case, command) for case in CASES for command in case["says"]],
    ids=[f"{case['name']}-{command}" for case in CASES for command in case["says"]],
)
def test_a_strangers_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: dict[str, Any], command: str
) -> None:
    outside = tmp_path / "outside"
    for place, what in case["put"].items():
        put(what, run / place, run, outside)
    if command == "replay":
        try:
            _, notes = read_notebooks(sorted((run / "rollouts").glob("*.jsonl")))
            said = "\n".join(notes)
        except ReplRLError as error:
            said = str(error)
    else:
        assert main(COMMANDS[command]) in (0, 2)
        said = "".join(capsys.readouterr())
        if command == "export":
            page = run / "viewer.html"
            said = page.read_text(encoding="utf-8") if page.is_file() else said
    assert " ".join(case["says"][command].split()) in " ".join(said.split())
    assert HIDDEN not in said
    for path in written(run, run.parent / "out", tmp_path / "cache"):
        if path.stat().st_size < 1 << 30:
            assert HIDDEN.encode() not in path.read_bytes(), path
    for path in outside.iterdir():
        assert path.read_text() == HIDDEN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("position_0.pt", "text garbage"),
        ("optimizer.pt", "text garbage"),
        ("trainer_state.json", "text []"),
        ("trainer_state.json", "text {}"),
    ],
)
def test_a_strangers_training(run: Path, said: Callable[..., str], name: str, what: str) -> None:
    put(what, run / "checkpoints" / "checkpoint-2" / name, run, run)
    shutil.rmtree(run / "model")
    shown = said("train", "--resume", "run", "--set", "train.steps=3", code=2)
    assert "repl-rl: the checkpoint can't be resumed from" in shown


CHECKPOINTS = [
    ("tokenizer.json", "pipe", "it is a pipe"),
    ("model.safetensors", "link /dev/zero", "it is a device"),
    ("generation_config.json", "zeros 1000000000000", "it is larger than 256 MiB"),
    ("tokenizer.json", "sparse vocabulary", "a token has the id 4000000000"),
]


@pytest.mark.parametrize(("name", "what", "message"), CHECKPOINTS)
def test_a_strangers_checkpoint(run: Path, tmp_path: Path, name: str, what: str, message: str) -> None:
    put(what, run / "model" / name, run, tmp_path / "outside")
    with pytest.raises(ModelError, match=message):
        find_model(str(run / "model"))


@pytest.mark.more
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("what", ["text {", "text []", "brackets"])
def test_settings_that_are_none(run: Path, tmp_path: Path, name: str, what: str) -> None:
    put(what, run / "model" / name, run, tmp_path / "outside")
    with pytest.raises(ModelError, match="no tokenizer at "):
        load_vocabulary(str(run / "model"))
