"""Real `vllm serve` processes on the CPU, for tests."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repl_rl.engine.server.client import serve_flags
from repl_rl.models.nano import NANO_PATH
from repl_rl.utils.processes import free_port

CONTEXT_TOKENS = 512
FLAGS = [
    *serve_flags("float32", CONTEXT_TOKENS),
    "--max-num-seqs=64",
    "--block-size=32",
    "--enforce-eager",
    "--disable-uvicorn-access-log",
]
_START_S = 500.0


@dataclass
class RunningServer:
    """A server in a process group of its own."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"vllm serve ended:\n{self.log.read_text()[-3000:]}"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=30):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError(f"vllm serve is not up after {_START_S} s:\n{self.log.read_text()[-3000:]}")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=600) as response:
            return json.load(response)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start_server(log: Path, *flags: str, port: int | None = None, program: Path | None = None) -> RunningServer:
    """`vllm serve nano`, by module: the command `vllm` of the CPU package looks for another package's metadata.

    `program` is a file that does the same."""
    port = free_port("127.0.0.1") if port is None else port
    module = ["-m", "vllm.entrypoints.launchers.api_server.entry"] if program is None else [str(program)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *module, "--model", str(NANO_PATH), "--host=127.0.0.1", f"--port={port}", *FLAGS, *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
            env={
                **os.environ,
                "VLLM_SERVER_DEV_MODE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            },
        )
    return RunningServer(port, process, log)


@contextmanager
def servers(folder: Path, count: int, *flags: str, program: Path | None = None) -> Iterator[list[RunningServer]]:
    """Several servers, up. All are gone after the block."""
    running = [start_server(folder / f"server{number}.log", *flags, program=program) for number in range(count)]
    try:
        for server in running:
            server.wait_until_up()
        yield running
    finally:
        for server in running:
            server.kill()
