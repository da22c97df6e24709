"""What one session has on the host's disk: its folder where it has no /tmp of its own, its Jupyter sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from repl_rl.kernel.home import Home, remove_tree
from repl_rl.kernel.listening import CHANNELS, remove_sockets
from repl_rl.kernel.sandbox import SandboxKind


class SessionFiles:
    """Made with the session, removed with it."""

    def __init__(self, home: Home, kind: SandboxKind) -> None:
        self._home = home
        self.kind = kind
        self._folder: Path | None = None
        self._connection: dict[str, Any] = {}
        self.connection_file: Path | None = None
        self.is_in_memory = kind == "bwrap"

    def folder(self) -> str | None:
        if self.is_in_memory:
            return None
        self._folder = self._home.next_session_folder()
        return str(self._folder)

    def new_connection(self) -> tuple[Path, dict[str, Any]]:
        path = self._home.next_connection_file()
        ports = {f"{name}_port": number for number, name in enumerate(CHANNELS, 1)}
        self._connection = {
            "transport": "ipc",
            "ip": str(path.with_suffix("")),
            "key": os.urandom(16).hex(),
            "signature_scheme": "hmac-sha256",
            "kernel_name": "repl_rl",
            **ports,
        }
        return path, self._connection

    async def remove(self) -> None:
        remove_sockets(self._connection)
        if self.connection_file is not None:
            with contextlib.suppress(OSError):
                self.connection_file.unlink()
        if self._folder is not None:
            await asyncio.to_thread(remove_tree, self._folder)
