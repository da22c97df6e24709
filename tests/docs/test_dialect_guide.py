"""The guide to dialects: its own two dialects are taken from the page and used."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from exactness import assert_masked_text_is_the_outputs
from scripted import ScriptedEngine
from vocabularies import nano

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Task

GUIDE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_file_of_texts(tmp_path: Path) -> None:
    [texts] = blocks("yaml")
    path = tmp_path / "riddles.yaml"
    path.write_text(texts)
    dialect = make_dialect(DialectConfig(name=str(path), examples=1))
    assert dialect.completion_prompt("What is 6 * 7?") == "Q: What is 2 + 2?\nA:\nAnswer: 4\nQ: What is 6 * 7?\nA:\n"
    assert dialect.chat_prompt("Q").messages[0]["content"].startswith("You solve riddles with Python.")
    [cell] = dialect.reader().read("```python\n6 * 7\n```\n").cells
    assert cell.source == "6 * 7"


def test_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks("python")[-1]
    session = blocks("text")[-1]
    assert len(code.splitlines()) < 40
    (tmp_path / "guide_calculator.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    dialect = make_dialect(DialectConfig(name="guide_calculator:Calculator"))
    typed = [line.removeprefix("$") + "\n" for line in session.splitlines() if line.startswith("$")]

    async def go() -> str:
        async with KernelPool(1, Limits(line_s=60), sandbox="bwrap") as pool:
            rollout = Rollout(
                ScriptedEngine(nano(), lambda prompt: typed), pool, RolloutSetup(nano(), dialect, context_tokens=1024)
            )
            [trajectory] = await rollout.many([Task("t", "What is 6 * 7?", "42")])
            assert trajectory.answer == ("42",)
            assert_masked_text_is_the_outputs(trajectory, nano())
            return trajectory.prompt + nano().decode(trajectory.completion_ids)

    assert asyncio.run(go()) == session
