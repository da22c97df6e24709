"""What `train.mask` leaves out counts in the baseline, and in nothing else."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from trl.trainer.utils import pad

from repl_rl.config import MaskConfig, parse_config
from repl_rl.errors import ConfigError, RewardError
from repl_rl.trainer import ReplGRPOConfig
from repl_rl.trainer.loss import loss_mask_of
from repl_rl.trainer.mask import leaves_out, within_ratios
from repl_rl.trainer.rows import row_lists, rows_of
from repl_rl.trainer.step import kept_tokens
from repl_rl.trajectory import (
    Branch,
    Compaction,
    LineKind,
    RecordedCell,
    StopReason,
    SubCall,
    Task,
    Trajectory,
    read_jsonl,
)

BUDGETS = {"max_lines", "line_tokens", "max_tokens", "context", "seconds"}
TASKS = make_tasks_named("a", "b")


@pytest.mark.parametrize("reason", StopReason)
def test_overlong_is_what_a_budget_ended(reason: StopReason) -> None:
    assert recorded(TASKS[0], 0, stop_reason=reason).is_overlong is (reason in BUDGETS)


def one_of_four_overlong(task: Task, index: int) -> Trajectory:
    """Of each group the first is right; the second of task a ran out of tokens, four lines long."""
    is_overlong = (task.id, index) == ("a", 1)
    reason = StopReason.MAX_TOKENS if is_overlong else StopReason.ANSWER
    return recorded(task, index, is_right=index == 0, lines=4 if is_overlong else 2, stop_reason=reason)


def trainer_of(folder: Path, **settings: Any) -> RecordedTrainer:
    return recorded_trainer(folder, one_of_four_overlong, TASKS, **settings)


@pytest.mark.parametrize(("is_on", "tokens", "share"), [(True, 0, [0.25]), (False, 12, None)])
def test_overlong_trajectories_leave_the_loss_and_stay_in_the_baseline(
    tmp_path: Path, is_on: bool, tokens: int, share: list[float] | None
) -> None:
    trainer = trainer_of(tmp_path, mask="overlong" if is_on else ())
    output = trainer.batch()
    typed = output["completion_mask"] * output["tool_mask"]
    # rows: a right, a overlong, b right, b wrong; two lines of three typed tokens each, four of the overlong one
    assert typed.sum(dim=1).tolist() == [6, tokens, 6, 6]
    assert output["num_items_in_batch"].item() == 18 + tokens
    assert output["advantages"][0].max() == 1.0, "rloo: its return of 1 less the 0 of the overlong one"
    assert trainer.metrics.get("credit/masked_share") == share
    assert trainer.metrics["completions/max_length"] == [12.0], "it was typed all the same"
    assert trainer.metrics["credit/void_trajectories"] == [0.0]
    kept = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert [trajectory.stop_reason for trajectory in kept] == ["answer", "max_tokens", "answer", "answer"]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "sapo", "dr_grpo", "luspo"])
def test_the_gradient_is_that_of_the_others_alone(tmp_path: Path, loss_type: str) -> None:
    """Whether tokens or trajectories are counted: those that are masked are not."""
    trainer = trainer_of(tmp_path, mask="overlong", loss_type=loss_type)
    tensors = {key: value for key, value in trainer.batch().items() if torch.is_tensor(value)}
    found = trainer.gradient(tensors)
    assert tensors.pop("row_share").item() == 0.75
    others = {key: value if value.dim() == 0 else value[[0, 2, 3]] for key, value in tensors.items()}
    assert found.abs().max() > 1e-4
    torch.testing.assert_close(found, trainer.gradient(others), atol=1e-6, rtol=1e-4)


def test_a_step_of_nothing_but_overlong_trajectories_leaves_the_weights(tmp_path: Path) -> None:
    def overlong(task: Task, index: int) -> Trajectory:
        return recorded(task, index, is_right=index == 0, stop_reason=StopReason.MAX_LINES)

    trainer = recorded_trainer(tmp_path, overlong, TASKS, mask="overlong")
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert all(torch.equal(before[name], value) for name, value in trainer.model.named_parameters())
    assert trainer.state.log_history[0]["credit/masked_share"] == 1.0


def test_the_file_reaches_the_trainers_arguments(tmp_path: Path) -> None:
    config = parse_config({"train": {"mask": ["overlong", "geometric"], "redraws": 2}})
    args = ReplGRPOConfig.from_config(config, str(tmp_path), bf16=False)
    assert (args.mask, args.redraws) == (MaskConfig(overlong=True, geometric=(0.999, 1.001)), 2)


def of_kinds(
    *kinds: LineKind, answer: tuple[str, ...] | None = None, cells: tuple[RecordedCell, ...] = ()
) -> Trajectory:
    made = recorded(TASKS[0], 0, lines=len(kinds), stop_reason=StopReason.EOS)
    lines = [replace(line, kind=kind, cells=cells) for line, kind in zip(made.lines, kinds, strict=True)]
    return replace(made, lines=tuple(lines), answer=answer)


def is_long(trajectory: Trajectory) -> bool:
    return len(trajectory.lines) > 2


def raises(trajectory: Trajectory) -> bool:
    raise KeyError("colour")


RAN, TOLD = LineKind.EXPRESSION, LineKind.COMMENT


@pytest.mark.parametrize(
    ("mask", "out"),
    [
        ({}, []),
        ("void_turns", ["told", "unread"]),
        ({"stops": ["max_tokens"]}, ["cut"]),
        ({"kinds": ["exception"]}, ["raised"]),
        ({"function": f"{__name__}:is_long"}, ["answered in prose"]),
        ({"function": f"{__name__}:is_long", "kinds": ["exception"]}, ["raised", "answered in prose"]),
    ],
)
def test_what_is_left_out(mask: Any, out: list[str]) -> None:
    sessions = {
        "ran": of_kinds(TOLD, RAN),
        "told": of_kinds(RAN, TOLD),
        "unread": of_kinds(RAN, RAN, cells=(RecordedCell("", "no such call"),)),
        "raised": of_kinds(LineKind.EXCEPTION, RAN),
        "answered in prose": of_kinds(RAN, RAN, TOLD, answer=("6",)),
        "cut": replace(of_kinds(RAN, RAN), stop_reason=StopReason.MAX_TOKENS),
    }
    is_out = leaves_out(MaskConfig.model_validate(mask))
    assert [name for name, session in sessions.items() if is_out(session)] == out


def test_what_the_trainer_finds_otherwise_than_the_sampler_is_left_out(tmp_path: Path) -> None:
    """Recorded sessions say log mu = -4 of each token; bounds between two rows' ratios part them."""
    apart = trainer_of(tmp_path / "a", mask={"geometric": (0.0, 1e30)}).batch()
    ratios = apart["old_per_token_logps"] + 4.0
    typed = apart["completion_mask"] * (apart["old_per_token_logps"] != 0)
    means = ((ratios * typed).sum(1) / typed.sum(1)).exp()
    bounds = (sum(sorted(means.tolist())[1:3]) / 2, 1e30)
    output = trainer_of(tmp_path / "b", mask={"geometric": bounds}).batch()
    kept = output["tool_mask"].sum(1) > 0
    assert kept.tolist() == [mean >= bounds[0] for mean in means.tolist()]
    assert 0 < kept.sum() < 4
    assert output["num_items_in_batch"].item() == (output["tool_mask"] * output["completion_mask"]).sum().item()


