"""Credit per turn in TRL's own GRPOTrainer: its generation, tool loop and loss, our advantages, worked out by hand."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from credit.groups import config
from datasets import Dataset
from scripted_chat import END, Script, call, make_model, make_tokenizer
from trl import GRPOConfig, GRPOTrainer

from repl_rl.config import CreditConfig
from repl_rl.errors import ConfigError, RewardError
from repl_rl.integrations.trl_credit import TurnCredit

pytestmark = pytest.mark.more
GOOD, BAD = "17 * 23", "17 ** 0.5 ** nonsense"


class Trainer(TurnCredit, GRPOTrainer):
    """Shows what it made of a batch."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.batch = super()._generate_and_score_completions(inputs)
        return self.batch


def python(code: str) -> str:
    """Run Python code.

    Args:
        code: The code to run.
    """
    return "NameError" if code == BAD else "391"


def price_of_errors(completions: Sequence[Sequence[dict[str, Any]]], **_: Any) -> list[list[float]]:
    """A call that raised costs 0.5."""
    rewards: list[list[float]] = []
    for messages in completions:
        rewards.append([])
        for message in messages:
            if message["role"] == "assistant":
                rewards[-1].append(0.0)
            elif message["content"] == "NameError":
                rewards[-1][-1] -= 0.5
    return rewards


def correct(completions: Sequence[Sequence[dict[str, Any]]], answer: Sequence[str], **_: Any) -> list[float | None]:
    """1 for the right answer, None for a session that nobody can grade."""
    grades: dict[bool, float] = {True: 1.0, False: 0.0}
    texts = [messages[-1]["content"] for messages in completions]
    return [None if "?" in text else grades[expected in text] for text, expected in zip(texts, answer, strict=True)]


def brief(completions: Sequence[Any], **_: Any) -> list[float]:
    return [1.0] * len(completions)


SCRIPTS = [
    [call(BAD), call(GOOD), "It is 391."],
    [call(GOOD), "It is 40."],
    [call(GOOD), "What?"],
    [call(GOOD), "It is 391."],
]


def in_two_groups(row: int, seen: Sequence[str]) -> str:
    """Rows 0 and 1 answer the first prompt, rows 2 and 3 the second, as a loader without shuffling has them."""
    return SCRIPTS[row][len(seen)]


def make_trainer(folder: Path, script: Script = in_two_groups, **arguments: Any) -> Trainer:
    tokenizer = make_tokenizer()
    questions = ["What is 17 * 23?", "And 23 * 17?"]
    rows = [{"prompt": [{"role": "user", "content": question}], "answer": "391"} for question in questions]
    settings: dict[str, Any] = arguments.pop("settings", {})
    return Trainer(
        model=make_model(tokenizer, script),
        args=GRPOConfig(
            output_dir=str(folder),
            max_completion_length=400,
            max_steps=1,
            learning_rate=0.1,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            beta=0.0,
            chat_template_kwargs={"enable_thinking": False},
            **{"per_device_train_batch_size": 4, "num_generations": 2, **settings},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[python],
        **{"reward_funcs": [correct], "turn_rewards": price_of_errors, **arguments},
    )


def turns_of(trainer: Trainer) -> list[list[tuple[str, float]]]:
    """The texts of each row's turns, and their advantages; everything else has none."""
    shown = []
    for row in range(len(trainer.batch["completion_ids"])):
        ids, mask, padding, advantages = (
            trainer.batch[name][row] for name in ("completion_ids", "tool_mask", "completion_mask", "advantages")
        )
        turns: list[tuple[list[int], float]] = []
        previous = 0
        for token, sampled, advantage in zip(ids.tolist(), (mask * padding).tolist(), advantages.tolist(), strict=True):
            if sampled and not previous:
                turns.append(([], advantage))
            previous = sampled
            assert advantage == (turns[-1][1] if sampled else 0.0)
            if sampled:
                turns[-1][0].append(token)
        shown.append([(trainer.processing_class.decode(tokens).removesuffix(END), value) for tokens, value in turns])
    return shown


def values_of(trainer: Trainer) -> list[list[float]]:
    return [[value for _, value in turns] for turns in turns_of(trainer)]


def test_a_step_of_trls_trainer_credits_each_turn(tmp_path: Path) -> None:
    """Row 0 earns -0.5, 0 and 1, row 1 nothing; row 2 is void, and row 3 alone."""
    trainer = make_trainer(tmp_path)
    before = trainer.model.lm_head.weight.detach().clone()
    trainer.train()
    # Returns 0.5, 1 and 1 beside 0, 0 and the last 0.
    values = [[0.5, 1.0, 1.0], [-0.5, -1.0], [0.0, 0.0], [0.0, 0.0]]
    order = rows_of_batch(trainer)
    assert turns_of(trainer) == [list(zip(SCRIPTS[row], values[row], strict=True)) for row in order]
    (log, *_) = trainer.state.log_history
    assert math.isfinite(log["loss"])
    assert log["grad_norm"] > 0
    assert log["reward"] == pytest.approx(2 / 3)
    assert not torch.equal(trainer.model.lm_head.weight, before)


def rows_of_batch(trainer: Trainer) -> list[int]:
    """The scripts of the batch's rows."""
    order = []
    for turns in turns_of(trainer):
        texts = [text for text, _ in turns]
        order.append(SCRIPTS.index(texts))
    return order


def test_it_does_not_know_turns_where_none_are_paid_and_is_rloo(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, turn_rewards=None, reward_funcs=[correct, brief], settings={"reward_weights": [2.0, 3.0]}
    )
    trainer.train()
    assert values_of(trainer) == [[2.0] * 3, [-2.0] * 2, [-2.0] * 2, [2.0] * 2]


def test_the_loss_is_the_policy_gradient_of_these_advantages(tmp_path: Path) -> None:
    """TRL's own, where ratios are 1: minus the sum of A over the sampled tokens, over a constant."""
    trainer = make_trainer(tmp_path, settings={"loss_type": "dr_grpo"})
    trainer.train()
    mask = trainer.batch["tool_mask"] * trainer.batch["completion_mask"]
    expected = -(trainer.batch["advantages"] * mask).sum().item() / (4 * 400)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-3)


