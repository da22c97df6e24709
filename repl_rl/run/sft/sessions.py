"""Which recorded sessions are trained on, and these sessions in the tokens of the model that learns from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from repl_rl.config import Config, SftConfig
from repl_rl.errors import ConfigError, KernelError, RunError
from repl_rl.rollout import Checked, RolloutSetup, make_pool, retyped, scheduled, what_differs
from repl_rl.run.recorded import KnownTasks, whole_sessions
from repl_rl.trajectory import Task, Trajectory, read_jsonl


@dataclass(slots=True)
class LeftOut:
    """How many sessions were left out for which reason, with the first of each as an example."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str = "") -> None:
        self.counts[reason] += 1
        if example:
            self.examples.setdefault(reason, example)

    def sentences(self) -> Iterator[str]:
        """One for each reason, the most frequent first."""
        for reason, count in self.counts.most_common():
            example = self.examples.get(reason)
            yield f"{count:,} {reason}" + (f", the first: {example}" if example else "")


def session_files(sources: Sequence[Path]) -> list[Path]:
    """The files of rollouts that `--from` names: a run's folder stands for those of its steps. Raises RunError."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            found = sorted((source / "rollouts").glob("step_*.jsonl"))
            if not found:
                raise RunError(f"--from {source}: there are no rollouts in it (rollouts/step_*.jsonl)")
            files += found
        elif source.is_file():
            files.append(source)
        else:
            raise RunError(f"--from {source}: there is no such file or folder")
    return files


def read_sessions(files: Iterable[Path]) -> Iterator[Trajectory]:
    """The whole sessions of the files: of a branch, with its parents' lines. Raises RunError for unreadable records,
    and ConfigError for a branch whose parent is not there."""
    for file in files:
        try:
            yield from whole_sessions(list(read_jsonl(file)))
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}; give a file that holds its parent too") from error


def choose(config: Config, sessions: Iterable[Trajectory], left_out: LeftOut) -> list[tuple[Task, Trajectory]]:
    """The sessions that the section `sft` asks for, each with its problem, in their order."""
    known = KnownTasks(config)
    chosen = []
    typed: set[tuple[str, str]] = set()
    for session in sessions:
        reason = _why_not(config, session)
        if reason:
            left_out.add(reason)
            continue
        try:
            task = known.task_of(session)
        except ConfigError as error:
            left_out.add("with no question", str(error))
            continue
        text = "".join(line.text for line in session.lines)
        if known.is_held_out(task):
            left_out.add("of held-out problems, which eval measures with")
        elif (task.question, text) in typed:
            left_out.add("typed like another one")
        else:
            typed.add((task.question, text))
            chosen.append((task, session))
    return chosen


def _why_not(config: Config, session: Trajectory) -> str:
    """Why a session is not trained on, as far as it says so itself; "" if nothing speaks against it."""
    plan: SftConfig = config.sft
    dialect = session.dialect or "python"
    if session.is_void:
        return "lost by the machinery, or without a line"
    if dialect != config.dialect.name:
        return f"in the dialect {dialect}, while dialect.name is {config.dialect.name}"
    if session.compactions:
        return "compacted on the way"
    if any(line.subcalls for line in session.lines):
        return "in which a language model was asked"
    if plan.sessions == "right":
        if session.outcome_reward is None:
            return "never graded (sft.sessions: all takes them)"
        if session.outcome_reward <= 0:
            return "not right"
    kinds = {line.kind for line in session.lines}
    for kind in plan.without:
        if kind in kinds:
            return f"with a line of the kind {kind} (sft.without)"
    return ""


async def type_again(
    config: Config,
    path: str,
    checked: Checked,
    chosen: Sequence[tuple[Task, Trajectory]],
    left_out: LeftOut,
    count_one: Callable[[], None] = lambda: None,
) -> list[Trajectory]:
    """The sessions in the tokens of the model at `path`, those that did what they did when they were recorded, and of
    each problem the shortest."""
    setup = RolloutSetup.for_model(config, path, checked.extensions)
    again: list[Trajectory | None] = [None] * len(chosen)
    async with make_pool(config.kernel) as pool:
        kernels = setup.kernels(pool)

        async def type_one(index: int) -> Trajectory | None:
            task, recorded = chosen[index]
            return await _typed_alike(retyped(kernels, setup, task, recorded), recorded, left_out)

        async with aclosing(scheduled(type_one, len(chosen), config.kernel.size)) as completed:
            async for index, session in completed:
                again[index] = session
                count_one()
    return _shortest([session for session in again if session is not None], config.sft.shortest, left_out)


async def _typed_alike(typing: Awaitable[Trajectory], recorded: Trajectory, left_out: LeftOut) -> Trajectory | None:
    """The session, unless it came out otherwise than it was recorded."""
    where = f"task {recorded.task_id!r}"
    try:
        session = await typing
    except ConfigError as error:
        left_out.add("that can't begin here", str(error))
        return None
    except ValueError as error:
        left_out.add("with a text that this tokenizer changes", f"{where}: {error}")
        return None
    except KernelError as error:
        left_out.add("lost by the machinery when they were typed again", f"{where}: {error}")
        return None
    if not session.lines:
        left_out.add("with no line that was typed to its end")
        return None
    if session.is_overlong and not recorded.is_overlong:
        left_out.add("longer than the config allows (budget, engine.context_tokens)", f"{where}: {session.stop_reason}")
        return None
    came_out = what_differs(recorded, session)
    if came_out is not None:
        left_out.add("came out otherwise than recorded", f"{where}: {came_out}")
        return None
    return session


def _shortest(sessions: Sequence[Trajectory], count: int | None, left_out: LeftOut) -> list[Trajectory]:
    """Of each problem so many sessions with the fewest typed tokens, in the order in which they were given."""
    if count is None:
        return list(sessions)
    by_problem: dict[str | None, list[Trajectory]] = defaultdict(list)
    for session in sessions:
        by_problem[session.question].append(session)
    kept: set[int] = set()
    for group in by_problem.values():
        group.sort(key=lambda session: session.sampled_tokens)
        kept.update(id(session) for session in group[:count])
        for _ in group[count:]:
            left_out.add(f"not among the shortest of their problem (sft.shortest: {count})")
    return [session for session in sessions if id(session) in kept]
