"""Run folders that chance has changed: each command says in a sentence what is wrong, or shows what is left."""

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import seeds

from repl_rl.cli import main
from repl_rl.errors import ReplRLError
from repl_rl.view.replay.notebooks import read_notebooks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SECONDS = 1200 if "SOAK" in os.environ else 20
HIDDEN = "what nobody else may read"
COMMANDS = [
    ["view", "run", "--summary"],
    ["view", "run", "--export"],
    ["view", "run/rollouts/step_00001.jsonl", "--summary"],
    ["push", "run", "--to", "./out"],
    ["train", "--resume", "run", "--dry-run"],
    ["train", "--resume", "run", "--set", "train.steps=3", "--dry-run"],
]
VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 2, 10**400, 1e308, float("nan"), float("inf"), -0.5, "", "x", "x" * 10**5),
    *("\ud800\0\x1b[2J", "<script>alert(1)</script>", "../../outside/secret", "/etc/passwd"),
    *([], {}, [[]] * 999, [{}], {"": {"": []}}),
]
BYTES = [
    *(b"\0", b"\xff\xfe", b"\n", b"{", b"]", b"9" * 5000),
    *(b"&a [*a]", b"NaN", b'"\\ud800"', b"!!python/name:os.system "),
]


def changed_value(value: Any, draw: random.Random) -> Any:
    """Something in it is another value, is missing, or is there under another name."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
        return draw.choice(VALUES)
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, kind = draw.choice(keys), draw.random()
    if kind < 0.1:
        del value[key]
    elif kind < 0.2 and isinstance(value, dict):
        value[draw.choice(["", "step", "kind", "lines", "x" * 1000])] = value.pop(key)
    elif kind < 0.25 and isinstance(value, list):
        value += [value[key]] * draw.choice([1, 1000])
    else:
        value[key] = changed_value(value[key], draw)
    return value


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    at, kind = draw.randint(0, len(data)), draw.random()
    if kind < 0.2:
        return data[:at]
    if kind < 0.3:
        return b""
    end = min(len(data), at + draw.choice([0, 0, 1, 4, 100]))
    return data[:at] + draw.choice(BYTES) + data[end:]


def change(run: Path, outside: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink()))
    kind = draw.random()
    if kind < 0.1:
        other = draw.choice(sorted(each for each in run.rglob("*") if each.is_file() and not each.is_symlink()))
        path.with_suffix(draw.choice([path.suffix, other.suffix])).write_bytes(other.read_bytes())
    elif kind < 0.2:
        path.unlink()
        if draw.random() < 0.5:
            path.symlink_to(draw.choice([outside / "secret", outside, Path("/dev/zero"), Path("none")]))
    elif kind < 0.7 and path.suffix in (".json", ".jsonl"):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.suffix == ".jsonl" else []
        lines = lines or [path.read_text(encoding="utf-8", errors="replace")]
        number = draw.randrange(len(lines))
        try:
            value = changed_value(json.loads(lines[number]), draw)
        except (ValueError, RecursionError):
            return
        lines[number] = json.dumps(value, ensure_ascii=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        path.write_bytes(changed_bytes(path.read_bytes(), draw))


def test_no_folder_makes_a_command_fail(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(stored / "model", stored / "run" / "model")
    whole, outside = stored.parent / "whole", tmp_path / "outside"
    shutil.copytree(stored / "run", whole)
    outside.mkdir()
    (outside / "secret").write_text(HIDDEN)
    for seed in seeds(SECONDS):
        draw = random.Random(seed)
        shutil.rmtree(stored / "run")
        shutil.rmtree(stored / "out", ignore_errors=True)
        shutil.copytree(whole, stored / "run")
        for _ in range(draw.choice([1, 1, 2, 4])):
            change(stored / "run", outside, draw)
        for command in draw.sample(COMMANDS, 2):
            try:
                assert main(command) in (0, 2)
            except Exception as error:
                error.add_note(f"seed {seed}: {command}")
                raise
        with suppress(ReplRLError):
            read_notebooks(sorted((stored / "run" / "rollouts").glob("*.jsonl")))
        said = "".join(capsys.readouterr())
        assert "Traceback" not in said, seed
        assert HIDDEN not in said, seed
        pages = [stored / "run" / "viewer.html", stored / "run" / "report.html"]
        assert all(HIDDEN not in page.read_text(encoding="utf-8") for page in pages if page.is_file()), seed
        assert (outside / "secret").read_text() == HIDDEN
        assert [path.name for path in outside.iterdir()] == ["secret"]
