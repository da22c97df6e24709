"""`Session`: what one trajectory has while it lives, whether it began at its prompt or at a fork."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import Dialect, PromptedReader, Reader, Shown, Turn, dialect_name
from repl_rl.engine import SampledLine, Slot
from repl_rl.errors import BrokenStateError, ForkRefusedError, KernelError
from repl_rl.kernel import KernelSession
from repl_rl.rollout import events
from repl_rl.rollout.execute import TrajectoryKernel, TurnResult, read_turn, run_turn
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.state import Clock, Prompt, Spent, Transcript, Wait
from repl_rl.rollout.subcalls import SubCalls
from repl_rl.tools import Toolbox
from repl_rl.tools.environments import EnvironmentSession
from repl_rl.trajectory import Branch, Line, LineKind, StopReason, Task, Trajectory
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, failure

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: one session, before it begins."""

    task: Task
    sampling: SamplingConfig
    budget: BudgetConfig
    clock: Clock
    index: int
    """The session's place in its batch."""
    listener: events.Listener | None = None
    """Told of each line as it comes."""
    environments: dict[int, Any] = field(default_factory=dict)
    """The environments of its batch. The session's own is put there when it has ended."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The surroundings of one trajectory. `environment` is open."""

    prompt: Prompt
    dialect: Dialect
    toolbox: Toolbox
    environment: EnvironmentSession | None = None
    subcalls: SubCalls | None = None
    """What the environment may ask a model."""

    @property
    def setup(self) -> tuple[str, ...]:
        """Code for the session before its first cell, after the dialect's."""
        environment_setup = "" if self.environment is None else self.environment.setup
        return (self.toolbox.setup_source(), environment_setup)

    async def fork(self, stack: AsyncExitStack) -> Self:
        """The same around a copy of the environment, which closes with `stack`. Raises ForkRefusedError."""
        if self.environment is None:
            return self
        if self.environment.asks_model:
            raise ForkRefusedError("its environment asks a model, and two sessions can't share budgets and answers")
        environment, environment_tools = await self.environment.fork()
        stack.push_async_callback(environment.close)
        # the environment's tools act on the copy; those of all trajectories stay as they are
        by_name = {tool.name: tool for tool in environment_tools.tools}
        tools = [by_name.get(tool.name, tool) for tool in self.toolbox.tools]
        toolbox = Toolbox(tools, self.toolbox.values)
        return replace(self, toolbox=toolbox, environment=environment)

    async def observed(self, turn: Turn) -> str:
        """What the environment shows after a turn in which something ran. Raises EnvironmentFailure."""
        if self.environment is None or not turn.cells:
            return ""
        return await self.environment.after_line()


class Typed(NamedTuple):
    """One turn of a session, as it was typed and as it ran."""

    text: bytes
    at_eos: bool
    ran: TurnResult


class Fork(NamedTuple):
    """A fork of a session's interpreter, and of what is around it."""

    episode: Episode
    kernel: KernelSession


class ReplayDiffersError(Exception):
    """The lines of a root showed something else when they were run again."""


