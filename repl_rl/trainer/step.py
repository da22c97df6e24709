"""A step: from rows of the data set to the tensors that the loss takes. The order of the file is the order of a step.

    1  draw         rows of the data set, one for each session, group after group
    2  roll out     a session in a live interpreter for each row, graded, with a reward for each line; groups that teach
                    nothing are rolled out anew with other rows (`redraws`)
    3  reward       TRL's reward functions, which see whole sessions
    4  credit       what they gave is added to the last line; then an advantage for each line: its return less a
                    baseline, within its group (`repl_rl.credit`)
    5  lay out      rows of tensors; a line's advantage goes to each of its tokens (`token_advantages`)
    6  look back    log-probabilities before the update, of the policy and of the reference model, where a loss asks
    7  leave out    what masks (`train.mask`) keep out of the loss
    8  weigh        the sampler's weights, the share of rows, tokens that Clip-Cov draws, the interpreter's output

What is sampled at once is a batch here. TRL splits it into `steps_per_generation` batches, which are those that the
loss sees; an update takes `gradient_accumulation_steps` of these.

`make_batch` takes them in turn, each as a phase of the step's timeline. No function here takes a trainer: what a step
needs of one stands in `StepParts`, so other trainers can fill it in.

A session whose machinery failed (`is_void`) has a reward of 0, is in no baseline, and is one token outside the loss
(`Row.lists`). A session that a mask leaves out has its part in the baseline, because credit comes first. Where the
outcome alone is paid, a group whose outcomes are equal has advantages of 0; its tokens still count in what losses
divide by, and in the KL term. A session that was compacted is a row for each of its parts, and what a session asked in
sub-calls are further rows (`subcalls.train`), each a row in means over rows; an evaluation has the first part alone.

B rows of the batch, T completion tokens, N sessions of this process. The first N rows are those of the sessions, in
their order.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import torch
from trl.trainer.utils import pad

from repl_rl.config import BranchConfig, MaskConfig, SamplingConfig
from repl_rl.credit.critic import Critic
from repl_rl.errors import ConfigError
from repl_rl.rewards import RewardTable, ScoredTrajectory
from repl_rl.rollout import CreditedTrajectory, Grader, RolloutBatch, RolloutService, credit, credit_numbers, score
from repl_rl.trainer.arguments import ReplGRPOConfig
from repl_rl.trainer.loss import SamplerCorrection, loss_mask_of, weights_of_sampler
from repl_rl.trainer.mask import covarying, within_ratios
from repl_rl.trainer.pass_rates import PassRates, right_share
from repl_rl.trainer.redraw import further_rows, redraw
from repl_rl.trainer.resample import resampled
from repl_rl.trainer.rows import Row, row_lists, rows_of, task_of
from repl_rl.trainer.run_files import kept_on_failure, write_rollouts
from repl_rl.trainer.step_log import StepLog
from repl_rl.trainer.timeline import Timeline
from repl_rl.trainer.trainer_queue import TrainerQueue
from repl_rl.trajectory import Task, Trajectory, whole_session
from repl_rl.utils.distributed import gather as gather_objects

DataRow = dict[str, Any]
"""A row of the data set."""
Tensors = dict[str, torch.Tensor]
"""A batch by TRL's names: `prompt_ids`, `prompt_mask`, `completion_ids`, `completion_mask` (0 on padding), `tool_mask`
(0 where the interpreter wrote the token or it is left out of the loss), `advantages`, `sampling_per_token_logps`, ...
each with B rows; and numbers of the batch."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step needs of its trainer."""

    args: ReplGRPOConfig
    is_training: bool
    group_size: int
    updates: int
    """How many updates the policy has had. Schedules of rewards go by it."""
    batch_number: int
    """The place of the batch within the run, for what is drawn at random."""
    process: int
    processes: int

    dataset: Any
    """The rows that others are drawn from: an index gives a row."""
    task_ids: Sequence[str]
    """The task of each row, where problems are drawn by their pass rates."""
    pass_rates: PassRates
    queue: TrainerQueue
    """The groups that are rolled out ahead, with `asynchronous`."""
    service: RolloutService
    sampling: Callable[[int], SamplingConfig]
    """Takes a number of sessions, and says how the next so many are sampled."""
    after_rollouts: Callable[[], None]
    """Called when all sessions have ended: the engine may give its memory to the trainer."""
    last_rollouts_at: float | None
    """When the rollouts of the step before were complete, by `time.perf_counter`."""
    tools: Sequence[str] | None
    """Names of the user's tools; None if there are neither tools nor an environment."""

    grader: Grader
    table: RewardTable
    reward: Callable[["Sessions"], torch.Tensor]
    """TRL's reward functions, (N, functions); NaN where one has nothing to say. The first are our own components. It is
    given `whole_sessions`."""
    reward_weights: Sequence[float]
    critic: Critic | None

    policy_logprobs: Callable[[Tensors], torch.Tensor]
    """(B, T), without gradients."""
    reference_logprobs: Callable[[Tensors], torch.Tensor] | None
    """None where no KL term asks for them."""
    correction: SamplerCorrection | None
    is_left_out: Callable[[Trajectory], bool]
    """Whether a whole session is left out of the loss for what became of it (`train.mask`)."""

    gather: Callable[[torch.Tensor], torch.Tensor]
    """The tensors of all processes, one after another."""
    device: torch.device
    log: StepLog
    timeline: Timeline
    rollouts_path: Path | None
    """The file of the trajectories of all processes, which the main one writes; None where there is none."""

    @property
    def failure_path(self) -> Path | None:
        """Where this process keeps its trajectories if a step fails; None where it does not."""
        return self.rollouts_path if self.process == 0 else None