@pytest.mark.parametrize(
    ("mask", "kept"),
    [({"geometric": (0.9, 1.1)}, [True, False, True]), ({"veto": 0.1}, [True, True, False])],
)
def test_ratios_by_hand(mask: dict[str, Any], kept: list[bool]) -> None:
    typed = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    apart = torch.log(torch.tensor([[1.05, 0.96, 1.0], [0.8, 0.7, 1.0], [0.05, 4.0, 5.0]]))  # of geometric mean 1
    assert within_ratios(MaskConfig(**mask), apart, typed).tolist() == kept
    nothing = torch.zeros(1, 0)  # of a session that was lost before its first line
    assert within_ratios(MaskConfig(**mask), nothing, nothing).tolist() == [True]


def test_one_token_that_is_apart_drops_a_short_session_and_not_a_long_one() -> None:
    """docs/algorithms.md: bounds of 0.999 and 1.001 on the mean of two tokens, and of ten."""
    apart = torch.zeros(2, 10)
    apart[:, 0] = 0.005
    typed = torch.tensor([[1] * 2 + [0] * 8, [1] * 10])
    assert within_ratios(MaskConfig.model_validate("geometric"), apart, typed).tolist() == [False, True]


def test_what_a_lost_root_typed_is_in_no_loss_though_a_branch_goes_on_from_it() -> None:
    """docs/trees.md: each token of the others is in one row."""
    root = recorded(TASKS[0], 0, lines=4)
    branch = branch_of(root, 0, 2)
    for reason, of_root in ((StopReason.ANSWER, 12), (StopReason.ABORTED, 0)):
        rows = rows_of([replace(root, stop_reason=reason), branch])
        assert [sum(row["env_mask"]) for row in row_lists(rows, 2, 0)] == [of_root, 6]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"mask": "overlnog"}, "no mask 'overlnog'; did you mean 'overlong'"),
        ({"mask": {"geometric": [1.1, 1.2]}}, "train.mask.geometric"),
        ({"mask": "void_turns"}, "train.mask.void_turns beside dialect python"),
    ],
)
def test_what_is_refused(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config({"train": train})


def test_a_function_that_raises_is_named(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"train.mask.function '.*:raises' raised KeyError: 'colour' \(.*:\d+, on"):
        leaves_out(MaskConfig(function=f"{__name__}:raises"))(of_kinds(RAN))
    with pytest.raises(ConfigError, match=r"mask geometric, veto or covariance with vllm_imp.*correction=False"):
        trainer_of(tmp_path, mask="veto", vllm_importance_sampling_correction=False)


def looks_at_the_last_line(trajectory: Trajectory) -> bool:
    return trajectory.lines[-1].kind == "exception"


@pytest.mark.parametrize("mask", ["overlong", "void_turns", {"function": f"{__name__}:looks_at_the_last_line"}])
def test_no_mask_is_asked_about_a_void_session(tmp_path: Path, mask: Any) -> None:
    """It may lack lines, is in no loss as it is, and is in no share of those that could be."""

    def sessions(task: Task, index: int) -> Trajectory:
        if task.id == "b" and index == 1:
            return recorded(task, index, stop_reason=StopReason.ABORTED)
        made = recorded(task, index, stop_reason=StopReason.MAX_TOKENS)
        if (task.id, index) == ("a", 0):
            return replace(made, completion_ids=(), sampled_mask=(), logprobs=(), lines=(), answer=None)
        return made

    trainer = recorded_trainer(tmp_path, sessions, TASKS, mask=mask, dialect={"name": "fenced"})
    output = trainer.batch()
    typed = (output["completion_mask"] * output["tool_mask"]).sum(dim=1).tolist()
    stays = 0 if mask == "overlong" else 6
    assert typed == [0, stays, stays, 0]
    assert trainer.metrics["credit/masked_share"] == [float(mask == "overlong")]


def masked(
    trajectories: list[Trajectory], mask: Any, ratios: list[list[float]] | None = None, group_size: int = 1
) -> tuple[list[list[int]], list[bool]]:
    """The loss's mask of each row's typed tokens, and who is left out; `ratios` are those of the rows' typed tokens."""
    config = MaskConfig.model_validate(mask)
    rows = rows_of(trajectories, subcalls=True)
    typed = pad([torch.tensor(row["env_mask"]) for row in row_lists(rows, len(rows), 0)], padding_value=0)
    apart = torch.zeros(typed.shape)
    for of_row, is_typed, values in zip(apart, typed.bool(), ratios or [], strict=bool(ratios)):
        of_row[is_typed] = torch.tensor(values).log()
    output = {
        "completion_mask": torch.ones_like(typed),
        "tool_mask": typed,
        "old_per_token_logps": apart,
        "sampling_per_token_logps": torch.zeros(typed.shape),
    }
    kept, left = kept_tokens(output, rows, trajectories, config, leaves_out(config), group_size)
    return [stays[was_typed.bool()].tolist() for stays, was_typed in zip(kept, typed, strict=True)], left


def branch_of(parent: Trajectory, index: int, line: int, **changes: Any) -> Trajectory:
    """A session of two lines that begins after so many lines of its parent, which is the trajectory `index`."""
    asked = parent.prompt_ids + parent.completion_ids[: parent.lines[line - 1].end + 2]
    return replace(recorded(TASKS[0], 7), prompt_ids=asked, branch=Branch(index, line, 0.5), **changes)


CUT = {"stop_reason": StopReason.MAX_TOKENS}


def test_a_root_that_is_left_out_keeps_what_it_shares_with_branches_that_stay() -> None:
    """A root of four lines of three tokens ran out of tokens; branches of it did or did not."""
    root = replace(recorded(TASKS[0], 0, lines=4), **CUT)
    first = branch_of(root, 0, 1)
    second = branch_of(root, 0, 2)
    third = branch_of(root, 0, 3, **CUT)
    assert masked([root, first], "overlong", group_size=2) == ([[1] * 3 + [0] * 9, [1] * 6], [True, False])
    kept, left = masked([root, first, second, third], "overlong", group_size=4)
    assert kept == [[1] * 6 + [0] * 6, [1] * 6, [1] * 6, [0] * 6]
    assert left == [True, False, False, True]
    lost = [root, replace(first, **CUT)]
    assert masked(lost, "overlong", group_size=2) == ([[0] * 12, [0] * 6], [True, True])
    both = masked([*lost, root, second], "overlong", group_size=2)
    assert both == ([[0] * 12, [0] * 6, [1] * 6 + [0] * 6, [1] * 6], [True, True, True, False]), "two groups"


def test_a_branch_is_judged_as_the_whole_session() -> None:
    """Its parent's second line raised: a branch before it has nothing to do with that, a branch after it has."""
    root = recorded(TASKS[0], 0, lines=4)
    root = replace(root, lines=(root.lines[0], replace(root.lines[1], kind=LineKind.EXCEPTION), *root.lines[2:]))
    kept, left = masked([root, branch_of(root, 0, 1), branch_of(root, 0, 2)], {"kinds": ["exception"]}, group_size=3)
    assert kept == [[1] * 3 + [0] * 9, [1] * 6, [0] * 6]
    assert left == [True, False, True]
    ratios = [[1.0] * 3 + [1e-6] + [1.0] * 8, [1.0] * 6, [1.0] * 6]
    vetoed = masked([root, branch_of(root, 0, 1), branch_of(root, 0, 2)], {"veto": 1e-4}, ratios, group_size=3)
    assert vetoed == (kept, left)


@pytest.mark.parametrize(
    ("mask", "ratios", "stays"),
    [
        ({"geometric": (0.9, 1.1)}, [[1.5] * 3, [1 / 1.5] * 3], True),
        ({"geometric": (0.9, 1.1)}, [[1.0] * 3, [1.5] * 3], False),
        ({"veto": 1e-4}, [[1.0] * 3, [1.0, 1e-6, 1.0]], False),
    ],
)
def test_a_session_that_was_compacted_stays_or_goes_as_a_whole(
    mask: dict[str, Any], ratios: list[list[float]], stays: bool
) -> None:
    """Its two parts, of a line each, are two rows. Another session, and what that asked, are on their own."""
    compacted = replace(recorded(TASKS[0], 0), compactions=(Compaction(5, "shorter", (1, 2)),))
    call = SubCall("a question", "an answer", trajectory=recorded(TASKS[0], 0, lines=1))
    asking = recorded(TASKS[1], 0, lines=1)
    asking = replace(asking, lines=(replace(asking.lines[0], subcalls=(call,)),))
    alone = [[1.0] * 3]
    row = [int(stays)] * 3
    # rows: the first parts of both sessions, the second part of the first, then what was asked
    first, second = ratios
    assert masked([compacted, asking], mask, [first, *alone, second, *alone]) == (
        [row, [1] * 3, row, [1] * 3],
        [not stays, False],
    )
    assert masked([compacted, asking], mask, [*alone * 3, second]) == (
        [[1] * 3] * 3 + [[0] * 3],
        [False, False],
    )


def root_and_branch(task: Task, index: int) -> Trajectory:
    """Of task a, a root of four lines that ran out of tokens and a branch after its first line that did not."""
    if task.id != "a":
        return recorded(task, index, is_right=index == 0)
    root = replace(recorded(task, 0, lines=4), **CUT)
    return root if index == 0 else branch_of(root, 0, 1)


def test_what_a_root_shares_is_all_that_its_loss_on_the_output_and_its_weights_know_of(tmp_path: Path) -> None:
    """What the model typed after it is no output of the interpreter's, and in no ratio of its sequence."""
    trainer = recorded_trainer(
        tmp_path,
        root_and_branch,
        TASKS,
        mask="overlong",
        output_loss=0.5,
        num_iterations=2,
        vllm_importance_sampling_mode="sequence_truncate",
    )
    batch = trainer.batch()
    root = root_and_branch(TASKS[0], 0)
    assert loss_mask_of(batch)[0].tolist() == [1] * 3 + [0] * 15
    assert (batch["output_weights"][0] > 0).tolist() == [False] * 18, "its shared line ends before its output"
    others = batch["completion_mask"] * (1 - batch["tool_mask"])
    others[0] = 0
    assert torch.equal(batch["output_weights"] > 0, others.bool())
    apart = batch["old_per_token_logps"][0, :3] - torch.tensor(root.logprobs[:3])
    most = trainer.vllm_importance_sampling_clip_max
    torch.testing.assert_close(batch["importance_sampling_ratio"][0, 0], apart.sum().exp().clamp(max=most))
