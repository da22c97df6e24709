"""A recorded session to go on from: `runs/x/rollouts/step_00012.jsonl#17`, and one of its lines, both counted from 0.

`repl-rl play --from` and `repl-rl rollout --from` take it. Its lines run again in a fresh interpreter; what is typed
from there on is kept as branches of the recorded session, so that `repl-rl view` shows the common part once.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Task, Trajectory, read_jsonl, whole_session, write_jsonl
from repl_rl.utils.text import cut_middle
from repl_rl.view.terminal import print_trajectory, say
from repl_rl.view.words import counted, one_line, solved, status

if TYPE_CHECKING:
    from repl_rl.config import Config
    from repl_rl.run.folder import RunFolder
    from repl_rl.tasks import Split

_SHOWN = 4
"""How many sessions are printed where a file holds them all."""
_REFERENCE_CHARS = 80
_VERDICTS = {"solved": "right", "not solved": "wrong", "not graded": "never graded", "void": "lost"}
"""What is said of a session with a verdict of `status`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say where to go on from."""
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE#N",
        help="go on from the N-th session of a file of rollouts, counted from 0, as its run's config says",
    )
    parser.add_argument("--line", type=int, metavar="K", help="with --from: after its first K lines (default: 0)")


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A session with what is needed to go on from it."""

    name: str
    """As the user gave it."""
    config: Config
    """Of its run, with the user's overrides."""
    run: Path | None
    """The run's folder; None for a file that is in none."""
    task: Task
    trajectory: Trajectory
    """Whole: of a branch, with its parents' lines before its own."""
    line: int
    ungraded: str = ""
    """Why what goes on from it can't be graded, in words; empty if it can be."""

    @property
    def begun(self) -> Trajectory:
        """The session before the line."""
        return self.trajectory.at(self.line)


def recorded_session(options: argparse.Namespace) -> RecordedSession:
    """What `--from`, `--line`, `--set` and the command's config ask for.

    Raises ConfigError for a session or line that is not there, for a file in no run's folder without a config, and for
    an `--out` that is the file itself; RunError for a file that can't be read.
    """
    from repl_rl.run.folder import RunFolder

    file_name, mark, number = options.source.rpartition("#")
    if not mark or not number.isdecimal():
        raise ConfigError(
            f"{options.source}: say which session of a file of rollouts, counted from 0, as in "
            "runs/NAME/rollouts/step_00012.jsonl#17"
        )
    file = Path(file_name)
    trajectories = list(read_jsonl(file))
    if options.out is not None and options.out.exists() and options.out.samefile(file):
        raise ConfigError(f"--out {options.out} is the file of the recorded session itself; give another name")
    position = int(number)
    if position >= len(trajectories):
        raise ConfigError(f"{options.source}: {file} has {len(trajectories)} sessions, counted from 0")
    folder = RunFolder(file.resolve().parent.parent)
    is_of_run = folder.config_path.is_file()
    config = _config(options, folder if is_of_run else None)
    trajectory = _whole(trajectories, position)
    line = _require_line(options.line or 0, trajectories[position], trajectory)
    known = KnownTasks(config)
    task = _graded_as_configured(known.task_of(trajectory), config)
    run = folder.path if is_of_run else None
    return RecordedSession(options.source, config, run, task, trajectory, line, known.why_ungraded(trajectory))


def _graded_as_configured(task: Task, config: Config) -> Task:
    """With `tasks.unreadable: text`, an answer that can't be read is compared as a text, as in the session's run."""
    from repl_rl.rollout import environment_pays
    from repl_rl.tasks import require_gradable

    if config.tasks.unreadable != "text" or environment_pays(config):
        return task
    try:
        require_gradable([task])
    except ConfigError:
        return replace(task, metadata={**task.metadata, "graded_as": "text"})
    return task


