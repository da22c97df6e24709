"""The guide to credit: its estimator is taken from the page and used, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from made_trajectories import line, made

from repl_rl.config import Baseline, CreditConfig, Scale, parse_config
from repl_rl.config.credit import USED
from repl_rl.rollout.score import reward_table

GUIDE = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_estimator_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, use = blocks("python")
    assert len(code.splitlines()) < 40
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "credit.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    config = parse_config(yaml.safe_load(blocks("yaml")[1]))
    assert (config.credit.estimator, config.credit.gamma) == ("my_package.credit:beside_others", 0.5)
    reward_table(config.rewards, config.credit)
    before, said = use.rstrip().rsplit("\n", 1)
    call, expected = said.split("  # ")
    names = {"group": [made([line("x"), line("y")])] * 2}
    exec(before, names)
    [first, second] = eval(call, names)
    assert [first, second] == [pytest.approx(values) for values in eval(expected)]


def test_the_section_at_the_top() -> None:
    credit = parse_config(yaml.safe_load(blocks("yaml")[0])).credit
    given = (credit.estimator, credit.gamma, credit.baseline, credit.scale, credit.clip)
    assert given == ("return_to_go", 0.95, "state", "outcome", 5.0)


def test_the_tables_name_every_estimator_and_every_key() -> None:
    parts = re.split(r"^\|---.*\n", GUIDE, flags=re.MULTILINE)
    tables = [re.findall(r"^\| `(.*)$", part.partition("\n\n")[0], re.MULTILINE) for part in parts]
    rows = [re.findall(r"`([^`]+)`", f"`{row}") for row in (*tables[1], *tables[2])]
    estimators = [row for row in rows if row[0] in USED]
    for name, *_ in estimators:
        keys = re.findall(r"`(\w+)`", next(r for r in GUIDE.splitlines() if r.startswith(f"| `{name}`")).split("|")[3])
        assert {*keys, "clip"} == set(USED[name])
    assert {row[0] for row in estimators} == set(USED)
    assert {row[0] for row in rows} - set(USED) == set(CreditConfig.model_fields) - {"estimator"}
    for values, table in ((get_args(Baseline), tables[3]), (get_args(Scale), tables[4])):
        assert {row.partition("`")[0] for row in table} == set(values)
