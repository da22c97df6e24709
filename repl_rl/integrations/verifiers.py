r"""A live interpreter as a `verifiers` environment: the model's message is typed, the next message is what it prints.

    env = load_environment(count=64, kernel=KernelConfig(size=16))
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model=..., client=...))    # for task in env.taskset

In `verifiers` 0.4 an environment is a taskset (problems, rewards, metrics), a harness (what runs between two messages)
and an env (who plays). Its commands and servers find them by the name of an installed module; two lines make such a
module:

    from repl_rl.integrations.verifiers import ReplEnv, ReplHarness, ReplTaskset
    __all__ = ["ReplEnv", "ReplHarness", "ReplTaskset"]

Sampling uses `stop: ["\n"]`, so a message is a line, and the model sees what the line did before it types the next.
Unlike in our own rollouts the lines are chat messages: the template's tokens are between them, and the kinds of lines
are metrics, not rewards. The harness runs in the process of the environment, since every kernel has a sandbox of its
own.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from repl_rl.config import DialectConfig, KernelConfig
from repl_rl.dialect import Dialect, Reader, make_dialect
from repl_rl.errors import ConfigError, DependencyError
from repl_rl.integrations.shared import LiveSession, read_problems, shared_kernels
from repl_rl.integrations.trl import refused_program, takes_long_to_type
from repl_rl.tasks import grade, make_tasks
from repl_rl.trajectory import LineKind, Task
from repl_rl.utils.user_code import Seam, boundary

try:
    import httpx
    import verifiers.v1 as vf
except ImportError as error:
    raise DependencyError(
        f"this environment is for verifiers 0.4, which can't be imported ({error}): pip install verifiers"
    ) from error

__all__ = ["ReplEnv", "ReplHarness", "ReplTaskset"]

PLUGIN = "repl_rl_verifiers"
"""The id under which `load_environment` registers this module with `verifiers`, in this process."""
INFO = "repl_rl"
"""The key of the interpreter's results in a trace: `trace.info[INFO] = {"answer": [reprs] | None, "kinds": [...]}`.
With forms of the answers, these are there as "answer_forms"."""


class ReplData(vf.TaskData):  # type: ignore[misc]
    """A problem. What is below is for the grader; it never enters the sandbox."""

    answer: str
    family: str = ""
    operands: list[int] | None = None


class ReplTask(vf.Task[ReplData]):  # type: ignore[misc]
    """A task that is graded by what was handed to `submit_final_answer`."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def answered(self, trace: vf.Trace) -> float:
        """The grade of the submitted answer: 1.0 only for exactly the right one."""
        metadata = {} if self.data.operands is None else {"operands": self.data.operands}
        task = Task("", "", self.data.answer, self.data.family, metadata)
        info = trace.info.get(INFO, {})
        return grade(task, info.get("answer"), info.get("answer_forms"))

    @vf.metric  # type: ignore[untyped-decorator]
    async def lines(self, trace: vf.Trace) -> dict[str, float]:
        """How many messages there were, and how many of each kind."""
        kinds: list[str] = trace.info.get(INFO, {}).get("kinds", [])
        counts = Counter(kinds)
        metrics = {"lines": float(len(kinds))}
        for kind in LineKind:
            metrics[f"lines/{kind}"] = float(counts[kind])
        return metrics


class ReplTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Problems from a file, or generated ones."""

    problems: Path | None = None
    """A file of JSON lines with `question` and `answer`. None: problems of our families."""
    families: list[str] | None = None
    count: int = 256
    seed: int = 0
    split: Literal["train", "heldout"] = "train"


class ReplTaskset(vf.Taskset[ReplTask, ReplTasksetConfig]):  # type: ignore[misc]
    """Yields `ReplTask`s. Raises ConfigError for an invalid file, family or count."""

    def load(self) -> Iterable[ReplTask]:
        config = self.config
        if config.problems is not None:
            tasks: Sequence[Task] = read_problems(config.problems)
        else:
            tasks = make_tasks(config.families, config.count, config.seed, config.split)
        for task in tasks:
            yield ReplTask(
                ReplData(
                    id=task.id,
                    name=task.family or None,
                    prompt=task.question,
                    answer=task.answer,
                    family=task.family,
                    operands=task.metadata.get("operands"),
                )
            )


class ReplHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Settings of the interpreter that the model types into."""

    kernel: KernelConfig = KernelConfig()
    """`size` limits how many rollouts run at once; further ones wait."""
    dialect: DialectConfig = DialectConfig()
    max_lines: int = 32
    """How many messages a session may have before it ends without an answer."""