@dataclass(frozen=True, slots=True)
class Sessions:
    """What one process sampled for a step: sessions, group after group, and the row of the data set of each."""

    rows: list[DataRow]
    scored: list[ScoredTrajectory]
    ended_at: float
    """By `time.perf_counter`."""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [session.trajectory for session in self.scored]


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a batch: first those of sessions, in their order, then what else was sampled in them."""

    rows: list[Row]
    size: int
    """The rows of the batch. Those beyond `rows` are filler: one token outside the loss."""


def make_batch(inputs: Sequence[DataRow], parts: StepParts) -> tuple[Tensors, Sessions]:
    """The whole of a step up to its loss. All processes call this together."""
    phase = parts.timeline.phase
    with phase("draw"):
        rows = draw(inputs, parts)
    with phase("roll out", sessions=len(rows)):
        sessions = roll_out(rows, parts)
    with phase("rest engine"):
        parts.after_rollouts()
    with kept_on_failure(parts.failure_path, sessions.trajectories):
        with phase("reward"):
            rewards = parts.reward(whole_sessions(sessions, parts.group_size))
        with phase("credit"):
            credited = credit_lines(sessions, rewards, parts)
        with phase("lay out"):
            layout = lay_out(sessions.trajectories, parts)
            batch = tensors_of(layout, credited, parts)
        # 1 on the interpreter's tokens, (B, T): what is not typed, as long as nothing is left out.
        output_mask = batch["completion_mask"] - loss_mask_of(batch)
        with phase("look back"):
            batch |= looked_back(batch, parts)
        if parts.is_training and parts.args.mask != MaskConfig():
            with phase("leave out"):
                changed, kept = leave_out(batch, layout, sessions.trajectories, parts)
            batch |= changed
            output_mask = output_mask * kept
        with phase("weigh"):
            parts.log.sessions(sessions.trajectories)
            session_of_rows = [row.session for row in layout.rows]
            parts.log.advantages(batch["advantages"], loss_mask_of(batch), session_of_rows, len(sessions.scored))
            batch |= weights_of(batch, output_mask, parts)
    if parts.rollouts_path is not None:
        with phase("write rollouts"):
            write_rollouts(parts.rollouts_path, [session.trajectory for session in credited])
    return batch, sessions


# 1. Draw


def draw(inputs: Sequence[DataRow], parts: StepParts) -> list[DataRow]:
    """The rows that TRL's sampler drew, or with `tasks.sampling: pass_rate` as many that are likely to teach. All
    processes draw alike, and each takes its own groups. Raises ConfigError for a part of a group."""
    if len(inputs) % parts.group_size:
        kind = "train" if parts.is_training else "eval"
        raise ConfigError(
            f"{len(inputs)} sessions of a process are not whole groups of {parts.group_size}; make "
            f"per_device_{kind}_batch_size a multiple of {parts.group_size}"
        )
    if not _draws_by_rate(parts):
        return list(inputs)
    groups = len(inputs) // parts.group_size
    random = Random(f"{parts.args.seed}/pass_rate/{parts.batch_number}")
    drawn = parts.pass_rates.draw(parts.task_ids, groups * parts.processes, random)
    ours = drawn[parts.process * groups : (parts.process + 1) * groups]
    return [dict(parts.dataset[index]) for index in ours for _ in range(parts.group_size)]


def _draws_by_rate(parts: StepParts) -> bool:
    return parts.is_training and parts.args.task_sampling == "pass_rate"


# 2. Roll out


def roll_out(rows: Sequence[DataRow], parts: StepParts) -> Sessions:
    """A session for each row, graded, with a reward for each line. With `asynchronous`, rows and sessions are those of
    the groups whose turn it is. `redraws` replaces groups that teach nothing, and their rows."""
    args, log = parts.args, parts.log
    started = since = time.perf_counter()
    rows = list(rows)
    sampled: list[ScoredTrajectory] = []  # with those that are not kept

    def sample(tasks: Sequence[Task]) -> list[ScoredTrajectory]:
        more = sampled_and_scored(tasks, parts)
        sampled.extend(more)
        if not parts.is_training or args.oversample == 1:
            return more
        return resampled(more, parts.group_size, args.oversample, f"{args.seed}/{parts.batch_number}")

    if parts.is_training and args.asynchronous is not None:
        # Neither `redraws` nor `oversample` nor draws by pass rates go with the queue, and the config refuses them.
        with parts.timeline.phase("wait for groups"):
            taken, rows = parts.queue.take()
        log.values(taken.metrics(parts.queue.version))
        trajectories = [trajectory for _, group in taken.groups for trajectory in group]
        with kept_on_failure(parts.failure_path, trajectories):
            scored = _scored([task_of(row) for row in rows], trajectories, args.branch, parts)
        sampled += scored
        since = parts.last_rollouts_at or started
    else:
        with parts.queue.at_rest():
            scored = sample([task_of(row) for row in rows])
    if parts.is_training and args.redraws:
        with kept_on_failure(parts.failure_path, [session.trajectory for session in scored]):
            taken_ids = set(gather_objects([task_of(row).id for row in rows]))
            further = further_rows(parts.dataset, taken_ids, args.seed, parts.batch_number)
            ours = islice(further, parts.process, None, parts.processes)
            # It changes `rows` and `scored` in place.
            count = redraw(rows, scored, parts.group_size, ours, sample, args.credit, args.redraws)
            log.values({"credit/redrawn_groups": float(sum(gather_objects([count])))})
    if _draws_by_rate(parts):
        size = parts.group_size * args.oversample
        groups = [sampled[start : start + size] for start in range(0, len(sampled), size)]
        parts.pass_rates.learn(gather_objects([right_share(group) for group in groups]))
        log.values(parts.pass_rates.numbers(len(parts.dataset)))
    ended_at = time.perf_counter()
    parts.timeline.sessions([session.trajectory for session in sampled])
    log.batch([session.trajectory for session in sampled], ended_at - since, parts.service, parts.tools)
    if parts.is_training and (args.redraws or args.oversample > 1):
        log.kept([session.trajectory for session in scored], len(sampled))
    log.values({"time/waited_s": ended_at - started})
    return Sessions(rows, scored, ended_at)


def sampled_and_scored(tasks: Sequence[Task], parts: StepParts) -> list[ScoredTrajectory]:
    """A session for each task, or in training `oversample` of them. A training batch may have trees; an evaluation has
    neither."""
    branch = parts.args.branch if parts.is_training else None
    factor = parts.args.oversample if parts.is_training else 1
    asked = [task for task in tasks for _ in range(factor)]
    batch = RolloutBatch(asked, parts.sampling(len(asked)), branch, keeps_waits=parts.timeline.is_on)
    ended: dict[int, Trajectory] = {}
    with kept_on_failure(parts.failure_path, ended.values()):
        with parts.timeline.phase("sessions", sessions=len(asked)):
            trajectories = parts.service.roll_out(batch, ended.__setitem__)
        scored = _scored(asked, trajectories, branch, parts)
    return [replace(session, environment=batch.environments.get(index)) for index, session in enumerate(scored)]


def _scored(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], branch: BranchConfig | None, parts: StepParts
) -> list[ScoredTrajectory]:
    size = None if branch is None else branch.group_size
    with parts.timeline.phase("grade", sessions=len(trajectories)):
        return score(tasks, trajectories, parts.grader, parts.table, parts.updates, size)


# 3. Reward


def whole_sessions(sessions: Sessions, group_size: int) -> Sessions:
    """The sessions as TRL's reward functions see them: the trajectory of a branch has its parent's lines before its
    own. What it earned (`components`, `shown`) stays that of its own lines. A void one stays as it is."""
    trajectories = _whole_trajectories(sessions.trajectories, group_size)
    scored = []
    for session, trajectory in zip(sessions.scored, trajectories, strict=True):
        scored.append(replace(session, trajectory=trajectory))
    return replace(sessions, scored=scored)


def _whole_trajectories(trajectories: Sequence[Trajectory], group_size: int) -> list[Trajectory]:
    """`whole_session` of each, but of void ones, which may have no line of their own."""
    whole = []
    for index, trajectory in enumerate(trajectories):
        if not trajectory.is_void:
            start = index - index % group_size
            trajectory = whole_session(trajectory, trajectories[start : start + group_size])
        whole.append(trajectory)
    return whole


def reward_columns(sessions: Sessions, has_environments: bool) -> list[DataRow]:
    """What TRL's reward functions get of each session besides prompt and completion: the columns of its row, `scored`,
    and `environments` where they are in this process. Whoever fills in `StepParts.reward` hands them on, of the
    sessions that it is given."""
    columns = []
    for row, session in zip(sessions.rows, sessions.scored, strict=True):
        of_session = {**row, "scored": session}
        if has_environments:
            of_session["environments"] = session.environment
        columns.append(of_session)
    return columns


# 4. Credit


def credit_lines(sessions: Sessions, rewards: torch.Tensor, parts: StepParts) -> list[CreditedTrajectory]:
    """Each line's advantage. What TRL's reward functions gave is added to the last line of each session; they are the
    columns of `rewards` after those of our own components, which are in the lines' rewards already."""
    ours = len(parts.table.component_names)
    weights = torch.tensor(list(parts.reward_weights[ours:]), device=rewards.device)
    bonuses = (rewards[:, ours:] * weights).nansum(dim=1).tolist()
    scored = [session.with_bonus(bonus) for session, bonus in zip(sessions.scored, bonuses, strict=True)]
    credited = credit(scored, parts.group_size, parts.args.credit, parts.args.rewards.outcome, parts.critic)
    parts.log.values(credit_numbers(credited, parts.group_size))
    return credited


