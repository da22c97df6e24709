"""The kernel seam without a kernel: the interpreter's real core in this process, nothing isolated."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from repl_rl.errors import KernelDiedError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, HostCalls
from repl_rl.kernel.border import calls_of, forms_of
from studies.nano.sessions import load_interpreter


class FakeKernel:
    """One interpreter; gone after a SystemExit, as a real one is."""

    def __init__(self) -> None:
        self._interpreter = load_interpreter().PythonInterpreter()
        self._gone = False

    async def prepare(self, source: str) -> None:
        outcome = self._interpreter.prepare(source)
        if outcome.status != "ok":
            raise KernelStartError(f"a kernel could not be set up; it printed: {outcome.output.strip()}")

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        if self._gone:
            raise KernelDiedError("the interpreter has exited")
        outcome = self._interpreter.run(source)
        self._gone = outcome.status == "killed"
        return ExecResult(
            ExecStatus(outcome.status),
            output=outcome.output,
            error_name=outcome.error_name,
            compiled=outcome.compiled,
            answer=None if outcome.answer is None else tuple(outcome.answer),
            answer_forms=forms_of(outcome.answer_forms and list(outcome.answer_forms), outcome.answer),
            omitted_bytes=outcome.omitted_bytes,
            error_message=outcome.error_message,
            calls=calls_of(outcome.calls),
        )


class FakeKernelPool:
    """Hands out a fresh `FakeKernel` per session."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[FakeKernel]:
        yield FakeKernel()