class ReplHarness(vf.Harness[ReplHarnessConfig]):  # type: ignore[misc]
    """The loop of an episode: type the message, run it, show the output."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # code runs in our own sandbox, not in the runtime
    NEEDS_CONTAINER = False

    def __init__(self, config: ReplHarnessConfig) -> None:
        super().__init__(config)
        if config.dialect.name != "python":
            raise ConfigError(f"dialect {config.dialect.name!r} does not go line by line here; leave it at 'python'")

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Play until an answer, the last line, or the endpoint's refusal of a turn: a limit, a stop, a failed provider.

        `verifiers` records what goes through the endpoint. Raises `vf.SandboxError` if the machinery around the
        interpreter fails.
        """
        dialect = make_dialect(self.config.dialect)
        kernels = shared_kernels(self.config.kernel)
        session = LiveSession(kernels.pool)
        reader = _reader(dialect)
        refusal = ""
        open_chars = 0
        system, question = self.resolve_text_prompt(data)
        with boundary(Seam.DIALECT, dialect, "chat_prompt"):
            chat = dialect.chat_prompt(question or "")
        system_message = chat.messages[0]
        if system is not None:
            system_message = {"role": "system", "content": system}
        # The dialect has the assistant's turn begin with `prefill`. An endpoint for chats can't do that.
        messages = [system_message, {"role": "user", "content": f"{question}\n\n{chat.prefill}"}]
        headers = {"Authorization": f"Bearer {secret}"}
        try:
            async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None) as client:
                for _ in range(self.config.max_lines):
                    response = await client.post("chat/completions", json={"model": ctx.model, "messages": messages})
                    if response.is_error:
                        refusal = response.text
                        break
                    content = response.json()["choices"][0]["message"]["content"] or ""
                    # A provider leaves out the newline at which it stopped.
                    line = content if content.endswith("\n") else content + "\n"
                    if takes_long_to_type(line, open_chars):
                        turn = refused_program(line, "is too long to be typed at once")
                        reader = _reader(dialect)  # an open block is dropped with it
                    else:
                        with boundary(Seam.DIALECT, reader, "read"):
                            typed = line.encode("utf-8", "surrogatepass")
                            turn = await asyncio.to_thread(reader.read, typed)  # up to seconds, in which others type
                    open_chars = 0 if turn.cells else open_chars + len(line)
                    reply = await asyncio.wrap_future(kernels.loop.submit(session.type(turn)))
                    if session.failure is not None:
                        raise vf.SandboxError(session.failure)
                    if session.answer is not None:
                        break
                    output = reply.note
                    with boundary(Seam.DIALECT, reader, "show"):
                        parts = reader.show(reply.cells, goes_on=True)
                    for part in parts:
                        output += part.text
                    messages.append({"role": "assistant", "content": content})
                    messages.append({"role": "user", "content": output})
        finally:
            await asyncio.wrap_future(kernels.loop.submit(session.close()))
            trace.info[INFO] = {"answer": session.answer, "kinds": [str(kind) for kind in session.kinds]}
            if session.answer_forms is not None:
                trace.info[INFO]["answer_forms"] = session.answer_forms
        return vf.ProgramResult(exit_code=1 if refusal else 0, stdout="", stderr=refusal)


def _reader(dialect: Dialect) -> Reader:
    with boundary(Seam.DIALECT, dialect, "reader"):
        return dialect.reader()


class ReplEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """One agent. A message ends after one line; an empty `sampling` lets the model type several lines at once."""

    agent: vf.AgentConfig = vf.AgentConfig(
        runtime=vf.SubprocessConfig(), sampling=vf.SamplingConfig(stop=["\n"]), network_notice=False
    )


class ReplEnv(vf.Env[ReplEnvConfig]):  # type: ignore[misc]
    """An environment of one model and one interpreter."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


def load_environment(
    *,
    problems: Path | str | None = None,
    families: Sequence[str] | None = None,
    count: int = 256,
    seed: int = 0,
    split: Literal["train", "heldout"] = "train",
    kernel: KernelConfig | None = None,
    dialect: DialectConfig | None = None,
    max_lines: int = 32,
    line_by_line: bool = True,
) -> ReplEnv:
    """The environment, for use in this process.

    `problems` is a file of JSON lines with `question` and `answer`; without one, `count` problems of our families are
    generated. With `line_by_line=False` the model may type several lines in a message.
    """
    sys.modules.setdefault(PLUGIN, sys.modules[__name__])
    harness = ReplHarnessConfig(
        id=PLUGIN, kernel=kernel or KernelConfig(), dialect=dialect or DialectConfig(), max_lines=max_lines
    )
    sampling = vf.SamplingConfig(stop=["\n"]) if line_by_line else vf.SamplingConfig()
    agent = ReplEnvConfig().agent.model_copy(update={"harness": harness, "sampling": sampling})
    taskset = ReplTasksetConfig(
        id=PLUGIN,
        problems=problems,
        families=None if families is None else list(families),
        count=count,
        seed=seed,
        split=split,
    )
    return ReplEnv(ReplEnvConfig(taskset=taskset, agent=agent))
