"""The host's side of one fork server (kernels/python/fork_server.py): start it, ask it for sessions, end it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repl_rl.errors import ForkRefusedError, KernelStartError
from repl_rl.kernel.limits import MATH
from repl_rl.kernel.processes import exited, readable
from repl_rl.kernel.sandbox import Sandbox

_MOST_BYTES = 1 << 16
_END_S = 2.0
_LOG_CHARS = 2000
_LOST = "its descriptor was lost; this process has too many open files (`ulimit -n`)"

_log = logging.getLogger(__name__)
_logged: set[str] = set()


class ForkServer:
    """One running server. Belongs to one event loop, and ends with the thread that made it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        fork_setup: socket.socket,
        log: Path,
        patience_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._control = control
        self._fork_setup = fork_setup
        self._log_file = log
        self._patience_s = patience_s
        self._numbers = itertools.count(1)
        self._requests: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.has_ended = False
        self.running_lines = 0
        """How many lines run in its sessions now."""
        self._loop.add_reader(control.fileno(), self._on_readable)

    @classmethod
    async def start(cls, sandbox: Sandbox) -> ForkServer:
        """Start a server, its profile's packages imported. Raises KernelStartError, with its output, if that fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        our_setup, their_setup = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        our_setup.setblocking(False)
        assert sandbox.home is not None
        log = sandbox.home.path / "fork_server.log"
        with theirs, their_setup, open(log, "ab") as output:
            record = {
                "control": theirs.fileno(),
                "fork_setup": their_setup.fileno() if sandbox.kind == "bwrap" else None,
                "walls": sandbox.kind,
                "rlimits": sandbox.rlimits(),
                "charged": sandbox.home.group is not None,
                "tmp_mb": sandbox.limits.tmp_mb,
                "readable": sandbox.readable(),
                "preload": list(sandbox.profile.preload),
                "warm_up": sandbox.profile.warm_up,
                "site_packages": sandbox.packages(),
                "links": sandbox.links,
                "caches": sandbox.caches,
            }
            argv = ["-s", "-S", "-P", f"{sandbox.program_inside}/launch.py"]
            try:
                process = sandbox.launch(
                    argv, record, output=output.fileno(), descriptors=[theirs.fileno(), their_setup.fileno()]
                )
            except OSError as error:
                ours.close()
                our_setup.close()
                raise KernelStartError(f"the fork server could not be launched: {error}") from error
        server = cls(process, ours, our_setup, log, sandbox.limits.start_s)
        try:
            ready = await asyncio.wait_for(asyncio.shield(server._ready), server._patience_s)
            _log_shortcomings(sandbox.profile.name, ready)
        except BaseException as error:
            printed = server._printed()
            await server.close()
            if not isinstance(error, TimeoutError):
                raise
            raise KernelStartError(
                f"the fork server was not ready within {server._patience_s:g} s: {printed}"
            ) from None
        return server

    @property
    def pid(self) -> int:
        """The process id of the sandbox's outer process."""
        return self._process.pid

    async def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """A pidfd of a new session; fork_server.py documents `request` and `descriptors`. Raises KernelStartError."""
        number = next(self._numbers)
        reply: asyncio.Future[int] = self._loop.create_future()
        self._requests[number] = reply
        try:
            message = json.dumps({"fork": number, **request}).encode()
            socket.send_fds(self._control, [message], descriptors)
            async with asyncio.timeout(self._patience_s):
                return await reply
        except TimeoutError as error:
            self._process.kill()
            self._end()
            raise KernelStartError(f"the fork server did not answer within {self._patience_s:g} s") from error
        except ConnectionError as error:
            reply.cancel()
            self._end()  # its last message may not have been read yet, and the next caller would ask it again
            raise KernelStartError(f"the fork server ended: {self._printed()}") from error
        except OSError as error:
            raise KernelStartError(f"the fork server could not be asked for a kernel: {error}") from error
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                os.close(reply.result())
            raise
        finally:
            self._requests.pop(number, None)

    async def set_up_fork(self, pidfd: int, *, folders: bool) -> None:
        """Give a session's fork of itself a /proc of its own, and the other folders if it is to have them.

        Raises ForkRefusedError if that fails or takes too long.
        """
        reading_end, writing_end = os.pipe()
        try:
            try:
                message = json.dumps({"folders": folders}).encode()
                socket.send_fds(self._fork_setup, [message], [pidfd, writing_end])
            except OSError as error:
                raise ForkRefusedError(f"the fork server could not be asked to set up a fork: {error}") from error
            finally:
                os.close(writing_end)
            report = b""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(readable(reading_end), self._patience_s)
                report = os.read(reading_end, _MOST_BYTES)
        finally:
            os.close(reading_end)
        if report != b"ok":
            reason = report.decode(errors="replace") or "no answer"
            raise ForkRefusedError(f"a fork got no folders of its own: {reason}")

    def is_gone(self) -> bool:
        """Whether it has ended, by a look at both its socket and its sandbox, because either may end first."""
        if not self.has_ended:
            self._on_readable()
        if self._process.poll() is not None:
            self._end()
        return self.has_ended

    async def close(self) -> None:
        """End the server with all its sessions, and wait until they are gone."""
        self._end()
        for end in (self._control, self._fork_setup):
            with contextlib.suppress(OSError):  # the server has ended already
                end.shutdown(socket.SHUT_RDWR)  # a fork of this process would keep open what is only closed here
            end.close()
        try:
            await asyncio.wait_for(exited(self._process), _END_S)
        except TimeoutError:
            self._process.kill()
            await exited(self._process)

    def _on_readable(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MOST_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
            descriptors = []
        if not message:
            self._end()
            return
        report = json.loads(message)
        if "ready" in report:
            self._ready.set_result(report)
            return
        reply = self._requests.get(report["fork"])
        if reply is None or reply.done():  # whoever asked has gone away
            for descriptor in descriptors:
                os.close(descriptor)
        elif descriptors:
            reply.set_result(descriptors[0])
        else:
            reply.set_exception(KernelStartError(f"the fork server made no kernel: {report.get('error', _LOST)}"))

    def _end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._loop.remove_reader(self._control.fileno())
        futures: list[asyncio.Future[Any]] = [self._ready, *self._requests.values()]
        for future in futures:
            if not future.done():
                future.set_exception(KernelStartError(f"the fork server ended: {self._printed()}"))
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # retrieved, or asyncio would log it: whoever started the server has it already

    def _printed(self) -> str:
        text = ""
        with contextlib.suppress(OSError):
            text = self._log_file.read_text(errors="replace").strip()
        return f"it printed: {text[-_LOG_CHARS:] or 'nothing'}"


def _log_shortcomings(profile: str, ready: dict[str, Any]) -> None:
    """Log each part of its profile that a server could not do, unless a server before it has said the same."""
    level = logging.INFO if profile == "default" else logging.WARNING
    texts: list[str] = []
    missing: list[str] = ready["missing"]
    if missing and profile == MATH:
        packages = ", ".join(dict.fromkeys(name.partition(".")[0] for name in missing))
        texts.append(
            f"the kernel profile {MATH!r} goes without {packages}; pip install 'repl-rl[math]' installs all of it"
        )
    elif missing:
        texts.append(f"can't be imported, so not preloaded in kernels: {', '.join(missing)}")
    # Code that uses a missing package fails for that, which is logged already; the code of `math` passes over these.
    if ready["warm_up_error"] and (profile == MATH or not missing):
        level = logging.WARNING
        texts.append(f"the kernel profile's warm_up code failed, and kernels go without: {ready['warm_up_error']}")
    if ready["threads"]:
        level = logging.WARNING
        texts.append(
            "what the kernel profile preloads has left threads running, which no session has: "
            + ", ".join(ready["threads"])
        )
    for text in texts:
        if text not in _logged:
            _logged.add(text)
            _log.log(level, "%s", text)