# 5. Lay out


def lay_out(trajectories: Sequence[Trajectory], parts: StepParts) -> Layout:
    """The rows of the batch. In training, after those of sessions come those of what was sampled after a compaction
    and, with `subcalls.train`, in sub-calls; the batch is one that divides into its steps, and as large in all
    processes."""
    args = parts.args
    trains_subcalls = parts.is_training and args.subcalls.train
    rows = rows_of(trajectories, trains_subcalls)
    size = len(trajectories)
    if not parts.is_training:
        del rows[size:]
    elif trains_subcalls or args.budget.compact_at is not None:
        largest = max(gather_objects([len(rows)]))
        size = ceil(largest / args.steps_per_generation) * args.steps_per_generation
    if trains_subcalls:
        asked = len(rows) - len(rows_of(trajectories))
        parts.log.values({"subcalls/rows": float(sum(gather_objects([asked])))})
    return Layout(rows, size)


def tensors_of(layout: Layout, credited: Sequence[CreditedTrajectory], parts: StepParts) -> Tensors:
    """The batch without log-probabilities of the trainer. A line's advantage stands on each token that was typed for
    it, and 0 on the interpreter's output."""
    pad_id = parts.service.vocabulary.pad_id
    multiple = parts.args.pad_to_multiple_of
    lists = row_lists(layout.rows, layout.size, pad_id)

    def padded(name: str, value: float, side: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        column = [torch.tensor(lists_of_row[name], dtype=dtype) for lists_of_row in lists]
        joined: torch.Tensor = pad(column, padding_value=value, padding_side=side, pad_to_multiple_of=multiple)
        return joined.to(parts.device)

    for lists_of_row in lists:
        lists_of_row["prompt_mask"] = [1] * len(lists_of_row["prompt_ids"])
        lists_of_row["completion_mask"] = [1] * len(lists_of_row["completion_ids"])
        # a sampler that could not score a token says None, which becomes NaN, and weighs nothing
        logprobs = lists_of_row["logprobs"]
        lists_of_row["logprobs"] = [float("nan") if logprob is None else logprob for logprob in logprobs]
    batch = {
        "prompt_ids": padded("prompt_ids", pad_id, "left", torch.long),
        "prompt_mask": padded("prompt_mask", 0, "left", torch.long),
        "completion_ids": padded("completion_ids", pad_id, "right", torch.long),
        "completion_mask": padded("completion_mask", 0, "right", torch.long),
        "sampling_per_token_logps": padded("logprobs", 0.0, "right"),
        "tool_mask": padded("env_mask", 1, "right"),  # with 1, as TRL does; completion_mask is 0 there
    }
    batch["advantages"] = token_advantages(layout.rows, credited, batch["completion_ids"])
    batch["num_items_in_batch"] = parts.gather(loss_mask_of(batch).sum()).sum()
    return batch


def token_advantages(
    rows: Sequence[Row], credited: Sequence[CreditedTrajectory], completion_ids: torch.Tensor
) -> torch.Tensor:
    """(B, T), from the advantage of each line; 0 on outputs, padding and void rows. `rows` are the first ones of the
    batch. The lines of a sub-call have the advantage of the line that asked (`Row.lines`)."""
    advantages = torch.zeros(completion_ids.shape, dtype=torch.float32, device=completion_ids.device)
    for index, row in enumerate(rows):
        lines = credited[row.owner].trajectory.lines
        for part_line, number in zip(row.part.lines, row.lines, strict=False):  # a void row names no lines
            advantages[index, part_line.start : part_line.end] = lines[number].advantage or 0.0
    return advantages


# 6. Look back


def looked_back(batch: Tensors, parts: StepParts) -> Tensors:
    """Log-probabilities before the update that the loss needs and its own pass does not give.

    Those of the policy are computed where a batch is in several updates (`num_iterations`, or `steps_per_generation`
    beyond `gradient_accumulation_steps`), and where a mask goes by them. In the only update of a batch, they are those
    of the loss's own pass. Those of the reference model are computed where there is a KL term.
    """
    logprobs: Tensors = {}
    if not parts.args.updates_once or parts.args.mask.needs_ratios:
        old = parts.policy_logprobs(batch)
        logprobs["old_per_token_logps"] = old
        sampled = batch["sampling_per_token_logps"]
        loss_mask = loss_mask_of(batch)
        weights = None
        if parts.correction is not None:  # to be logged, of all tokens; the loss has those of `weights_of`
            weights = weights_of_sampler(old, sampled, loss_mask, parts.correction)
        parts.log.drift(old, sampled, loss_mask, weights)
    if parts.reference_logprobs is not None:
        logprobs["ref_per_token_logps"] = parts.reference_logprobs(batch)
    return logprobs


# 7. Leave out


def leave_out(
    batch: Tensors, layout: Layout, trajectories: Sequence[Trajectory], parts: StepParts
) -> tuple[Tensors, torch.Tensor]:
    """The batch without the sessions that the mask leaves out, which are then in no sum, count or mean of the loss. And
    1 for each token that stays, (B, T), the interpreter's with those around them."""
    mask, group_size = parts.args.mask, parts.group_size
    kept, left_out = kept_tokens(batch, layout.rows, trajectories, mask, parts.is_left_out, group_size)
    changed = {"tool_mask": batch["tool_mask"] * kept.to(batch["tool_mask"])}
    changed["num_items_in_batch"] = parts.gather(loss_mask_of(batch | changed).sum()).sum()
    of_all = gather_objects(left_out)
    parts.log.values({"credit/masked_share": sum(of_all) / max(1, len(of_all))})
    return changed, kept


def kept_tokens(
    batch: Tensors,
    rows: Sequence[Row],
    trajectories: Sequence[Trajectory],
    mask: MaskConfig,
    is_out: Callable[[Trajectory], bool],
    group_size: int,
) -> tuple[torch.Tensor, list[bool]]:
    """1 for each token that stays in the loss, (B, T), and of each session that is not void, whether it is left out.
    Void ones are in no loss anyway.

    A session (`Row.session`) stays or goes with all its rows. Sub-calls are sessions of their own: they go if the one
    that asked (`Row.owner`) goes for what became of it; masks by ratios judge each session by its own tokens. A branch
    is judged as the whole session, and lines that it shares with others stay if one of those stays.
    """
    loss_mask = loss_mask_of(batch)
    out_by_end = _out_by_end(trajectories, is_out, group_size)
    stays: dict[int, bool] = {}  # by session
    for row in rows:
        is_overlong_subcall = row.session != row.owner and mask.overlong and row.part.is_overlong
        is_in = not out_by_end[row.owner] and not is_overlong_subcall
        stays[row.session] = stays.get(row.session, True) and is_in
    if mask.needs_ratios:
        log_ratios = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]) * loss_mask
        log_ratios = log_ratios.nan_to_num(nan=0.0)  # where the sampler gave no probability
        for session, places in _places(rows, trajectories, group_size).items():
            of_session = torch.cat([log_ratios[index, :end] for index, end in places])
            were_typed = torch.cat([loss_mask[index, :end] for index, end in places])
            stays[session] &= bool(within_ratios(mask, of_session[None], were_typed[None]))
    kept = torch.zeros_like(loss_mask)
    for index, row in enumerate(rows):
        kept[index] = int(stays[row.session])
    for index, end in _shared_ends(trajectories, stays, group_size).items():
        kept[index, :end] = 1
    return kept, [not stays[index] for index, trajectory in enumerate(trajectories) if not trajectory.is_void]