def _require_line(line: int, stored: Trajectory, whole: Trajectory) -> int:
    """The line's number in the whole session. Raises ConfigError if there is none.

    Of a branch, lines are counted from its own first one, as on the page.
    """
    parent_lines = len(whole.lines) - len(stored.lines)
    try:
        stored.at(line)
        whole.at(parent_lines + line)
    except ValueError as error:
        raise ConfigError(f"--line {line}: {error}") from error
    return parent_lines + line


def _config(options: argparse.Namespace, run: RunFolder | None) -> Config:
    from repl_rl.config import load_config

    if options.config is not None:
        return load_config(options.config, tuple(options.set))
    if run is None:
        raise ConfigError(f"{options.source}: the file is not in a run's folder; name the config that it is of")
    return load_config(str(run.config_path), tuple(options.set))


def _whole(trajectories: Sequence[Trajectory], position: int) -> Trajectory:
    """A session with its parents' lines, which stand before it in its group."""
    first = 0
    for _, group in groupby(trajectories, lambda trajectory: trajectory.task_id):
        members = list(group)
        if position < first + len(members):
            return _whole_in_group(members, position - first)
        first += len(members)
    raise AssertionError("the position is one of the file's")


def whole_sessions(trajectories: Sequence[Trajectory]) -> Iterator[Trajectory]:
    """The sessions of a file, each branch with its parents' lines before its own. Raises ConfigError for a branch whose
    parent is not there."""
    for _, group in groupby(trajectories, lambda trajectory: trajectory.task_id):
        members = list(group)
        for index, member in enumerate(members):
            yield member if member.branch is None else _whole_in_group(members, index)


def _whole_in_group(members: Sequence[Trajectory], index: int) -> Trajectory:
    """A task may have had two groups in a step: a group of trees begins with a session that is no branch."""
    starts = [0]
    for number in range(1, len(members)):
        if members[number].branch is None and members[number - 1].branch is not None:
            starts.append(number)
    start = max(start for start in starts if start <= index)
    try:
        return replace(whole_session(members[index], members[start:]), branch=None)
    except (ValueError, IndexError, RecursionError) as error:  # a file may name any parent
        raise ConfigError(
            f"session {index} of task {members[index].task_id!r}, counted from 0 in its group, is a branch of another "
            f"one, which is not where it should be: {error}"
        ) from error


