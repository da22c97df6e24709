"""Run notebooks again, several kernels at once, and compare.

nbclient executes each notebook in a fresh kernel, with the same isolation and limits as a rollout's kernel: a control
group where there are any, a budget for the memory of all, and a session's time. A cell that runs longer than `line_s`
is interrupted, and its kernel is killed if it ignores that for `grace_s`. The kernelspec is always the one that ships
with this package, whatever else is on Jupyter's search path.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel.border import parsed, result_of
from repl_rl.kernel.cgroups import SessionGroup
from repl_rl.kernel.jupyter.backend import OWN_NAME, KernelspecBackend
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.memory import MemoryBudget, default_budget_mb, tree_mb
from repl_rl.kernel.paths import Home
from repl_rl.kernel.results import ExecStatus, Kernel
from repl_rl.utils.threads import BackgroundLoop
from repl_rl.view.replay.comparison import Execution, Replayed, compared
from repl_rl.view.replay.notebooks import ExportedNotebook

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager
    from nbformat import NotebookNode

_ATTEMPTS = 3
_MOST_BESIDE_OUTPUT_BYTES = 16 << 20
"""A cell may send this much more than its output: images, tracebacks, what a message consists of."""

_unheard = logging.getLogger(f"{__name__}.nbclient")
_unheard.setLevel(logging.CRITICAL + 1)
"""Silences nbclient, which would log failures that are reported here as results."""


def replay(
    notebooks: Iterable[ExportedNotebook],
    *,
    at_once: int | None = None,
    tell: Callable[[Replayed], None] = lambda result: None,
) -> list[Replayed]:
    """The result of each notebook, in order; each runs in a fresh kernel, `at_once` of them at a time (default: cores).

    `tell` is called with each result as it comes. A notebook that could not be run has a `failure`. Raises ConfigError
    for an `at_once` below 1, and SandboxError or DependencyError if this machine can't isolate a kernel.
    """
    count = (os.cpu_count() or 1) if at_once is None else at_once
    if count < 1:
        raise ConfigError(f"{count} kernels at once can't run anything; give at least 1")

    async def replay_all(batch: Sequence[ExportedNotebook], limits: Limits) -> list[Replayed]:
        slots = asyncio.Semaphore(count)
        async with open_kernels(limits) as execute:

            async def one(exported: ExportedNotebook) -> Replayed:
                about = exported.notebook["metadata"]["repl_rl"]
                async with slots:
                    try:
                        executions = await execute(exported.notebook, str(about.get("setup", "")))
                        result = compared(exported.name, exported.notebook, executions)
                    except (KernelStartError, TypeError, ValueError, LookupError, AttributeError) as error:
                        why = str(error) if isinstance(error, KernelStartError) else f"it is not as exported: {error!r}"
                        result = Replayed(exported.name, str(about.get("task_id", "")), failure=why)
                    tell(result)
                return result

            return await asyncio.gather(*map(one, batch))

    results: list[Replayed] = []
    with BackgroundLoop() as loop:
        for limits, batch in groupby(notebooks, key=lambda exported: exported.limits):
            results += loop.run(replay_all(list(batch), limits))
    return results


Execute = Callable[..., Awaitable[dict[int, Execution]]]
"""Runs the code cells of a notebook in a fresh kernel, after `setup`, and returns what each did by its index."""


@contextlib.asynccontextmanager
async def open_kernels(limits: Limits) -> AsyncIterator[Execute]:
    """A function that runs notebooks until the block ends. A kernel that dies ends its notebook.

    Raises what `KernelspecBackend.open` raises if this machine can't isolate a kernel. The function raises
    KernelStartError if no kernel starts.
    """
    backend, clients = KernelspecBackend(OWN_NAME, limits), set[_Client]()

    async def execute(notebook: NotebookNode, setup: str = "") -> dict[int, Execution]:
        for attempt in range(_ATTEMPTS):
            manager, words = backend.manager()
            client = _Client(copy.deepcopy(notebook), manager, limits, setup, backend.home)
            clients.add(client)
            try:
                await client.async_execute(cleanup_kc=True, **words)
            except Exception as error:  # nbclient, zmq and the provisioner raise many types
                is_death = isinstance(error, DeadKernelError) and bool(client.executions)
                if not is_death and (client.has_begun or attempt + 1 == _ATTEMPTS):
                    raise KernelStartError(f"the notebook could not be run: {type(error).__name__}: {error}") from error
                if not is_death:
                    continue
            finally:
                clients.discard(client)
                await client.release()
            return client.executions
        raise AssertionError("the last attempt returns or raises")

    budget_mb = default_budget_mb()
    await backend.open(budget_mb)
    budget = MemoryBudget(budget_mb, lambda: cast(set[Kernel], clients), lambda is_held_back: None)
    watch = asyncio.create_task(budget.watch())
    try:
        yield execute
    finally:
        watch.cancel()
        await backend.close()


class _Client(NotebookClient):  # type: ignore[misc]
    """Records how each cell ended, and kills a kernel that exceeds its time. To the memory's budget it is a kernel."""

    def __init__(
        self, notebook: NotebookNode, manager: AsyncKernelManager, limits: Limits, setup: str, home: Home | None
    ) -> None:
        super().__init__(
            notebook,
            km=manager,
            allow_errors=True,
            interrupt_on_timeout=True,
            timeout_func=lambda _: limits.line_s,
            timeout=max(1, round(limits.start_s)),  # of the set-up, which is no cell
            startup_timeout=max(1, round(limits.start_s)),
            shutdown_kernel="immediate",
            log=_unheard,
            on_cell_execute=self._begin,
            on_cell_executed=self._end,
        )
        self.executions: dict[int, Execution] = {}
        self.has_begun = False
        self._limits = limits
        self._setup = setup
        self._late = False
        self._sent_bytes = 0
        self._alarms: tuple[asyncio.TimerHandle, ...] = ()
        self._pool_group = None if home is None else home.group
        self._group: SessionGroup | None = None
        self._end_of_session: asyncio.TimerHandle | None = None

    @property
    def is_alive(self) -> bool:
        return self.km is not None and self.km.provisioner is not None and self.km.provisioner.process is not None

    def memory_mb(self) -> float:
        if self._group is not None:
            return self._group.used_mb()
        process = self.km.provisioner.process if self.is_alive else None
        return 0.0 if process is None else tree_mb(process.pid)

    def excess(self) -> str | None:
        return None

    def kill(self) -> None:
        if self.is_alive:
            self._killing = asyncio.ensure_future(self.km.provisioner.kill())

    async def release(self) -> None:
        """What a session has taken beside its kernel, which has ended."""
        if self._end_of_session is not None:
            self._end_of_session.cancel()
        if self._group is not None:
            await asyncio.to_thread(self._group.close)

    async def async_start_new_kernel_client(self) -> Any:
        client = await super().async_start_new_kernel_client()
        self._end_of_session = asyncio.get_running_loop().call_later(self._limits.session_s, self.kill)
        if self._pool_group is not None and self.is_alive:
            self._group = await asyncio.to_thread(self._pool_group.admit, self.km.provisioner.process.pid)
        client.session.unpack, client.session.digest_history_size = parsed, 0
        if self._setup:
            self.has_begun = True
            content = {"code": self._setup, "silent": True, "repl_rl_setup": True}
            message = client.session.msg("execute_request", content)
            client.shell_channel.send(message)
            reply = await self.async_wait_for_reply(message["header"]["msg_id"])
            if reply is None or reply["content"]["status"] != "ok":
                raise KernelStartError("the kernel could not be set up")
        return client

    async def _begin(self, cell: NotebookNode, cell_index: int) -> None:
        def mark_late() -> None:
            self._late = True

        self.has_begun, self._late, self._sent_bytes = True, False, 0
        self.executions[cell_index] = Execution(status="killed")  # until its reply says otherwise
        loop, limits = asyncio.get_running_loop(), self._limits
        self._alarms = (
            loop.call_later(limits.line_s, mark_late),
            loop.call_later(limits.line_s + limits.grace_s, self.kill),
        )

    async def _end(self, cell: NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        self._disarm()
        said = result_of(execute_reply["content"]["repl_rl"])
        status = "timeout" if self._late and said.status is not ExecStatus.KILLED else str(said.status)
        self.executions[cell_index] = Execution(tuple(cell.outputs), status, said.error_message, said.answer)

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """As nbclient's. A cell that sends far more than our kernel ever does loses its kernel and the rest of it."""
        self._sent_bytes += len(json.dumps(msg["content"]))
        if self._sent_bytes > self._limits.output_bytes + _MOST_BESIDE_OUTPUT_BYTES:
            self.kill()
            return None
        kept: NotebookNode | None = super().process_message(msg, cell, cell_index)
        return kept

    async def async_execute_cell(self, cell: NotebookNode, cell_index: int, *args: Any, **named: Any) -> NotebookNode:
        if any(execution.status == "killed" for execution in self.executions.values()):
            return cell  # the session has ended, as in a terminal after `exit()`
        try:
            return await super().async_execute_cell(cell, cell_index, *args, **named)
        finally:
            self._disarm()

    def _disarm(self) -> None:
        for alarm in self._alarms:
            alarm.cancel()