def _out_by_end(
    trajectories: Sequence[Trajectory], is_out: Callable[[Trajectory], bool], group_size: int
) -> list[bool]:
    """Whether each trajectory is left out for what became of it."""
    whole = _whole_trajectories(trajectories, group_size)
    return [not trajectory.is_void and is_out(trajectory) for trajectory in whole]


def _places(
    rows: Sequence[Row], trajectories: Sequence[Trajectory], group_size: int
) -> dict[int, list[tuple[int, int]]]:
    """Where each session was typed: rows, and how many of their tokens. A branch begins in its parent's row."""
    places: dict[int, list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        places.setdefault(row.session, []).append((index, len(row.part.completion_ids)))
    for index in range(len(trajectories)):
        if (beginning := _beginning(trajectories, index, group_size)) is not None:
            places[index].insert(0, beginning)
    return places


def _beginning(trajectories: Sequence[Trajectory], index: int, group_size: int) -> tuple[int, int] | None:
    """The root that a trajectory branched off, and how many of the root's tokens it begins with; None for others.
    Branches don't fork."""
    branch = trajectories[index].branch
    if branch is None or not branch.line:
        return None
    root = index - index % group_size + branch.parent
    return root, trajectories[root].lines[branch.line - 1].end


def _shared_ends(trajectories: Sequence[Trajectory], stays: Mapping[int, bool], group_size: int) -> dict[int, int]:
    """How many tokens of each root are the beginning of a branch that stays."""
    ends: dict[int, int] = {}
    for index, trajectory in enumerate(trajectories):
        beginning = _beginning(trajectories, index, group_size)
        if beginning is not None and stays[index] and not trajectory.is_void:
            root, end = beginning
            ends[root] = max(end, ends.get(root, 0))
    return ends


# 8. Weigh


def weights_of(batch: Tensors, output_mask: torch.Tensor, parts: StepParts) -> Tensors:
    """What the loss weighs tokens and rows by, of what is in it: the sampler's weights where the policy's
    log-probabilities before the update are known, the share of rows, advantages without those that Clip-Cov draws, and
    weights of the interpreter's tokens, where `output_mask` is 1, (B, T)."""
    args, loss_mask = parts.args, loss_mask_of(batch)
    weights: Tensors = {}
    is_in_loss = loss_mask.any(dim=1).float()  # (B,)
    weights["row_share"] = parts.gather(is_in_loss).mean()
    old = batch.get("old_per_token_logps")
    if old is not None and parts.correction is not None:
        sampled = batch["sampling_per_token_logps"]
        weights["importance_sampling_ratio"] = weights_of_sampler(old, sampled, loss_mask, parts.correction)
    if parts.is_training and args.mask.covariance is not None:
        random = Random(f"{args.seed}/covariance/{parts.batch_number}")
        old = batch["old_per_token_logps"]  # `needs_ratios` is true of this mask too
        drawn = covarying(args.mask.covariance, old, batch["advantages"], loss_mask, random)
        weights["advantages"] = batch["advantages"].masked_fill(drawn, 0.0)
        parts.log.share("credit/covariance_share", drawn, loss_mask)
    if parts.is_training and args.output_loss:
        # Filler and void rows have a token that was not typed, and is not the interpreter's either.
        in_rows = output_mask * loss_mask.any(dim=1, keepdim=True)
        count = parts.gather(in_rows.sum()).sum().clamp(min=1)
        # The loss divides by the batches of an update, and gradients are averaged over processes: with these weights,
        # an update has the mean over the output of the whole batch, of all processes.
        weights["output_weights"] = in_rows * (parts.processes * args.steps_per_generation / count)
    return weights
