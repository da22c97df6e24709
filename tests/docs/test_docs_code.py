"""Every block of README and docs/ is run, read or named here with the reason why not.

Python blocks run as scripts, as a reader would run them; the ones that train or load an engine are slow. Those of the
guides are run by the guides' own tests. Commands and YAML are checked in test_docs_commands.py.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from made_trajectories import line, made
from pages import PAGES, ROOT, blocks, indented, languages

from repl_rl.config import parse_config
from repl_rl.rewards import RewardTable
from repl_rl.trajectory import LineKind

TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
PYTHON = {(page, number): block for page, text in TEXTS.items() for number, block in enumerate(blocks(text, "python"))}

RUN_BY = {
    ("docs/credit.md", 0): "tests/docs/test_credit_guide.py",
    ("docs/credit.md", 1): "tests/docs/test_credit_guide.py",
    ("docs/dialects.md", 0): "tests/docs/test_dialect_guide.py",
    ("docs/engines.md", 0): "tests/docs/test_engine_guide.py",
    ("docs/integrations.md", 0): "tests/integrations/test_docs.py",
    ("docs/integrations.md", 1): "tests/integrations/test_docs.py",
    ("docs/integrations.md", 2): "tests/integrations/test_docs.py",
    ("docs/integrations.md", 3): "tests/integrations/test_docs.py",
    ("docs/integrations.md", 4): "tests/integrations/test_docs.py",
    ("docs/notebooks.md", 3): "tests/rollout/test_opening.py",
    ("docs/rewards.md", 0): "tests/docs/test_docs_code.py",
    ("docs/tasks.md", 0): "tests/docs/test_docs_code.py",
    ("docs/tools.md", 0): "tests/docs/test_docs_tools.py",
    ("docs/tools.md", 1): "tests/docs/test_docs_tools.py",
    ("docs/tools.md", 2): "tests/docs/test_docs_tools.py",
}
"""Python blocks that another test runs, by page and number, because they need something around them."""
TRAINS_OR_LOADS = {
    ("README.md", 0),
    ("docs/notebooks.md", 0),
    ("docs/notebooks.md", 1),
    ("docs/notebooks.md", 2),
    ("docs/training-your-own.md", 0),
    ("docs/training-your-own.md", 1),
}
GOES_ON = {("docs/notebooks.md", 1): ("docs/notebooks.md", 0), ("docs/rlm.md", 2): ("docs/rlm.md", 0)}
"""Blocks that use the names of an earlier one."""
SMALLER = [
    ("max_steps=100", "max_steps=1"),
    ("max_steps=10,", "max_steps=1,"),
    ('"Qwen/Qwen3-1.7B"', "str(__import__('repl_rl.models.nano').models.nano.NANO_PATH)"),
    ("bf16=True", "bf16=False"),
    ('"bfloat16"', '"float32"'),
]
"""What is replaced so that two cores can run a block."""
NOT_CODE = {
    ("docs/concepts.md", ""): "a drawing of tokens and their mask",
    ("docs/dialects.md", "text"): "sessions: tests/rollout/test_dialect_rollouts.py types them",
    ("docs/gemma.md", ""): "a session, as the model types it",
    ("docs/integrations.md", "toml"): "tests/integrations/test_docs.py loads it",
    ("docs/quickstart.md", ""): "what a run prints",
    ("docs/sessions.md", "toml"): "tests/docs/test_docs_sessions.py loads it",
    ("docs/tasks.md", "json"): "tests/docs/test_docs_tasks.py reads it",
}
"""Fenced blocks in other languages than Python, YAML and the shell's."""
FORMULAS = {"docs/concepts.md": 3, "docs/gemma.md": 1, "docs/rewards.md": 1}
"""How many indented blocks of a page hold neither commands nor YAML."""
PROGRAMS = "accelerate docker git make pip python repl-rl tensorboard .venv/bin/python .venv/bin/repl-rl vllm"
EXPECTED = {("README.md", 1): "2\n"}
"""What a block prints, if its comments say so."""


@pytest.mark.parametrize(("page", "number"), [place for place in PYTHON if "verifiers" not in PYTHON[place]])
def test_python_imports_what_exists(page: str, number: int) -> None:
    tree = ast.parse(PYTHON[page, number])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("repl_rl"):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_python_block_is_run() -> None:
    assert [place for place in {*RUN_BY, *TRAINS_OR_LOADS} if place not in PYTHON] == []
    for (page, _), test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(*place, marks=[pytest.mark.slow] if place in TRAINS_OR_LOADS else [])
        for place in PYTHON
        if place not in RUN_BY and place not in GOES_ON.values()
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
    if (page, number) in EXPECTED:
        assert done.stdout.strip() == EXPECTED[page, number].strip()


@pytest.mark.parametrize("page", TEXTS)
def test_other_blocks_are_of_known_kinds(page: str) -> None:
    text = TEXTS[page]
    assert languages(text) - {"python", "yaml", "bash"} == {language for place, language in NOT_CODE if place == page}
    others = [
        block
        for block in indented(text)
        if not re.match(r"\w+:\s", block)  # a section of a config
        and re.sub(r"\A(?:[A-Z_]+=\S+[\s\\]+)*", "", block).split()[0] not in PROGRAMS.split()
    ]
    assert len(others) == FORMULAS.get(page, 0), others


def test_what_is_installed_from_here_is_installed_from_the_checkout() -> None:
    """The package is not on PyPI."""
    named = [(page, found) for page, text in TEXTS.items() for found in re.findall(r"pip install [^\n`]*repl-rl", text)]
    assert named == []


def test_the_functions_of_the_page_about_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXTS["docs/rewards.md"]
    code, section = PYTHON["docs/rewards.md", 0], blocks(text, "yaml")[1]
    (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    table = RewardTable(parse_config(yaml.safe_load(section)).rewards)
    thought = line("# Look at the product first.", LineKind.COMMENT)
    seen, end = line("6 * 7", LineKind.EXPRESSION), line("submit_final_answer(_)", LineKind.ANSWER)
    paid = table.score(made([thought, seen, end]), 1.0).components
    assert paid["brief"] == (-0.03, -0.007, -0.024)
    assert paid["looked"] == (0.0, 0.0, 0.1)
    assert paid["judged"] == (0.05, 0.0, 0.0)
    assert table.score(made([]), 0.0).line_rewards == ()


def test_the_task_of_the_page_about_tasks() -> None:
    code = PYTHON["docs/tasks.md", 0]
    names: dict[str, object] = {}
    exec(code, names)
    said = re.findall(r"^(grade\(.*\))  # (.*)$", code, re.MULTILINE)
    assert [eval(call, names) for call, _ in said] == [float(value) for _, value in said] == [1.0, 1.0, 0.0]
