"""TRL's steps on trees: real forks, nano, and every branch's tokens in the loss once."""

from __future__ import annotations

from pathlib import Path

import pytest

from repl_rl import ReplGRPOConfig, ReplGRPOTrainer, read_jsonl
from repl_rl.config import CreditConfig, parse_config
from repl_rl.credit import line_advantages
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks

BRANCH = {"roots": 2, "forks": 1, "branches": 3, "within": 2}


def test_steps_on_trees(tmp_path: Path) -> None:
    args = ReplGRPOConfig(
        output_dir=str(tmp_path),
        rollout_dir=str(tmp_path / "rollouts"),
        per_device_train_batch_size=12,
        num_generations=6,
        num_generations_eval=1,
        per_device_eval_batch_size=4,
        max_steps=2,
        learning_rate=1e-3,
        bf16=False,
        use_cpu=True,
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        kernel={"size": 12},
        engine={"backend": "transformers", "context_tokens": 384, "places": 16},
        budget={"lines": 5, "tokens": 96, "line_tokens": 32},
        rewards={"kinds": {"exception": -0.25, "syntax_error": -0.25}},
        branch=BRANCH,
        credit={"estimator": "branch"},
    )
    assert args.to_dict()["branch"]["branches"] == 3
    tasks = make_tasks(["product", "gcd"], 16, seed=1, split="train")
    trainer = ReplGRPOTrainer(str(NANO_PATH), args, tasks, eval_dataset=tasks[:4])
    try:
        trainer.train()
        measured = trainer.evaluate()
    finally:
        trainer.close()
    assert "eval_branches/fork" not in measured  # held-out sessions are never forked
    rows = [row for row in trainer.state.log_history if "reward" in row]
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"branch": {"branches": 1}}, "branch.branches: 1 is no fork: the root's own future is one of them"),
        ({"credit": {"estimator": "branch"}}, "branch compares the branches of trees, and nothing is forked without"),
        ({"branch": {}, "train": {"group_size": 12}}, "estimator: return_to_go would take the branches of a tree for"),
        ({"branch": {}, "credit": {"estimator": "spo_tree"}}, "are groups of 12; set train.group_size: 12 .*got 8"),
        (
            {"branch": {}, "credit": {"estimator": "vine"}, "train": {"group_size": 12}, "rollout": "a:b"},
            "a loop of your own, which the section branch doesn't reach",
        ),
        ({"branch": {"at": "rnadom"}}, "branch.at: .*unknown rule 'rnadom'; did you mean 'random'"),
        ({"branch": {"skip": ["thoughts"]}}, "branch.skip.0: Input should be 'blank', 'comment'"),
    ],
)
def test_sections_that_do_not_go_together_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(values)


def test_trl_users_are_told_their_own_name_for_the_size_of_a_group(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set train.group_size: 6 \(num_generations of TRL's arguments; got 8\)"):
        ReplGRPOConfig(output_dir=str(tmp_path), branch=BRANCH, credit={"estimator": "branch"})
