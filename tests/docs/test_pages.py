"""What people copy out of README and docs/ works: code runs, commands are taken, YAML is a config.

Python blocks run as scripts, as a reader would run them; the ones that train or load an engine are slow. What the
guides show has tests of its own in test_guides.py; links are checked in test_site.py.
"""

import ast
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import shtab
import yaml
from made_trajectories import line, made
from pages import PAGES, ROOT, blocks, commands, configs, heredocs, inline_commands, languages

from repl_rl.cli import make_parser
from repl_rl.config import RewardsConfig, load_config, parse_config, shipped_configs
from repl_rl.rewards import RewardTable
from repl_rl.rollout import reward_table, score
from repl_rl.run.dryrun import dry_run
from repl_rl.tasks import grade
from repl_rl.trajectory import LineKind, StopReason, Task, read_jsonl

TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
PYTHON = {(page, number): block for page, text in TEXTS.items() for number, block in enumerate(blocks(text, "python"))}

GUIDES = ("credit", "credit-elsewhere", "dialects", "engines", "from-verifiers", "from-verl", "integrations", "openenv")
GUIDES += ("rewards", "tasks", "tools")
"""Pages whose Python needs something around it: test_guides.py and tests/integrations/test_*docs.py run it."""
EVENTS = ("docs/notebooks.md", 3)
GOES_ON = {("docs/notebooks.md", 1): ("docs/notebooks.md", 0), ("docs/rlm.md", 1): ("docs/rlm.md", 0)}
"""Blocks that use the names of an earlier one."""
TRAINS_OR_LOADS = re.compile(r"Trainer\(|\blive\(|open_rollout\(")
QUICK = ("docs/notebooks.md", 4)
"""Runs with each change's first tests; the others with `make test-more`."""
SMALLER = [
    ("max_steps=100", "max_steps=1"),
    ("max_steps=10,", "max_steps=1,"),
    ('"Qwen/Qwen3-1.7B"', '"nano"'),
    ("bf16=True", "bf16=False"),
    ('"bfloat16"', '"float32"'),
]
"""What is replaced so that two cores can run a block."""
OTHER = {"docs/dialects.md": {"text"}, "docs/integrations.md": {"toml"}, "docs/sessions.md": {"toml"}}
OTHER |= {"docs/tasks.md": {"json"}} | {
    f"docs/{name}.md": {""} for name in ("concepts", "quickstart", "training-your-own")
}
"""Languages of further blocks: sessions and files that the guides' tests read; drawings and what a run prints."""


def _script(place: tuple[str, int]) -> object:
    slow = TRAINS_OR_LOADS.search(PYTHON[place])
    return pytest.param(*place, marks=[] if place == QUICK else pytest.mark.slow if slow else pytest.mark.more)


