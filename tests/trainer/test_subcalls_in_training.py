"""`subcalls.train`: what the policy sampled for sub-calls is in the loss once, with the advantage of who asked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from small import small_trainer

from repl_rl import read_jsonl
from repl_rl.trajectory import Compaction, Line, LineKind, StopReason, SubCall, Task, Trajectory

TASKS = make_tasks_named("a", "b")


def asking(task: Task, index: int) -> Trajectory:
    """The first of each group is right. Of task a, it asks two things in its first line, one of them cut by a budget,
    and what it leaves behind counts for nothing; the wrong one asks in its second line. Of task b, the wrong one has
    asked and was cut."""
    is_unfinished = (task.id, index) == ("b", 1)
    made = recorded(
        task, index, is_right=index == 0, stop_reason=StopReason.UNFINISHED if is_unfinished else StopReason.ANSWER
    )
    first, second = made.lines
    one, two, three, lost = (recorded(Task(f"s{number}", "?", ""), number, lines=number) for number in (1, 2, 3, 4))
    two = replace(two, stop_reason=StopReason.MAX_TOKENS)
    lost = replace(lost, stop_reason=StopReason.ABORTED)
    if (task.id, index) == ("a", 0):
        first = replace(
            first,
            subcalls=(
                SubCall("p", "t", trajectory=one),
                SubCall("p", "t", trajectory=two),
                SubCall("p", "", trajectory=lost, error_name="aborted"),
                SubCall("p", "", error_name="cancelled"),
            ),
        )
    else:
        second = replace(second, subcalls=(SubCall("p", "t", trajectory=three),))
    return replace(made, lines=(first, second))


def scored_batch(
    folder: Path, make: Callable[[Task, int], Trajectory] = asking, **settings: Any
) -> tuple[RecordedTrainer, dict[str, Any]]:
    trainer = recorded_trainer(folder, make, TASKS, **settings)
    return trainer, trainer.batch()


def asked_by(line: Line) -> list[Trajectory]:
    return [call.trajectory for call in line.subcalls if call.trajectory is not None]


def rows_of(output: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the loss sees of each row: prompt, completion, what is typed, its log-probabilities and advantages."""
    asked, there = output["prompt_mask"].bool(), output["completion_mask"].bool()
    masks = {"prompt_ids": asked} | dict.fromkeys(
        ("completion_ids", "tool_mask", "sampling_per_token_logps", "advantages"), there
    )
    return [
        tuple(tuple(output[name][row][mask[row]].tolist()) for name, mask in masks.items()) for row in range(len(there))
    ]


def expected(trajectory: Trajectory, advantages: Sequence[float]) -> tuple[Any, ...]:
    """With the advantage of each of its lines."""
    spread = [0.0] * len(trajectory.completion_ids)
    for line, advantage in zip(trajectory.lines, advantages, strict=True):
        spread[line.start : line.end] = [advantage] * (line.end - line.start)
    return (
        trajectory.prompt_ids,
        trajectory.completion_ids,
        trajectory.sampled_mask,
        trajectory.logprobs,
        tuple(spread),
    )


def test_each_sub_call_is_a_row_with_the_advantage_of_its_line(tmp_path: Path) -> None:
    trainer, output = scored_batch(tmp_path, subcalls={"train": True})
    right, wrong = asking(TASKS[0], 0), asking(TASKS[0], 1)
    one, two, _ = asked_by(right.lines[0])
    [three], [later] = asked_by(wrong.lines[1]), asked_by(asking(TASKS[1], 0).lines[1])
    rows = rows_of(output)
    assert rows[:2] == [expected(right, [1.0, 1.0]), expected(wrong, [-1.0, -1.0])], "rloo: 1 less 0, and 0 less 1"
    assert rows[4:] == [
        expected(one, [1.0]),
        expected(two, [1.0] * 2),
        expected(three, [-1.0] * 3),
        expected(later, [0.0] * 3),
    ], "alone in its group, the right one of b has an advantage of zero, and the other was cut"
    typed = output["completion_mask"] * output["tool_mask"]
    assert typed.sum(dim=1).tolist() == [6, 6, 6, 0, 3, 6, 9, 9]
    assert output["num_items_in_batch"].item() == 45
    assert output["row_share"].item() == 7 / 8
    assert output["sampling_per_token_logps"].shape == output["completion_ids"].shape
    assert trainer.metrics["subcalls/rows"] == [4.0]
    lengths = trainer.metrics["completions/max_length"], trainer.metrics["completions/mean_length"]
    assert lengths == ([6.0], [4.5])
    assert [len(trainer.table[name]) for name in ("advantages", "completion", "prompt")] == [4, 4, 4]


def compacted(task: Task, index: int) -> Trajectory:
    """Four lines. The wrong one of task a was compacted twice, after its first line and before its last one, in which
    it asks."""
    made = recorded(task, index, is_right=index == 0, lines=4)
    if (task.id, index) != ("a", 1):
        return made
    asked = recorded(Task("s", "?", ""), 9, lines=2)
    last = replace(made.lines[3], subcalls=(SubCall("p", "t", trajectory=asked),))
    compactions = (Compaction(5, "one", (1, 2)), Compaction(15, "two", (3,)))
    third = replace(made.lines[2], kind=LineKind.EXCEPTION)
    return replace(made, lines=(*made.lines[:2], third, last), compactions=compactions)


