"""TRL's steps on trees: real forks, nano, and every branch's tokens in the loss once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import rows_of, small_trainer

from repl_rl import read_jsonl
from repl_rl.config import CreditConfig
from repl_rl.credit import line_advantages
from repl_rl.tasks import make_tasks


@pytest.mark.more
def test_steps_on_trees(tmp_path: Path) -> None:
    tasks = make_tasks(["product", "gcd"], 16, seed=1, split="train")
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 12,
        "num_generations": 6,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": 4,
        "kernel": {"size": 12},
        "budget": {"lines": 5, "tokens": 96, "line_tokens": 32},
        "rewards": {"kinds": {"exception": -0.25, "syntax_error": -0.25}},
        "branch": {"roots": 2, "forks": 1, "branches": 3, "within": 2},
        "credit": {"estimator": "branch"},
    }
    with small_trainer(tmp_path, tasks, {"eval_dataset": tasks[:4]}, **settings) as trainer:
        trainer.train()
        measured = trainer.evaluate()
    assert trainer.args.to_dict()["branch"]["branches"] == 3
    assert "eval_branches/fork" not in measured  # held-out sessions are never forked
    rows = rows_of(trainer)
    assert len(rows) == 2
    assert all(row["branches/fork"] + row["branches/replay"] + row["branches/anew"] == 1 for row in rows)
    assert any(row["branches/fork"] > 0 for row in rows)
    for step in (1, 2):
        kept = list(read_jsonl(tmp_path / "rollouts" / f"step_{step:05d}.jsonl"))
        assert len(kept) == 12
        for group in (kept[:6], kept[6:]):
            rewards = [[line.reward or 0.0 for line in each.lines] for each in group]
            values = line_advantages(group, rewards, CreditConfig(estimator="branch"))
            assert [[line.advantage for line in each.lines] for each in group] == values
            assert [each.branch is None for each in group] == [True] * 2 + [False] * 4