@pytest.mark.parametrize(
    ("page", "number"),
    [
        _script(place)
        for place in PYTHON
        if not place[0].endswith(tuple(f"/{name}.md" for name in GUIDES)) and place not in GOES_ON.values()
    ],
)
def test_python_runs_as_a_script(page: str, number: int, tmp_path: Path) -> None:
    code = PYTHON[page, number]
    if (page, number) in GOES_ON:
        code = PYTHON[GOES_ON[page, number]] + code
    for large, small in SMALLER:
        code = code.replace(large, small)
    (tmp_path / "block.py").write_text(code)
    shutil.copytree(ROOT / "tests" / "run" / "stored" / "run", tmp_path / "runs" / "quickstart")
    set_by_us = ("OMP_WAIT_POLICY", "TRL_EXPERIMENTAL_SILENCE")
    kept = {name: value for name, value in os.environ.items() if name not in set_by_us}
    done = subprocess.run(
        [sys.executable, "block.py"], cwd=tmp_path, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "torch was imported" not in done.stderr
    assert "UserWarning" not in done.stderr
    if (page, number) == ("README.md", 1):
        assert done.stdout.strip() == "2"
    elif (page, number) == EVENTS:
        assert ">>> # What is 6 * 7?\n>>>\nabout to run: " in done.stdout
        assert done.stdout.splitlines()[-1].split()[0] in set(StopReason) - {"aborted", "unfinished"}


@pytest.mark.more
def test_python_imports_what_exists() -> None:
    for block in PYTHON.values():
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("repl_rl") and "verifiers" not in block:
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_function_that_pays_what_was_handed_over() -> None:
    """And not what the interpreter printed."""
    [code] = [block for (page, _), block in PYTHON.items() if page == "docs/from-trl.md" and "(scored, result" in block]
    defined: dict[str, Any] = {}
    exec(code, defined)
    task = Task("t", "What is 6 * 7?", "42")
    handed_over = replace(made([line(" submit_final_answer(6 * 7)\n")]), answer=("42",))
    printed = replace(made([line(" 6 * 7\n", output="42\n>>>")]), stop_reason=StopReason.EOS)
    scored = score([task, task], [handed_over, printed], grade, RewardTable(RewardsConfig()))
    assert defined["accuracy"](scored=scored, result=[42, 42], completions=[]) == [1.0, 0.0]


def test_each_block_is_of_a_kind_that_is_tested() -> None:
    found = {page: languages(text) - {"python", "yaml", "bash"} for page, text in TEXTS.items()}
    assert {page: names for page, names in found.items() if names} == OTHER


def test_no_row_of_a_table_stands_apart_from_its_header() -> None:
    """Behind an empty line it would be shown as plain text."""
    for page, text in TEXTS.items():
        rows = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
        for above, row, below in zip(["", *rows], rows, [*rows[1:], ""], strict=False):
            if row.startswith("|") and not above.startswith("|"):
                assert re.match(r"\|[\s:|-]+$", below), (page, row)


def test_what_is_installed_from_here_is_installed_from_the_checkout() -> None:
    """The package is not on PyPI."""
    assert [found for text in TEXTS.values() for found in re.findall(r"pip install [^\n`]*repl[-_]rl", text)] == []


def test_what_a_machine_with_gpus_installs_is_what_make_installs_and_the_extras_ask_for() -> None:
    text = TEXTS["docs/gpus.md"]
    installs = re.findall(r"pip install (-c constraints\.txt [^\n#&]*[^\n#& ])", text)
    torch, package = sorted(set(installs), key=len)
    assert installs == [torch, package, torch, package]  # by hand, and in the container
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"install {torch}\n" in makefile
    assert torch == "-c constraints.txt torch==2.13.0"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert package == '-c constraints.txt -e ".[vllm,lora]"'
    assert {"vllm", "lora"} <= set(extras)
    assert extras["vllm"] == ["vllm>=0.32,<0.33"]
    assert "the one that vLLM 0.32 is built for" in text
    held = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "z3-solver==" not in held  # vLLM for GPUs wants an older one than the math profile has


# Commands

COMMANDS = sorted({(page, line) for page, text in TEXTS.items() for line in commands(text)})
INLINE = sorted({(page, line) for page, text in TEXTS.items() for line in inline_commands(text)})


def arguments_of(line: str) -> list[str]:
    """What follows our own command, whatever is in front of it."""
    words = list(takewhile(lambda word: word != ">", shlex.split(line)))
    ours = [index for index, word in enumerate(words) if word in ("repl-rl", ".venv/bin/repl-rl", "repl_rl.cli")]
    return words[ours[0] + 1 :] if ours else []


@pytest.mark.parametrize(("page", "line"), [each for each in COMMANDS if arguments_of(each[1])])
def test_commands_in_blocks_are_taken(page: str, line: str) -> None:
    config = getattr(make_parser().parse_args(arguments_of(line)), "config", None)
    if config is not None and not config.isupper():
        assert config in (*shipped_configs(), "own.yaml", "my.yaml", "my-model.yaml") or (ROOT / config).is_file()


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Those of every command by its words, as in `bench kernels`, from what completes them in a shell."""
    written = shtab.complete(make_parser(), "bash")
    found = re.findall(r"^_shtab_repl_rl_?(\w*?)_?option_strings=\((.*)\)$", written, re.MULTILINE)
    return {name.replace("_", " "): set(strings.split()) for name, strings in found}


@pytest.mark.parametrize(("page", "line"), INLINE)
def test_commands_in_sentences_name_what_exists(page: str, line: str, options: dict[str, set[str]]) -> None:
    words, command = arguments_of(line), ""
    while words and f"{command} {words[0]}".strip() in options:
        command = f"{command} {words.pop(0)}".strip()
    if command in ("", "bench", "nano", "serve") and words:  # each has commands below it
        assert words[0] in ("...", "--verbose") or words[0].isupper(), words[0]
    else:
        assert {word.partition("=")[0] for word in words if re.match(r"--?\w", word)} <= options[command]


def test_modules_and_targets_of_make_exist() -> None:
    others = [(ROOT / name).read_text(encoding="utf-8") for name in ("BENCHMARKS.md", "CONTRIBUTING.md")]
    texts = [*TEXTS.values(), *others]
    modules = {name for text in texts for name in re.findall(r"python -m ((?:repl_rl|studies)[\w.]*)", text)}
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for text in texts for word in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)}
    assert {"train", "test"} <= named <= targets


# Configs

VERL_ROWS = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {n} + {n}?"}],
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "extra_info": {"split": "train", "index": n},
    }
    for n in range(300)
]
"""As verl's examples prepare a data set."""


def as_parquet(rows: list[dict[str, object]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


BESIDE = {
    "README.md": {"my_rewards.py": "def short(trajectory):\n    return [0.0 for line in trajectory.lines]\n"},
    "docs/credit.md": {"my_package/credit.py": blocks(TEXTS["docs/credit.md"], "python")[0]},
    "docs/engines.md": {"my_package/engines.py": blocks(TEXTS["docs/engines.md"], "python")[0]},
    "docs/rewards.md": {"my_rewards.py": blocks(TEXTS["docs/rewards.md"], "python")[0]},
    "docs/sessions.md": {
        "mine.toml": blocks(TEXTS["docs/sessions.md"], "toml")[0],
        **dict.fromkeys(("modules/shapes.py", "data/table.csv", "tables/prices.csv"), ""),
    },
    "docs/from-verl.md": {"gsm8k/train.parquet": as_parquet(VERL_ROWS)},
    "docs/tasks.md": {"problems.jsonl": blocks(TEXTS["docs/tasks.md"], "json")[0]},
    "docs/tools.md": {f"{name}.py": PYTHON["docs/tools.md", n] for n, name in enumerate(("my_tools", "words_server"))},
}
"""The files that a page's configs name, by page: mostly the page's own."""


@pytest.mark.more
@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if configs(text)])
def test_configs_pass_a_dry_run(page: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("LANG", "C.UTF-8")  # which a server of the page gets
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name, text in BESIDE.get(page, {}).items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(text.encode() if isinstance(text, str) else text)
    for block in configs(TEXTS[page]):
        if not block.startswith("dialect: fenced"):  # texts of a dialect
            (here / "my.yaml").write_text(block)
            assert dry_run(load_config("my.yaml"), here / "runs").rows, block
    assert not (here / "runs").exists()


def test_the_readme_and_the_quickstart_pay_for_thoughts() -> None:
    [short], [long] = heredocs(TEXTS["README.md"]), heredocs(TEXTS["docs/quickstart.md"])
    assert parse_config(yaml.safe_load(short)) == parse_config(yaml.safe_load(long))
    [shown] = read_jsonl(ROOT / "docs" / "images" / "rollout.jsonl")
    thought, *others = shown.lines
    trajectory = replace(shown, lines=(replace(thought, text=" # q is not known\n", kind=LineKind.COMMENT), *others))
    for novelty, paid in (("false", 0.3), ("true", 0.0)):
        config = parse_config(yaml.safe_load(short), (f"rewards.shaping.novelty={novelty}",))
        scored = reward_table(config.rewards, config.credit).score(trajectory, 1.0)
        assert scored.components["table"] == (paid, 0.0, 0.0, 0.0)


def test_nothing_is_noted_about_the_readmes_own_config_and_no_time_cuts_it(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(heredocs(TEXTS["README.md"])[0])
    config = load_config(str(tmp_path / "my.yaml"))
    assert dry_run(config, tmp_path / "runs").notes == ()
    assert config.train.max_minutes is None


# Lists


def test_the_comparison_names_its_sources() -> None:
    body, _, sources = TEXTS["docs/comparison.md"].partition("\n## Sources\n")
    used = {mark for group in re.findall(r"\[((?:[STVPF]\d+(?:, )?)+)\](?!\()", body) for mark in group.split(", ")}
    listed = re.findall(r"^- \[([STVPF]\d+)\]", sources, re.MULTILINE)
    assert sorted(used) == sorted(listed)


def test_the_files_that_contributing_lists_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("<!-- traced -->\n")[2].partition("<!-- end -->")[0]
    files = re.findall(r"`([\w/.]+\.py)`", table)
    assert [file for file in files if not (ROOT / file).is_file() and not (ROOT / "repl_rl" / file).is_file()] == []
    inside = sum(file.startswith("kernels/") for file in files)
    assert f"| {len(files) - inside} files in `repl_rl/`, {inside} in the sandbox" in table
    assert len(files) - inside <= 30
