"""Our interpreter as an OpenEnv server: whoever speaks OpenEnv's protocol types into it over a socket.

    repl-rl serve openenv --set tasks.families=[modpow]

    env = GenericEnvClient(base_url="http://127.0.0.1:8000").sync()
    with env:
        question = env.reset(split="train", index=0).observation["question"]
        result = env.step({"code": "submit_final_answer(pow(7, 2024, 1000))"})
        result.observation["output"], result.reward, result.done

Server, routes, sessions and their capacity are OpenEnv's own (`create_app`). Each of its sessions has one interpreter
of the process's pool, walled as in training. An action is a line or a whole program, read as in
`repl_rl.integrations.trl`. The observation is what a terminal would print, the kind of line, and the exception's name.
An answer ends the episode. It earns a reward if the client's `reset` or the server named a problem with an answer;
this answer stays in the server, in neither the sandbox, nor an observation, nor the state.

What the code did is data: code that kills its interpreter, hangs or floods gets an observation, and others notice
nothing. What fails in the machinery is an error of OpenEnv's protocol, and no reward.

Not covered: OpenEnv's protocol knows no passwords. Whoever reaches the port can use the interpreters.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any
from uuid import uuid4

from repl_rl import __version__
from repl_rl.config import KernelConfig
from repl_rl.dialect import truncate_middle
from repl_rl.errors import ConfigError, DependencyError, KernelError
from repl_rl.integrations.shared import LiveSession, SharedKernels, close_shared_kernels, shared_kernels
from repl_rl.integrations.trl import read_program
from repl_rl.tasks import grade, require_gradable
from repl_rl.trajectory import Task
from repl_rl.utils.text import whole

try:
    import uvicorn
    from fastapi import FastAPI
    from fastmcp import FastMCP
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
    from pydantic import Field
except ImportError as error:
    raise DependencyError(
        f"this server is built on openenv 0.10, which can't be imported ({error}): pip install 'openenv>=0.10,<0.11'"
    ) from error

NAME = "repl_rl"
"""The environment's name in the routes of OpenEnv's task API."""
MOST_CODE_CHARS = 50_000
ACTION_S = 45.0
"""How long all lines of an action may take. By default, OpenEnv's client waits 60 seconds for a reply."""
WAIT_S = 30.0
"""How long a reset waits for an interpreter while all of them are in use."""
_SHUTDOWN_S = 5


class ReplAction(Action):  # type: ignore[misc]
    """What is typed."""

    code: str = Field(
        max_length=MOST_CODE_CHARS, description="Python to run in the live interpreter: a line or several"
    )


class ReplObservation(Observation):  # type: ignore[misc]
    """What the interpreter printed. After a reset, the problem."""

    output: str = Field("", description="What a terminal would print, values of bare expressions included")
    kind: str | None = Field(
        None, description="What the line was: statement, expression, exception, timeout, answer ..."
    )
    error_name: str | None = Field(None, description="The name of the exception's class, if one was raised")
    question: str = Field("", description="After a reset, the problem")


class ReplState(State):  # type: ignore[misc]
    """What has happened in the episode."""

    kinds: list[str] = Field([], description="The kind of each action")
    answer: list[str] | None = Field(None, description="The `repr`s of what was handed to submit_final_answer")
    reward: float | None = Field(None, description="The grade of this answer")