class KnownTasks:
    """The problems of a config, for sessions that were recorded with it: those that a run would draw, all others of its
    data set, and generated ones, which are made again from their ids."""

    def __init__(self, config: Config) -> None:
        """A data set that is not here any more has none."""
        self._config = config
        self._failures: list[str] = []
        train_count = config.tasks.train
        held_out_count = config.eval.problems
        if not config.tasks.is_generated:  # other sessions may be of any problem: `eval --problems` takes more
            train_count = held_out_count = sys.maxsize
        self._held_out = self._loaded("heldout", 0, held_out_count)
        self._by_id: dict[str, list[Task]] = {}
        for task in self._loaded("train", config.seed, train_count) + self._held_out:
            self._by_id.setdefault(task.id, []).append(task)

    def _loaded(self, split: Split, seed: int, count: int, compared: bool = False) -> list[Task]:
        """So many problems; none if they can't be loaded."""
        from repl_rl.tasks import load_tasks

        try:
            return load_tasks(self._config.tasks, split, seed, count, compared=compared)
        except ConfigError as error:
            self._failures.append(str(error))
            return []

    def find(self, trajectory: Trajectory) -> Task | None:
        """The problem as its run had it; None if it is not one of the config's."""
        for task in self._by_id.get(trajectory.task_id, ()):
            if trajectory.question in (None, task.question):
                return task
        if trajectory.question is None:
            return None
        if trajectory.task_id == "task" and not trajectory.family:  # that of `--task`, which has an answer or none
            return Task("task", trajectory.question, trajectory.reference or "")
        return self._made_again(trajectory, trajectory.question)

    def _made_again(self, trajectory: Trajectory, question: str) -> Task | None:
        """A generated problem, by the operands in its id (`make_tasks`); None if its family does not ask this
        question of them. A file may name any family: only those that ship or that the config names are imported."""
        from repl_rl.tasks.make import KNOWN, family_of

        name = trajectory.family
        if name not in KNOWN and name not in (self._config.tasks.families or ()):
            return None
        try:
            family = family_of(name)
            pattern = re.escape(family.name) + "-(?:train|heldout)((?:--?[0-9]+)*)"
            match = re.fullmatch(pattern, trajectory.task_id)
            if match is None:
                return None
            operands = [int(number) for number in re.findall("-(-?[0-9]+)", match[1])]
            values = family.present(*operands)
            questions = [phrasing.format(*values) for phrasing in family.phrasings]
            if question not in questions:
                return None
            answer = str(family.solve(*operands))
        except Exception as error:  # noqa: BLE001 - the id may be any text, and so may its operands
            self._failures.append(f"its family {name!r} can't make it from its id: {one_line(str(error))}")
            return None
        return Task(trajectory.task_id, question, answer, name, {"operands": operands})

    def task_of(self, trajectory: Trajectory) -> Task:
        """The problem as its run had it, or else as far as the record tells, which may be too little to grade with
        (`why_ungraded`). Raises ConfigError for a session that does not say what was asked."""
        task = self.find(trajectory)
        if task is not None:
            return task
        if trajectory.question is None:
            raise ConfigError(
                f"task {trajectory.task_id!r} is none of the config's problems, and the session does not hold its "
                "question; name the config that it was recorded with"
            )
        return Task(trajectory.task_id, trajectory.question, trajectory.reference or "", trajectory.family)

    def why_ungraded(self, trajectory: Trajectory) -> str:
        """Why an answer to the session's problem can't be graded, in words; empty if it can be."""
        from repl_rl.rollout import environment_pays
        from repl_rl.tasks.make import KNOWN

        pays = environment_pays(self._config)
        family = KNOWN.get(trajectory.family)
        decides = family is not None and family.accepts is not None
        task = self.find(trajectory)
        if task is not None:
            is_gradable = pays or bool(task.answer) or (decides and "operands" in task.metadata)
            return "" if is_gradable else "the session's problem has no answer to grade with"

        reference = trajectory.reference
        if pays:
            reason = "the environment that pays would get no more of it than its question"
        elif reference is None:
            reason = "the session holds no answer to grade with"
        elif decides:
            reason = f"its family {trajectory.family!r} grades by more than the reference answer"
        elif ":" in trajectory.family and family is None:
            reason = f"its family {trajectory.family!r} may grade by more than the reference answer"
        elif " or " in reference:
            reason = f"its reference answer {cut_middle(reference, _REFERENCE_CHARS, ' ... ')!r} may be several"
        else:
            return ""
        why_unknown = "".join(f" ({failure})" for failure in self._failures[:1])
        return (
            f"task {trajectory.task_id!r} is none of the config's problems{why_unknown}, and {reason}; name the config "
            "that it was recorded with, or bring its data set back"
        )

    def is_held_out(self, task: Task) -> bool:
        """Whether the config measures with this question."""
        return task.question in self._measured

    @cached_property
    def _measured(self) -> frozenset[str]:
        """The questions of the config's held-out problems."""
        from repl_rl.rollout import environment_pays

        config = self._config
        tasks = self._held_out[: config.eval.problems]
        if config.tasks.unreadable == "skip":  # others take the places of those that can't be graded
            compared = not environment_pays(config)
            tasks = self._loaded("heldout", 0, config.eval.problems, compared=compared)
        return frozenset(task.question for task in tasks)


def model_of(recorded: RecordedSession, asked: str | None) -> tuple[Config, str]:
    """The config with the model that is to go on, and what it is called: the one that was asked for, or the newest of
    the session's run."""
    from repl_rl.run.evaluation.plan import checkpoint_of

    config = recorded.config
    model = asked or (config.model.path if recorded.run is None else str(recorded.run))
    model_config = config.model.model_copy(update={"path": checkpoint_of(model)})
    return config.model_copy(update={"model": model_config}), model


