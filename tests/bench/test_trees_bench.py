"""`repl-rl bench trees` in its smallest form: real vLLM, real kernels, real forks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_rl.bench.trees import TreesSettings
from repl_rl.cli import main
from repl_rl.errors import ConfigError


@pytest.mark.slow
def test_a_tree_types_less_than_its_leaves_would_alone(tmp_path: Path) -> None:
    file = tmp_path / "trees.json"
    assert main(["bench", "trees", "--quick", "--json", str(file)]) == 0
    [row] = json.loads(file.read_text())["rows"]
    alone, fork, replay = (row[name] for name in ("independent", "fork", "replay"))
    assert (alone["forked"], alone["replayed"], replay["forked"]) == (0, 0, 0)
    assert 0 < fork["forked"] <= 12  # a root may end before it forks
    assert 0 < replay["replayed"] <= 12
    for tree in (fork, replay):
        assert tree["lines"] < alone["lines"]
        assert tree["sampled_tokens"] <= tree["computed_tokens"] < alone["computed_tokens"]


def test_a_plan_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--groups 0: give at least 1"):
        TreesSettings(groups=0)
