"""The files that a newcomer has, and the slips of the first hour: each is read, or refused in one sentence before
anything expensive begins. With the built wheel, as a newcomer has it."""

import csv
import gzip
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset
from installed import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
FILES = yaml.safe_load((HERE / "files.yaml").read_text(encoding="utf-8"))
SAYS = {
    "no answers": "row 7: column answer: None is neither text nor a number",
    "NaN": "row 0: column answer: nan is neither text nor a number: pandas writes it where a cell is empty",
    "no column": "the data set lacks the columns ['answer']; it has ['prompt', 'solution']",
    "a prefill": "row 0: column prompt: no message of it is the user's, which would be the question",
    "no columns": "reward function '__main__:no_columns' takes (prompts, completions) and is given more by name: ",
    "too few": "reward function '__main__:too_few' returned 1 rewards for 2 completions",
    "another column": "reward function '__main__:looks_up' raised KeyError: 'solution' (slips.py:",
    "of verifiers": "reward function '__main__:of_verifiers' wants prompt, completion, which it is not given: it gets ",
    "no number": "reward function '__main__:no_number' returned ['good', 'good'] (slips.py:",
    "none": "1 step",
}


def filled(value: Any, number: int) -> Any:
    """The value with N and SQUARE in its texts."""
    if isinstance(value, str):
        return value.replace("SQUARE", str(number**2)).replace("N", str(number))
    if isinstance(value, list):
        return [filled(item, number) for item in value]
    if isinstance(value, dict):
        return {name: filled(item, number) for name, item in value.items()}
    return value


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    if file.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(str(file))
        return
    text = io.StringIO(newline="")
    if ".jsonl" in file.name:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    elif ".json" in file.name:
        json.dump(rows, text)
    else:
        writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if ".tsv" in file.name else ",")
        writer.writeheader()
        writer.writerows(rows)
    content = text.getvalue().encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def dry_run(command: Path, folder: Path, case: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file, config = folder / case["file"], folder / case.get("config", "run.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    if "text" in case:
        file.write_text(case["text"])
    else:
        write(file, [filled(case["rows"], number) for number in range(1, 13)])
    sections = {"name": "mine", "model": {"path": "nano"}, "tasks": {"heldout": 0.4, **case["tasks"]}}
    if "text" in case:
        del sections["tasks"]["heldout"]
    sections |= {"train": {"steps": 1, "prompts_per_step": 2, "group_size": 4}, "eval": {"problems": 2}}
    config.write_text(yaml.safe_dump(sections))
    words = [command, "train", config.relative_to(folder), "--dry-run"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("case", FILES["read"], ids=lambda case: case["name"])
def test_a_file_is_read(installed: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    done = dry_run(installed / "repl-rl", tmp_path, case)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "What is " in shown
    assert " to train on; " in shown
    assert case.get("shows", "") in shown


@pytest.mark.parametrize("case", FILES["refused"], ids=lambda case: case["name"])
def test_a_file_is_refused_in_a_sentence(installed: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    done = dry_run(installed / "repl-rl", tmp_path, case)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    first, *listed = done.stderr.strip().split("\n  ")
    assert first.startswith("repl-rl: ")
    assert case.get("says", "").replace("{here}", str(tmp_path)) in first
    if "lists" in case:
        assert any(case["lists"] in line for line in listed)


def test_slips_in_python_are_said_before_anything_is_loaded(installed: Path, tmp_path: Path) -> None:
    """And a data set without one, with a function that is awaited, is trained on."""
    (tmp_path / "slips.py").write_text((HERE / "slips.py.txt").read_text(encoding="utf-8"))
    printed = run(installed / "python", "slips.py", cwd=tmp_path)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith('{"slip"')]
    said = {row["slip"]: row["says"] for row in rows}
    assert said.keys() == SAYS.keys()
    assert {name: SAYS[name] in says for name, says in said.items()} == dict.fromkeys(SAYS, True)