@pytest.mark.parametrize("trains", [False, True])
def test_what_is_sampled_after_a_compaction_is_a_row_with_its_own_prompt(tmp_path: Path, trains: bool) -> None:
    trainer, output = scored_batch(
        tmp_path,
        compacted,
        subcalls={"train": trains},
        budget={"compact_at": 0.5},
        rewards={"kinds": {"exception": -0.25}},
        credit={"estimator": "return_to_go", "scale": "none"},
    )
    whole = compacted(TASKS[0], 1)
    [kept] = [each for each in read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl") if each.compactions]
    advantages = [line.advantage or 0.0 for line in kept.lines]
    assert len(set(advantages)) > 1
    first, second, third = whole.parts
    assert [part.prompt_ids for part in whole.parts] == [whole.prompt_ids, (1, 2), (3,)]
    assert [len(part.completion_ids) for part in whole.parts] == [3, 8, 3]
    rows = rows_of(output)
    shown = [
        tuple(tuple(round(value, 5) for value in part) if part and isinstance(part[0], float) else part for part in row)
        for row in (rows[1], *rows[4:])
    ]
    wanted = [
        expected(part, [round(value, 5) for value in values])
        for part, values in zip(whole.parts, (advantages[:1], advantages[1:3], advantages[3:]), strict=True)
    ]
    if trains:
        [asked] = asked_by(whole.lines[3])
        wanted.append(expected(asked, [round(advantages[3], 5)] * 2))
    assert shown == wanted
    assert (first.lines[0].start, second.lines[0].start, third.lines[0].start) == (0, 0, 0)
    typed = (output["completion_mask"] * output["tool_mask"]).sum().item()
    assert typed == output["num_items_in_batch"].item() == 4 * 12 + 6 * trains
    assert trainer.metrics["completions/mean_length"] == [12.0]
    assert trainer.table["advantages"][1] == pytest.approx(fmean(advantages))  # each line has 3 tokens


def test_what_a_budget_ended_takes_its_sub_calls_out_of_the_loss(tmp_path: Path) -> None:
    _, output = scored_batch(tmp_path, subcalls={"train": True}, mask="overlong")
    assert (output["completion_mask"] * output["tool_mask"]).sum(dim=1).tolist() == [6, 6, 6, 0, 3, 0, 9, 9]
    assert output["num_items_in_batch"].item() == 39


@pytest.mark.more
def test_steps_of_several_batches_train_each_token_once(tmp_path: Path) -> None:
    """With two micro-batches, the rows are made even, and the gradient is that of one micro-batch of all rows."""
    gradients = []
    for accumulated in (1, 2):
        trainer = recorded_trainer(
            tmp_path / str(accumulated),
            uneven,
            TASKS,
            per_device_train_batch_size=4 // accumulated,
            gradient_accumulation_steps=accumulated,
            subcalls={"train": True},
            learning_rate=1.0,
            optim="sgd",
            max_grad_norm=1e9,
        )
        before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        trainer.train()
        after = dict(trainer.model.named_parameters())
        gradients.append(torch.cat([(before[name] - after[name].detach()).flatten() for name in before]))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def uneven(task: Task, index: int) -> Trajectory:
    """One sub-call in all: five rows, which two micro-batches don't divide."""
    made = recorded(task, index, is_right=index == 0)
    if (task.id, index) != ("a", 0):
        return made
    asked = SubCall("p", "t", trajectory=recorded(Task("s", "?", ""), 5, lines=3))
    return replace(made, lines=(replace(made.lines[0], subcalls=(asked,)), made.lines[1]))


class Consulting:
    """An environment of a user's own that asks the policy two things after each line."""

    def use_model(self, model: Any) -> None:
        self._model = model

    def reset(self, task: Task) -> None: ...

    async def observe(self) -> str | None:
        return " ".join(await self._model.ask([">>> #", "What is 3 * 4?"]))[:40]


@pytest.mark.slow
def test_steps_with_sub_calls_of_the_policy(tmp_path: Path) -> None:
    """Real kernels, and nano's own lines and answers: as the sampler had them, so the trainer has them."""
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "kernel": {"size": 4},
        "budget": {"lines": 3, "tokens": 200, "line_tokens": 32},
        "subcalls": {"train": True, "call_tokens": 16},
    }
    tasks = make_tasks_named("7 * 8", "5 * 5", "6 * 9", "2 * 4")
    with small_trainer(tmp_path, tasks, {"environment": Consulting}, **settings) as trainer:
        trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == 2
    for step, row in enumerate(rows, 1):
        kept = list(read_jsonl(tmp_path / "rollouts" / f"step_{step:05d}.jsonl"))
        calls = [call for each in kept for line in each.lines for call in line.subcalls]
        assert row["subcalls/rows"] == sum(call.trajectory is not None for call in calls) > 8
        assert row["drift/logprob_max"] < 1e-3
