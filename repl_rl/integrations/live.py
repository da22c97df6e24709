"""One episode's interpreter as another trainer sees it: code goes in, what a terminal shows comes out.

What the code did is data, as in our own rollouts: a kernel that it killed is answered as text, and what is typed next
runs in a fresh interpreter that says so. What failed in the machinery is kept in `failure`, so that whoever rewards
the episode can leave it out.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from repl_rl.dialect import CellRun, Turn
from repl_rl.errors import KernelError
from repl_rl.kernel import KernelSource
from repl_rl.rollout.execute import Interpreter, TurnResult, run_turn
from repl_rl.trajectory import LineKind, StopReason

STATE_LOST = "(a fresh interpreter: everything defined before is gone)\n"
ANSWERED = "(the answer has been submitted; nothing runs any more)\n"


@dataclass(frozen=True, slots=True)
class Answered:
    """What typed code is answered with: a note of ours, "" mostly, and behind it what its cells did."""

    note: str = ""
    cells: tuple[CellRun, ...] = ()


class LiveSession:
    """An interpreter, replaced by a fresh one after it was killed. Lives on the loop that its kernels live on.

    `answer` holds the `repr`s of the first submission, behind which nothing runs. `kinds` tells what each turn was.
    """

    def __init__(self, kernels: KernelSource) -> None:
        self.answer: tuple[str, ...] | None = None
        self.failure: str | None = None
        self.kinds: list[LineKind] = []
        self._kernels = kernels
        self._stack = AsyncExitStack()
        self._interpreter: Interpreter | None = None
        self._is_lost = False

    async def open(self) -> None:
        """Take an interpreter. Raises KernelStartError if none comes up."""
        interpreter = Interpreter(self._kernels, self._stack)
        await interpreter.start()
        self._interpreter = interpreter

    async def type(self, turn: Turn) -> Answered:
        """Run what a turn completes."""
        if self.answer is not None:
            return Answered(ANSWERED)
        try:
            note = await self._reopened()
            ran = await self._run(turn)
        except KernelError as error:
            return await self._fail(error)
        if ran.stop is StopReason.KILLED:
            await self._lose()
        self.kinds.append(ran.kind)
        return Answered(note, ran.cells)

    async def close(self) -> None:
        """Give the interpreter back. A second call does nothing."""
        self._interpreter = None
        await self._stack.aclose()

    async def _run(self, turn: Turn) -> TurnResult:
        assert self._interpreter is not None
        ran = await run_turn(self._interpreter, turn)
        self.answer = ran.answer
        return ran

    async def _reopened(self) -> str:
        """The note that a fresh interpreter begins with, where the last one is gone."""
        if self._interpreter is None:
            await self.open()
        note, self._is_lost = STATE_LOST if self._is_lost else "", False
        return note

    async def _lose(self) -> None:
        await self.close()
        self._is_lost = True

    async def _fail(self, error: KernelError) -> Answered:
        self.failure = self.failure or str(error)
        self.kinds.append(LineKind.KILLED)
        await self._lose()
        return Answered(f"(the interpreter failed: {error})\n")
