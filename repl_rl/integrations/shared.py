"""The kernels of a process: one pool on a background loop for each kernel configuration, closed when the process ends.

Other trainers construct environments one by one, keep them for hours, and never say that they are done with one. So no
environment owns the pool, and a session ends when its environment starts the next one or is garbage-collected.

What the code did is data, as in our own rollouts: if it killed the kernel, the reply says so in text, and what is
typed next runs in a fresh interpreter, with a note about the loss. A failure of the machinery is kept in `failure`, so
that such an episode can be left out of the rewards.

`read_problems` reads the file of problems that some of these environments take.
"""

import asyncio
import atexit
import gc
import os
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from repl_rl.config import KernelConfig
from repl_rl.dialect import CellRun, Turn
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import KernelSource
from repl_rl.rollout import TrajectoryKernel, make_pool, run_turn
from repl_rl.tasks.formats import rows_of
from repl_rl.trajectory import LineKind, StopReason, Task
from repl_rl.utils.threads import BackgroundLoop

STATE_LOST = "(a fresh interpreter: everything defined before is gone)\n"
ANSWERED = "(the answer has been submitted; nothing runs any more)\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to typed code: a note of ours, usually "", then what its cells did.

    `kind` is None for what was typed after an answer, which did not run.
    """

    note: str = ""
    cells: tuple[CellRun, ...] = ()
    kind: LineKind | None = None
    error_name: str | None = None


class LiveSession:
    """An interpreter, replaced by a fresh one after it was killed. Use it only on the event loop of its kernels.

    `answer` holds the `repr`s of the first submission, after which nothing runs, `answer_forms` their forms. `kinds`
    holds the kind of each turn.
    """

    def __init__(self, kernels: KernelSource) -> None:
        self._kernels = kernels
        self._stack = AsyncExitStack()
        self._interpreter: TrajectoryKernel | None = None
        self._forget()

    def _forget(self) -> None:
        self.answer: tuple[str, ...] | None = None
        self.answer_forms: tuple[str | None, ...] | None = None
        self.failure: str | None = None
        self.kinds: list[LineKind] = []
        self._is_lost = False

    async def restart(self) -> None:
        """Begin anew in a fresh interpreter. Raises KernelStartError if it does not start."""
        await self.close()
        self._forget()
        await self._open()

    async def _open(self) -> TrajectoryKernel:
        interpreter = TrajectoryKernel(self._kernels, self._stack)
        await interpreter.start()
        self._interpreter = interpreter
        return interpreter

    async def type(self, turn: Turn, within_s: float | None = None) -> Reply:
        """Run the cells that a turn completes. If all of them take longer than `within_s`, the interpreter is ended."""
        if self.answer is not None:
            return Reply(ANSWERED)
        try:
            interpreter = self._interpreter or await self._open()
            note = STATE_LOST if self._is_lost else ""
            self._is_lost = False
            async with asyncio.timeout(within_s):
                result = await run_turn(interpreter, turn)
        except KernelError as error:
            if not self.failure:
                self.failure = str(error)
            return await self._ended(f"(the interpreter failed: {error})\n")
        except TimeoutError:
            if within_s is None:
                raise
            return await self._ended(f"(the interpreter was ended: this took longer than {within_s:g} s)\n")
        self.answer = result.answer
        self.answer_forms = result.answer_forms
        if result.stop is StopReason.KILLED:
            await self._lose()
        self.kinds.append(result.kind)
        return Reply(note, result.cells, result.kind, result.error_name)

    async def _ended(self, note: str) -> Reply:
        self.kinds.append(LineKind.KILLED)
        await self._lose()
        return Reply(note, kind=LineKind.KILLED)

    async def close(self) -> None:
        """Give the interpreter back. A second call does nothing."""
        self._interpreter = None
        await self._stack.aclose()

    async def _lose(self) -> None:
        await self.close()
        self._is_lost = True


class SharedKernels:
    """A pool and the background loop on which its coroutines must run."""

    def __init__(self, config: KernelConfig) -> None:
        self._size = config.size
        self._sessions = 0
        self._lock = threading.RLock()  # garbage collection may return a slot while this thread takes one
        self.loop = BackgroundLoop()
        try:
            self.pool = self.loop.run(make_pool(config).__aenter__())
        except BaseException:
            self.loop.close()
            raise

    def take(self) -> LiveSession:
        """A session of one of the pool's kernels, for one more environment, which gives it back at its end.

        Raises ConfigError if the pool has no kernel left: environments keep theirs, so waiting would never end.
        """
        if self._sessions >= self._size:
            gc.collect()  # unreferenced environments may still be alive in reference cycles
        with self._lock:
            if self._sessions >= self._size:
                raise ConfigError(
                    f"all {self._size} kernels are held by environments that are alive; set KernelConfig(size=...) to "
                    "the number of rollouts that run at once, in training or evaluation, whichever is more"
                )
            self._sessions += 1
        return LiveSession(self.pool)

    def give_back(self, session: LiveSession) -> None:
        """Free the kernel and end the session, without waiting for its end."""
        with self._lock:
            self._sessions -= 1
        if not self.loop.is_closed:
            self.loop.submit(session.close())

    def close(self) -> None:
        """End all sessions and the loop."""
        if not self.loop.is_closed:
            self.loop.run(self.pool.__aexit__(None, None, None))
            self.loop.close()


_shared: dict[tuple[int, str], SharedKernels] = {}
_shared_lock = threading.Lock()


def shared_kernels(config: KernelConfig) -> SharedKernels:
    """The kernels that all environments of this process with this configuration share; the first call starts them.

    A forked process gets its own. Raises ConfigError, DependencyError or SandboxError if no kernel can run.
    """
    key = (os.getpid(), config.model_dump_json())
    with _shared_lock:
        if key not in _shared:
            _shared[key] = SharedKernels(config)
        return _shared[key]


@atexit.register
def close_shared_kernels() -> None:
    """End the kernels of this process now; the next environment starts new ones. Called when the process ends."""
    with _shared_lock:
        for key in list(_shared):
            process, _ = key
            if process == os.getpid():  # a fork has a copy of its parent's kernels, which are not its to end
                _shared.pop(key).close()


def read_problems(path: Path) -> list[Task]:
    """The problems of a file, in order. Raises ConfigError, naming the file and the line that is not a problem."""
    problems = []
    for number, (where, row) in enumerate(rows_of([path]), 1):
        for name in ("question", "answer"):
            if name not in row:
                raise ConfigError(f"{where}: a problem has question and answer, and there is no {name!r}")
        problems.append(Task(str(row.get("id", number)), str(row["question"]), str(row["answer"])))
    return problems
