"""What a session costs over OpenEnv's protocol: ours beside those of OpenEnv's own Python environments, in one run.

    PYTHONPATH=.venv/openenv:SMOLAGENTS python benchmarks/openenv_sessions.py OPENENV --json benchmarks/openenv.json

OPENENV is a checkout of github.com/huggingface/OpenEnv, whose environments are not in its package, and SMOLAGENTS a
folder with the package smolagents, in which these run code. Each server is a process of its own on this machine,
OpenEnv's client talks to it over a socket, and all sessions stay open until all are.

- `start_ms`: connection, reset and the first line; the median over the sessions.
- `line_ms`: one more line, the median.
- `server_mb`: memory (PSS) of the server with all that it started, in one session.
- `session_mb`: what each further session adds.
- `neighbour_ms`: the slowest of the lines of another session while one runs `sum(range(3 * 10**8))`.

The environments differ in what they promise. `coding_env` and `repl_env` interpret Python's syntax tree in the server's
own process, for the modules on a list, and put up no walls; ours is CPython, in a sandbox. `coding_env` serves one
session only, so each costs a server. `jupyter_env` rents its sessions from a cloud, and is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from openenv.core import GenericEnvClient

PEER = """\
import os, sys, socket
sys.path.insert(0, sys.argv[1])
os.environ["REPL_MAX_ITERATIONS"] = "1000000"
import uvicorn
from openenv.core.env_server import create_app
{imports}
app = create_app({environment}, {action}, {observation}, max_concurrent_envs={sessions})
listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{{listener.getsockname()[1]}}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
"""
CODING = {
    "imports": "from coding_env.models import CodeAction, CodeObservation\n"
    "from coding_env.server.python_codeact_env import PythonCodeActEnv",
    "environment": "PythonCodeActEnv",
    "action": "CodeAction",
    "observation": "CodeObservation",
}
REPL = {
    "imports": "from repl_env.models import REPLAction, REPLObservation\n"
    "from repl_env.server.repl_environment import REPLEnvironment",
    "environment": "REPLEnvironment",
    "action": "REPLAction",
    "observation": "REPLObservation",
}
LONG = "sum(range(3 * 10**8))"
LINE = "x = 1 + 1"
SETTLED_S = 2.0
"""After this, what a server starts ahead of need is there."""


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server, and its process."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[0], psutil.Process(process.pid)
        finally:
            process.terminate()


def ours(sessions: int) -> tuple[str, ...]:
    limits = ("--set", "kernel.line_s=60")
    return ("-m", "repl_rl.cli", "serve", "openenv", "--port", "0", "--size", str(sessions), *limits)


def peer(folder: Path, names: dict[str, str], sessions: int) -> tuple[str, ...]:
    return ("-c", PEER.format(**names, sessions=sessions), str(folder / "envs"))


def pss_mb(server: psutil.Process) -> float:
    """Memory of a server and its descendants; what processes share is divided among them."""
    family = [server, *server.children(recursive=True)]
    return sum(process.memory_full_info().pss for process in family) / 2**20


def opened(url: str, stack: ExitStack, sessions: int) -> tuple[list[Any], list[float]]:
    """Clients in their sessions, and the milliseconds that each took to its first reply."""
    clients, starts_ms = [], []
    for _ in range(sessions):
        began = time.perf_counter()
        client = stack.enter_context(GenericEnvClient(base_url=url, message_timeout_s=300).sync())
        client.reset()
        client.step({"code": LINE})
        starts_ms.append((time.perf_counter() - began) * 1000)
        clients.append(client)
    return clients, starts_ms


def lines_ms(client: Any, count: int) -> list[float]:
    durations = []
    for _ in range(count):
        began = time.perf_counter()
        client.step({"code": LINE})
        durations.append((time.perf_counter() - began) * 1000)
    return durations


def neighbour_ms(busy: Any, other: Any) -> float:
    """The slowest line of `other` from before to after the long line of `busy`."""
    thread = threading.Thread(target=busy.step, args=[{"code": LONG}])
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        [duration_ms] = lines_ms(other, 1)
        slowest = max(slowest, duration_ms)
    thread.join()
    return slowest


def of_concurrent_sessions(command: Callable[[int], tuple[str, ...]], sessions: int, lines: int) -> dict[str, float]:
    """`command` starts a server for so many sessions."""
    figures = of_a_single_session(command(1), 0, lines)
    with served(*command(sessions)) as (url, server), ExitStack() as stack:
        opened(url, stack, 1)
        time.sleep(SETTLED_S)
        clients, starts_ms = opened(url, stack, sessions - 1)
        time.sleep(SETTLED_S)
        figures["start_ms"] = statistics.median(starts_ms)
        figures["session_mb"] = (pss_mb(server) - figures["server_mb"]) / (sessions - 1)
        figures["line_ms"] = statistics.median(lines_ms(clients[0], lines))
        figures["neighbour_ms"] = neighbour_ms(clients[0], clients[1])
    return figures


def of_a_single_session(command: tuple[str, ...], starts: int, lines: int) -> dict[str, float]:
    """For a server with one session at a time. So many more are started, one after another, for `start_ms`."""
    figures = {}
    with served(*command) as (url, server):
        with ExitStack() as stack:
            [client], _ = opened(url, stack, 1)
            time.sleep(SETTLED_S)
            figures["server_mb"] = pss_mb(server)
            figures["line_ms"] = statistics.median(lines_ms(client, lines))
        starts_ms = []
        for _ in range(starts):
            time.sleep(0.1)  # until the server has ended the session before
            with ExitStack() as stack:
                starts_ms += opened(url, stack, 1)[1]
        if starts_ms:
            figures["start_ms"] = statistics.median(starts_ms)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("openenv", type=Path, help="a checkout of OpenEnv's repository")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sessions, lines, folder = options.sessions, options.lines, options.openenv
    report = {
        "settings": {"sessions": sessions, "lines": lines},
        "ours": of_concurrent_sessions(ours, sessions, lines),
        "repl_env": of_concurrent_sessions(partial(peer, folder, REPL), sessions, lines),
        "coding_env": of_a_single_session(peer(folder, CODING, 1), sessions, lines),
    }
    print(json.dumps(report, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