def differences(recorded: RecordedSession, sessions: Sequence[Trajectory]) -> Iterator[str]:
    """Whether the lines came out as recorded, a sentence for each that did not."""
    from repl_rl.rollout import first_difference

    if not recorded.line:
        yield f"{recorded.name}: from the prompt on"
        return
    numbers = []
    for session in sessions:
        number = first_difference(recorded.begun, session)
        if number is not None:
            numbers.append(number)
    lines = counted(recorded.line, "line")
    if not numbers:
        yield f"{recorded.name}: its first {lines} came out as recorded"
        return
    first = min(numbers)
    text = one_line(recorded.trajectory.lines[first].text.strip())
    yield (
        f"{recorded.name}: of its first {lines}, line {first} came out otherwise than recorded in {len(numbers)} of "
        f"{counted(len(sessions), 'session')}: {text}"
    )


def beside_the_recorded(recorded: RecordedSession, sessions: Sequence[Trajectory]) -> list[Trajectory]:
    """The recorded session, and the others as its branches. Those whose first lines came out otherwise stay whole, and
    so do those that were compacted there."""
    from repl_rl.rollout import first_difference

    members = [recorded.trajectory]
    for session in sessions:
        is_branch = recorded.line and len(session.lines) > recorded.line
        if is_branch and first_difference(recorded.begun, session) is None and _begins_alike(recorded.begun, session):
            session = session.as_branch(recorded.line, 0, 1 / (len(sessions) + 1))
        members.append(session)
    return members


def _begins_alike(begun: Trajectory, session: Trajectory) -> bool:
    length = len(begun.completion_ids)
    if any(compaction.start <= length for compaction in session.compactions):
        return False
    return session.completion_ids[:length] == begun.completion_ids


def roll_out(options: argparse.Namespace, console: Console) -> int:
    """`repl-rl rollout --from`: let a model go on from the line, as often as `-n` says."""
    import asyncio

    from repl_rl.rollout import check_rollouts, gone_on, open_rollout, score
    from repl_rl.run.progress import Progress
    from repl_rl.tasks import grade
    from repl_rl.utils.statistics import wilson

    recorded = recorded_session(options)
    config, model = model_of(recorded, options.model)
    checked = check_rollouts(config)
    progress = Progress(console)
    sampling = config.sampling.seeded(f"{config.seed}/rollout")

    async def go_on() -> list[Trajectory]:
        async with open_rollout(config, sessions=options.n, checked=checked) as rollout:
            progress.say(f"{counted(options.n, 'session')} of {model} ...")
            return await gone_on(rollout, recorded.task, recorded.begun, options.n, sampling)

    with progress.interrupts():
        sessions = asyncio.run(go_on())
    if not recorded.ungraded:
        tasks = [recorded.task] * options.n
        scored = score(tasks, sessions, grade, checked.table)
        sessions = [item.trajectory for item in scored]
    members = beside_the_recorded(recorded, sessions)
    if options.out is not None:
        write_jsonl(options.out, members)
    for trajectory in members[1:] if options.out is None else members[1 : 1 + _SHOWN]:
        print_trajectory(console, trajectory)
    for sentence in differences(recorded, sessions):
        say(console, sentence)
    counting = [session for session in sessions if not session.is_void]
    right = sum(map(solved, counting))
    if recorded.ungraded:
        say(console, f"nothing is graded: {recorded.ungraded}", "yellow")
    elif counting:
        low, high = wilson(right / len(counting), len(counting))
        share = f"{right} of {len(counting)} right, {right / len(counting):.0%} ({low:.0%} to {high:.0%})"
        was = status(recorded.trajectory)
        say(console, f"from line {recorded.line} on: {share}; the recorded session was {_VERDICTS[was]}")
    if options.out is not None:
        say(console, f"beside each other: repl-rl view {options.out} --serve")
    return 0
