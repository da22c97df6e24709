"""What docs/sessions.md says of profiles: its example works, and its table has every key."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path

import pytest
from pages import ROOT, blocks

from repl_rl.config import load_config
from repl_rl.kernel import KernelPool, Limits, Profile
from repl_rl.rollout.setup import make_pool

PAGE = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")


def outputs(pool: KernelPool, *cells: str) -> list[str]:
    async def run() -> list[str]:
        async with pool, pool.session() as kernel:
            return [(await kernel.execute(cell)).output for cell in cells]

    return asyncio.run(run())


def test_the_example_shows_modules_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("modules", "data", "tables"):
        (tmp_path / folder).mkdir()
    (tmp_path / "modules" / "shapes.py").write_text("sides = 4\n")
    (tmp_path / "data" / "table.csv").write_text("a,b\n")
    (tmp_path / "tables" / "prices.csv").write_text("1\n")
    [profile], [config] = blocks(PAGE, "toml"), blocks(PAGE, "yaml")
    (tmp_path / "mine.toml").write_text(profile)
    (tmp_path / "my.yaml").write_text(config)
    shown = outputs(
        make_pool(load_config("my.yaml", ("kernel.size=1", "kernel.line_s=60")).kernel),
        "import sys; [name in sys.modules for name in ('numpy', 'sympy', 'shapes')]",
        "import shapes; shapes.sides",
        'open("data/table.csv").read() + open("prices").read()',
    )
    assert shown == ["[True, True, True]\n", "4\n", "'a,b\\n1\\n'\n"]


def test_every_key_and_every_limit_is_in_the_table() -> None:
    keys = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(keys) == sorted(
        {each.name for each in dataclasses.fields(Profile)} - {"name", "is_own"} | {"also_read_only"}
    )
    [limits] = re.findall(r"a table of limits: (.*?)\. ", PAGE)
    assert limits == ", ".join(f"`{each.name}`" for each in dataclasses.fields(Limits))


def test_rich_values_show_as_the_page_says() -> None:
    shown = outputs(
        KernelPool(1, Limits(line_s=60)),
        "class Rich:\n    def __repr__(self): return 'its repr'\n    def _repr_html_(self): return '<b>html</b>'\n",
        "Rich()",
        "from IPython.display import HTML, display; display(HTML('<b>html</b>'))",
    )
    assert shown == ["", "its repr\n", "<IPython.core.display.HTML object>\n"]
