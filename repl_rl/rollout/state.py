"""One trajectory in the making: what has been sampled, what has run, and whether it may go on.

The line loop in `rollout` drives a `Session`; the kernel behind it is an `Interpreter`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import Reader, Turn
from repl_rl.engine import Finish, SampledLine
from repl_rl.rollout import events
from repl_rl.rollout.clock import Clock, Wait
from repl_rl.rollout.execute import Interpreter, Ran, run_turn
from repl_rl.rollout.transcript import Transcript
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task as the model reads it: the text, and its ids, encoded once."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tokens that the next line may have, and the reason to stop if it needs more."""

    tokens: int
    reason: StopReason


@dataclass(slots=True)
class Session:
    """One trajectory in the making."""

    transcript: Transcript
    reader: Reader
    interpreter: Interpreter
    sampling: SamplingConfig
    clock: Clock = field(default_factory=Clock)
    lines: list[Line] = field(default_factory=list)
    stop: StopReason | None = None
    answer: tuple[str, ...] | None = None
    typing: str = ""
    """The line that was sampled last."""
    tell: events.Tell | None = None
    """Who wants to hear of each line as it comes; nobody, as a rule."""

    def allowance(self, budget: BudgetConfig, context_tokens: int) -> Allowance:
        """The tightest of the three token budgets."""
        return min(
            Allowance(budget.line_tokens, StopReason.LINE_TOKENS),
            Allowance(budget.tokens - len(self.transcript.completion_ids), StopReason.MAX_TOKENS),
            Allowance(context_tokens - len(self.transcript), StopReason.CONTEXT),
            key=lambda allowance: allowance.tokens,
        )

    def stop_after(self, finish: Finish, turn: Turn, budget: BudgetConfig) -> StopReason | None:
        """Why the trajectory ends with the line that has just run, if it does."""
        if turn.answer is not None and self.answer is None:
            self.answer = turn.answer
            return StopReason.ANSWER
        if finish is Finish.EOS and not turn.waits:
            return StopReason.EOS
        if len(self.lines) + 1 >= budget.lines:
            return StopReason.MAX_LINES
        return StopReason.SECONDS if self.clock.running_s >= budget.seconds else None

    def begin(self, task: Task, prompt: Prompt) -> None:
        """Slot and kernel are there."""
        self.clock.begin()
        if self.tell is not None:
            self.tell(events.Began(task, prompt.text, prompt.ids))

    def typed(self, turn: Turn, sampled: SampledLine) -> None:
        """A line has been sampled, and nothing of it has run."""
        self.typing = turn.text
        if self.tell is not None:
            self.tell(events.Sampled(len(self.lines), turn.text, sampled.ids, sampled.logprobs))

    def add(self, line: Line) -> None:
        """The line that was typed last is over."""
        self.lines.append(line)
        if self.tell is not None:
            self.tell(events.Ran(len(self.lines) - 1, line))

    async def run(self, turn: Turn) -> Ran:
        """Run the cells that a turn completes, in order, until one of them ends the trajectory."""
        ran, self.answer = await run_turn(self.interpreter, turn)
        return ran

    def trajectory(self, task: Task, prompt: Prompt, version: int, error: str | None) -> Trajectory:
        """What it has come to. Output behind the last line is left out: nothing was sampled after it."""
        assert self.stop is not None
        lines = tuple(self._all_lines())
        self.transcript.cut_behind(lines[-1].end if lines else 0)
        return Trajectory(
            task_id=task.id,
            prompt=prompt.text,
            prompt_ids=prompt.ids,
            completion_ids=tuple(self.transcript.completion_ids),
            sampled_mask=tuple(self.transcript.sampled_mask),
            logprobs=tuple(self.transcript.logprobs),
            stop_reason=self.stop,
            lines=lines,
            answer=self.answer,
            version=version,
            error=error,
            duration_s=self.clock.duration_s,
            engine_s=self.clock.waited_s[Wait.ENGINE],
            kernel_s=self.clock.waited_s[Wait.KERNEL],
            queue_s=self.clock.waited_s[Wait.QUEUE],
        )

    def _all_lines(self) -> list[Line]:
        """The lines, and one that was running when the machinery failed or the cut came: its tokens were sampled."""
        covered = self.lines[-1].end if self.lines else 0
        lost = [index for index, was in enumerate(self.transcript.sampled_mask[covered:], covered) if was]
        lines = [*self.lines, *([Line(lost[0], lost[-1] + 1, self.typing, LineKind.KILLED)] if lost else [])]
        return [*lines[:-1], replace(lines[-1], text=lines[-1].text + self.reader.flush())] if lines else []