class ReplEnvironment(Environment[ReplAction, ReplObservation, ReplState]):  # type: ignore[misc]
    """One session of the server. It has an interpreter from its first reset, or else its first action, until `close`.

    `problems` are lists of tasks by the name of their split. Raises ConfigError, DependencyError or SandboxError at the
    first reset if no interpreter can run here.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        kernel: KernelConfig | None = None,
        problems: Mapping[str, Sequence[Task]] | None = None,
        max_output_chars: int = 1000,
    ) -> None:
        super().__init__()
        self._config = kernel or KernelConfig()
        self._problems = problems or {}
        self._max_output_chars = max_output_chars
        self._kernels: SharedKernels | None = None
        self._session: LiveSession | None = None
        self._turn = asyncio.Lock()
        """Held by what uses the session: a client may call the tool over HTTP while it steps over its socket."""
        self._is_closed = False
        self._task: Task | None = None
        """What the answer is graded by."""
        self._state = ReplState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        question: str = "",
        answer: Any = None,
        split: str | None = None,
        index: int | None = None,
        **row: Any,
    ) -> ReplObservation:
        """Begin an episode in a fresh interpreter.

        The problem is the client's `question` and `answer`, either of which may be missing; or number `index` of the
        server's `split`; or one of that split that `seed` decides. Other arguments, such as further columns of a data
        set, are ignored, and so are `split` and `index` beside an answer. Raises ConfigError for an answer that can't
        be graded and for a question without an answer beside `split` or `index`, IndexError for a problem that does not
        exist, and KernelError if no interpreter becomes free in time.
        """
        names_served = split is not None or index is not None
        if answer is not None:
            task = Task("", question, str(answer))
            require_gradable([task])
        elif names_served and not self._problems:
            raise IndexError("this server has no problems, so reset takes no split and no index")
        elif names_served and question:
            raise ConfigError(
                "reset got a question without an answer, and the split or index of a problem of this server; give the "
                "question and its answer, or the split and index"
            )
        elif question or not self._problems:
            task = None
        else:
            tasks = self._tasks_of(next(iter(self._problems)) if split is None else split)
            task = tasks[random.Random(seed).randrange(len(tasks)) if index is None else index]
            question = task.question
        self._open_kernels().loop.run(self._begin(task, episode_id))
        return ReplObservation(question=question)

    def step(self, action: ReplAction, timeout_s: float | None = None, **options: Any) -> ReplObservation:
        """Run the code. `timeout_s` is ignored: limits are the server's. Raises KernelError if the machinery fails."""
        return self._open_kernels().loop.run(self._type(action.code))

    async def python(self, code: str) -> str:
        """Run Python code in a live interpreter and return what it prints, the values of bare expressions included.

        Names stay defined between calls. Hand over the final answer with submit_final_answer(value).
        """
        action = ReplAction(code=code)
        typing = self._open_kernels().loop.submit(self._type(action.code))
        return (await asyncio.wrap_future(typing)).output

    @cached_property
    def mcp_server(self) -> FastMCP:
        """The tool `python`, for OpenEnv's MCP routes, which look for an attribute of this name."""
        server = FastMCP(NAME)
        server.tool(self.python)
        return server

    def _open_kernels(self) -> SharedKernels:
        if self._kernels is None:
            self._kernels = shared_kernels(self._config)
        return self._kernels

    async def _begin(self, task: Task | None, episode_id: str | None) -> None:
        async with self._turn:
            await self._restart(task, episode_id)

    async def _restart(self, task: Task | None, episode_id: str | None) -> LiveSession:
        self._require_open()
        if self._session is None:
            self._session = LiveSession(self._open_kernels().pool)
        self._task = None
        self._state = ReplState(episode_id=str(uuid4()) if episode_id is None else str(episode_id))
        try:
            async with asyncio.timeout(WAIT_S):
                await self._session.restart()
        except TimeoutError as error:
            size = self._config.size
            raise KernelError(
                f"none of the {size} interpreters of this server became free within {WAIT_S:g} s; "
                "serve more of them: --size"
            ) from error
        self._task = task
        return self._session

    async def _type(self, code: str) -> ReplObservation:
        async with self._turn:
            self._require_open()
            session = self._session
            if session is None:
                session = await self._restart(None, None)
            turn = await asyncio.to_thread(read_program, code)  # up to a second, in which others type
            reply = await session.type(turn, ACTION_S)
            if session.failure is not None:
                raise KernelError(f"the interpreter failed: {session.failure}; reset begins a new episode")
            reward = None
            if self._task is not None:
                reward = 0.0
            if self._task is not None and session.answer is not None and self._state.reward is None:
                reward = await asyncio.to_thread(grade, self._task, session.answer, session.answer_forms)
                self._state.reward = reward
            self._state.step_count += 1
            self._state.kinds = [str(kind) for kind in session.kinds]
            if session.answer is not None:
                self._state.answer = [whole(value) for value in session.answer]
        output = reply.note + "".join(cell.text for cell in reply.cells)
        return ReplObservation(
            output=whole(truncate_middle(output, self._max_output_chars)),
            kind=None if reply.kind is None else str(reply.kind),
            error_name=None if reply.error_name is None else whole(reply.error_name),
            done=session.answer is not None,
            reward=reward,
        )

    def _require_open(self) -> None:
        # Whoever opened an interpreter now would keep it for good: OpenEnv has forgotten the session.
        if self._is_closed:
            raise KernelError("this session has ended, because no request came for too long; connect again")

    @property
    def state(self) -> ReplState:
        return self._state

    def close(self) -> None:
        """Give the interpreter back once the action under way is over, without waiting. Nothing runs afterwards."""
        self._is_closed = True
        if self._kernels is not None and not self._kernels.loop.is_closed:
            self._kernels.loop.submit(self._give_back())

    async def _give_back(self) -> None:
        async with self._turn:
            if self._session is not None:
                await self._session.close()

    def get_metadata(self) -> EnvironmentMetadata:
        description = "A live Python interpreter in a sandbox of its own, and an exact grader"
        return EnvironmentMetadata(name=NAME, description=description, version=__version__)

    def list_splits(self) -> list[str]:
        return list(self._problems)

    def num_tasks(self, split: str) -> int:
        return len(self._tasks_of(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        task = self._tasks_of(split)[index]
        return {"index": index, "question": task.question, "family": task.family}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        indices = range(self.num_tasks(split))[start:stop]
        return [self.get_task(split, index) for index in indices]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def _tasks_of(self, split: str) -> Sequence[Task]:
        if split not in self._problems:
            raise IndexError(f"no split {split!r} here; there are {', '.join(self._problems) or 'no problems'}")
        return self._problems[split]


def make_app(
    kernel: KernelConfig | None = None,
    problems: Mapping[str, Sequence[Task]] | None = None,
    *,
    idle_s: float = 3600.0,
    max_output_chars: int = 1000,
) -> FastAPI:
    """OpenEnv's server for as many sessions at once as `kernel.size`. Interpreters start with the first reset.

    A session that is not used for `idle_s` ends, and its interpreter is given back.
    """
    config = kernel or KernelConfig()
    app: FastAPI = create_app(
        partial(ReplEnvironment, config, problems, max_output_chars),
        ReplAction,
        ReplObservation,
        env_name=NAME,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=config.size, session_timeout=idle_s),
        state_cls=ReplState,
    )
    return app


def listen(host: str, port: int) -> socket.socket:
    """A socket for `serve`. Raises ConfigError if the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"can't serve at {host} port {port}: {error}") from error


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM, then end all sessions of this process and return."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S))
    try:
        # uvicorn catches the signals, shuts down, and raises what it caught.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        close_shared_kernels()