def test_states_are_compared_where_the_user_knows_them(tmp_path: Path) -> None:
    def states(completions: Sequence[Any], turn_spans: Sequence[Any], **_: Any) -> list[list[str]]:
        return [[f"after {turn}" for turn in range(len(spans))] for spans in turn_spans]

    trainer = make_trainer(tmp_path, credit=config("gigpo", scale="none"), turn_states=states)
    trainer.train()
    # Rows 0 and 1: 0.25 each way for sessions of 0.5 and 0; then 0.5 beside 0, 1 beside 0, and 1 alone.
    assert values_of(trainer)[:2] == [[0.5, 0.75, 0.25], [-0.5, -0.75]]


def test_an_evaluation_of_one_session_a_prompt_has_no_advantages(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, settings={"num_generations_eval": 1, "per_device_eval_batch_size": 4})
    trainer.evaluate(Dataset.from_list(list(trainer.train_dataset) * 2))
    assert not trainer.batch["advantages"].any()


@pytest.mark.slow
def test_a_group_may_be_spread_over_processes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("trl_processes.py")
    folders = [program.parent, program.parents[1], program.parents[2]]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launcher, str(program), str(tmp_path)], env=os.environ | paths, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    made = [turns for rank in (0, 1) for turns in json.loads((tmp_path / f"{rank}.json").read_text())]
    assert [[text for text, _ in turns] for turns in made] == SCRIPTS
    # Returns 0.5, 1 and 1; 0 and 0; void; 1 and 1. Each less the mean of the other two that count.
    assert [[value for _, value in turns] for turns in made] == [[0.0, 0.5, 0.5], [-0.75, -1.0], [0, 0], [0.75, 0.5]]


def test_what_an_estimator_lacks_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gigpo compares turns that began in equal states"):
        Trainer(model="no/such-model", credit=config("gigpo"))
    with pytest.raises(ConfigError, match="say in `turn_states` in which state"):
        Trainer(model="no/such-model", credit=CreditConfig(baseline="state"))
    with pytest.raises(ConfigError, match="multi_objective_aggregation is 'normalize_then_sum'"):
        make_trainer(tmp_path, settings={"multi_objective_aggregation": "normalize_then_sum"})


def test_rewards_of_other_turns_than_there_were_are_refused_by_name(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, turn_rewards=lambda completions, **_: [[0.0]] * len(completions))
    with pytest.raises(RewardError, match=r"returned \[1, 1, 1, 1\] values for completions of \[3, 2, 2, 2\] turns"):
        trainer.train()
