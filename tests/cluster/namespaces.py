"""Machines for tests: network namespaces of this one, joined by a bridge in a namespace of its own.

Nothing is added to the namespace that the tests run in, and addresses can't collide with those outside. Needs root and
`ip` of iproute2.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_END_S = 60.0


def missing() -> str | None:
    """Why there can't be any here."""
    if shutil.which("ip") is None:
        return "needs `ip` (apt-get install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return made.stderr.strip() if made.returncode else None


@dataclass(frozen=True)
class Machine:
    """A namespace with an address."""

    name: str
    address: str

    def command(self, *command: str) -> list[str]:
        """The command that runs there."""
        return ["ip", "netns", "exec", self.name, *command]

    def processes(self) -> list[int]:
        found = _ip("netns", "pids", self.name)
        return [int(line) for line in found.stdout.split()]

    def is_running(self, pid: int, argument: str) -> bool:
        """Whether a process has this among its arguments."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return argument.encode() in file.read().split(b"\0")
        except FileNotFoundError:
            return False

    def unplug(self) -> None:
        """Take it off the network. Nobody is told that its connections are gone."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def kill(self) -> None:
        """End all processes there, those that begin meanwhile as well."""
        deadline = time.monotonic() + _END_S
        while pids := self.processes():
            assert time.monotonic() < deadline, f"{self.name} still has processes {pids}"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """They are gone after the block, with all processes in them."""
    run = f"repl-rl-{os.getpid()}"
    switch = f"{run}-switch"
    made = [Machine(f"{run}-{number}", f"10.77.0.{number}") for number in range(1, count + 1)]
    try:
        _must("netns", "add", switch)
        _must("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _must("-n", switch, "link", "set", "bridge0", "up")
        for number, machine in enumerate(made, start=1):
            _must("netns", "add", machine.name)
            port = f"port{number}"
            _must("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine.name)
            _must("-n", switch, "link", "set", port, "master", "bridge0", "up")
            _must("-n", machine.name, "link", "set", "lo", "up")
            _must("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth0")
            _must("-n", machine.name, "link", "set", "eth0", "up")
            _must("-n", machine.name, "route", "add", "default", "dev", "eth0")
        yield made
    finally:
        existing = _ip("netns", "list").stdout.split()
        for machine in made:
            if machine.name in existing:
                machine.kill()
        for name in (*(machine.name for machine in made), switch):
            if name in existing:
                _must("netns", "del", name)


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def _must(*arguments: str) -> None:
    done = _ip(*arguments)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