@dataclass(slots=True)
class Start:
    """For a branch, what its root typed, and the fork, if the interpreter could be forked."""

    branch: Branch | None = None
    prompt: Prompt | None = None
    turns: tuple[Typed, ...] = ()
    spent: Spent = field(default_factory=Spent)
    fork: Fork | None = None
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Closes the fork and its environment. Closing it again does nothing."""


@dataclass(slots=True, eq=False)
class Session:
    """One trajectory so far, its surroundings and its interpreter."""

    request: Request
    setup: RolloutSetup
    episode: Episode
    kernel: TrajectoryKernel
    start: Start
    version: int
    """The weights of the engine before its first token is sampled."""
    slot: Slot = field(init=False)
    guests: tuple[Guest, ...] = ()
    sampling: SamplingConfig = field(init=False)
    lines: list[Line] = field(default_factory=list)
    turns: list[Typed] = field(default_factory=list)
    """One for each line that ran."""
    stop: StopReason | None = None
    """Why it is over, once it is."""
    error: str | None = None
    """What has failed, if that ended it."""
    answer: tuple[str, ...] | None = None
    answer_forms: tuple[str | None, ...] | None = None
    reader: Reader = field(init=False)
    transcript: Transcript = field(init=False)
    _sampled_text: str = field(default="", init=False)
    """The text of the line that was sampled last."""

    def __post_init__(self) -> None:
        self.sampling = self.request.sampling
        with boundary(Seam.DIALECT, self.episode.dialect, "reader"):
            self.reader = self.episode.dialect.reader()
        if not self.task.answer and hasattr(self.reader, "asks_left"):
            self.reader.asks_left = 0  # whatever it ends with: somebody's reward function looks at all of it
        if isinstance(self.reader, PromptedReader):
            with boundary(Seam.DIALECT, self.reader, "begin_after"):
                self.reader.begin_after(self.prompt.text)
        self.transcript = Transcript(self.prompt.ids, self.version)

    @property
    def task(self) -> Task:
        return self.request.task

    @property
    def budget(self) -> BudgetConfig:
        return self.request.budget

    @property
    def clock(self) -> Clock:
        return self.request.clock

    @property
    def prompt(self) -> Prompt:
        return self.start.prompt or self.episode.prompt

    @property
    def seconds(self) -> float:
        """How much of `budget.seconds` is used."""
        return self.start.spent.seconds + self.clock.running_s

    @property
    def tokens_left(self) -> int:
        return self.budget.tokens - self.start.spent.tokens - len(self.transcript.completion_ids)

    @property
    def is_full(self) -> bool:
        """Whether the context has no room for another token."""
        return len(self.transcript) >= self.setup.context_tokens

    def allowed(self) -> tuple[int, StopReason]:
        """How many tokens the next line may have, and why the session ends if it needs more."""
        return min(
            (self.budget.line_tokens, StopReason.LINE_TOKENS),
            (self.tokens_left, StopReason.MAX_TOKENS),
            (self.setup.context_tokens - len(self.transcript), StopReason.CONTEXT),
            key=lambda budgeted: budgeted[0],
        )

    async def open(self, slot: Slot) -> None:
        """Take the interpreter, and bring it to where the session begins. Raises KernelError, and ReplayDiffersError if
        it can't begin there."""
        self.slot = slot
        if self.start.fork is not None:
            self.kernel.adopt(self.start.fork.kernel)
        elif self.episode.dialect.needs_kernel:
            await self.kernel.start()
        await self._replay()
        self.clock.begin()
        self._tell(events.Began(self.task, self.prompt.text, self.prompt.ids))
        for guest in self.guests:
            with boundary(Seam.GUEST, guest, "opened"):
                await guest.opened(self)

    def sampled(self, turn: Turn, sampled: SampledLine) -> None:
        """Note that a line has been sampled, before any of it runs."""
        self._sampled_text = turn.text
        self._tell(events.Sampled(len(self.lines), turn.text, sampled.ids, sampled.logprobs))

    async def ran(self, turn: Turn, ran: TurnResult, at_eos: bool) -> TurnResult:
        """Note what a turn did and whether it was the last. Returns what guests make of it."""
        self.answer = ran.answer
        self.answer_forms = ran.answer_forms
        self.stop = ran.stop
        if self.stop is None:
            lines = self.start.spent.lines + len(self.lines) + 1  # with this one
            if turn.answer is not None and self.answer is None:
                self.answer = turn.answer
                self.stop = StopReason.ANSWER
            elif at_eos and not turn.waits:
                self.stop = StopReason.EOS
            elif lines >= self.budget.lines:
                self.stop = StopReason.MAX_LINES
        for guest in self.guests:
            with boundary(Seam.GUEST, guest, "ran"):
                ran = await guest.ran(self, turn, ran)
            if not isinstance(ran, TurnResult):
                raise failure(Seam.GUEST, guest, f"returned {shown(ran)}, not a TurnResult", "ran")
        if self.stop is None and self.seconds >= self.budget.seconds:
            self.stop = StopReason.SECONDS
        return ran

    def show(self, ran: TurnResult, goes_on: bool) -> tuple[Shown, ...]:
        """What the dialect shows of a turn."""
        with boundary(Seam.DIALECT, self.reader, "show"):
            return self.reader.show(ran.cells, goes_on=goes_on)

    def insert(self, ids: Sequence[int]) -> None:
        """Insert what the last line showed, unless that leaves no token for another one."""
        if self.stop is None and len(ids) >= self.tokens_left:
            is_full = len(self.transcript) + len(ids) >= self.setup.context_tokens
            self.stop = StopReason.CONTEXT if is_full else StopReason.MAX_TOKENS
        if self.stop is None:
            self.transcript.append_output(ids)

    def add(self, line: Line) -> None:
        """Add the line that was sampled last, which is over."""
        self.lines.append(line)
        self._tell(events.Ran(len(self.lines) - 1, line))

    async def after_line(self) -> None:
        """Tell the guests that a line is over, and end the session if the context is full then."""
        for guest in self.guests:
            with boundary(Seam.GUEST, guest, "after_line"):
                await guest.after_line(self, self.lines[-1])
        if self.stop is None and self.is_full:
            self.stop = StopReason.CONTEXT

    async def ended(self) -> Trajectory:
        """The trajectory, as the guests leave it. Raises KernelError."""
        self.clock.end()
        trajectory = self.trajectory()
        for guest in self.guests:
            with boundary(Seam.GUEST, guest, "ended"):
                trajectory = await guest.ended(self, trajectory)
            if not isinstance(trajectory, Trajectory):
                raise failure(Seam.GUEST, guest, f"returned {shown(trajectory)}, not a Trajectory", "ended")
        return trajectory

    def aborted(self, failure: KernelError) -> Trajectory:
        """The trajectory that this failure of the machinery has ended."""
        self.clock.end()
        self.stop = StopReason.ABORTED
        self.error = f"{type(failure).__name__}: {failure}"
        return self.trajectory()

    def end(self, reason: StopReason) -> None:
        """End it for this reason, unless it is over already."""
        if self.stop is None:
            self.stop = reason

    def lost(self, failure: BrokenStateError) -> None:
        """End it as a session that was killed: it has brought about what its environment can't go on from."""
        _log.warning("a session is ended: %s", failure)
        self.stop = StopReason.KILLED
        self.error = str(failure)
        self.answer = None

    def _tell(self, event: events.Event) -> None:
        listener = self.request.listener
        if listener is not None:
            with boundary(Seam.LISTENER, listener):
                listener(event)

    def trajectory(self) -> Trajectory:
        """The trajectory so far.

        Output after the last line is left out, because nothing was sampled after it. A line that was running when the
        machinery failed is included, because its tokens were sampled.
        """
        assert self.stop is not None
        transcript = self.transcript
        lines = list(self.lines)
        end = lines[-1].end if lines else 0
        lost_tokens = [index for index in range(end, len(transcript.sampled_mask)) if transcript.sampled_mask[index]]
        if lost_tokens:
            lines.append(Line(lost_tokens[0], lost_tokens[-1] + 1, self._sampled_text, LineKind.KILLED))
        if lines:
            with boundary(Seam.DIALECT, self.reader, "flush"):
                rest = self.reader.flush()
            lines[-1] = replace(lines[-1], text=lines[-1].text + rest)
        transcript.truncate(lines[-1].end if lines else 0)
        # Nothing was sampled after a compaction that came after the last line.
        compactions = [
            compaction for compaction in transcript.compactions if lines and compaction.start <= lines[-1].start
        ]
        return Trajectory(
            task_id=self.task.id,
            question=self.task.question,
            family=self.task.family,
            prompt=self.prompt.text,
            prompt_ids=self.prompt.ids,
            completion_ids=tuple(transcript.completion_ids),
            sampled_mask=tuple(transcript.sampled_mask),
            logprobs=tuple(transcript.logprobs),
            stop_reason=self.stop,
            lines=tuple(lines),
            answer=self.answer,
            answer_forms=self.answer_forms,
            version=transcript.version,
            updates=tuple(transcript.updates),
            error=self.error,
            duration_s=self.clock.duration_s,
            engine_s=self.clock.waited_s[Wait.ENGINE],
            kernel_s=self.clock.waited_s[Wait.KERNEL],
            queue_s=self.clock.waited_s[Wait.QUEUE],
            dialect=dialect_name(self.episode.dialect),
            branch=self.start.branch,
            compactions=tuple(compactions),
            waits=self.clock.waits,
        )

    async def _replay(self) -> None:
        """Bring the reader to where the root was, and without a fork kernel and environment too.

        Raises ReplayDiffersError if the lines, or the environment at the start, show anything else than before.
        """
        start = self.start
        prompt_ids = self.episode.prompt.ids
        if start.prompt is not None and start.prompt.ids[: len(prompt_ids)] != prompt_ids:
            raise ReplayDiffersError
        for typed in start.turns:
            turn = await read_turn(self.reader, self.kernel, typed.text, typed.at_eos)
            if start.fork is None:
                again = await run_turn(self.kernel, turn)
                if again.stop is None:
                    try:
                        again = again.observing(await self.episode.observed(turn))
                    except BrokenStateError:
                        raise ReplayDiffersError from None
                if _effects(again) != _effects(typed.ran) or not self._has_observed(again, typed.ran):
                    raise ReplayDiffersError
            self.show(typed.ran, goes_on=True)

    def _has_observed(self, again: TurnResult, before: TurnResult) -> bool:
        """Whether the environment has said the same again. Guests may have added to it the first time, after what it
        said."""
        for cell, cell_before in zip(again.cells, before.cells, strict=True):
            if cell.observed == cell_before.observed:
                continue
            # Without an environment, all of it is the guests'. With one, what it says begins the text both times.
            may_be_of_guests = self.episode.environment is None or cell.observed != ""
            if not may_be_of_guests or not cell_before.observed.startswith(cell.observed):
                return False
        return True


def _effects(ran: TurnResult) -> object:
    """What has to be equal when a turn runs again, beside what was observed."""
    cells = [(run.cell, run.output, run.error_message) for run in ran.cells]
    return ran.kind, cells, ran.answer, ran.stop, ran.fingerprint
