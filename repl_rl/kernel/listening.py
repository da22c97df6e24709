"""The sockets on which a kernel answers, bound on this side and inherited by it.

The kernel then needs to see no folder of the host's to be reached from it, and a client can connect before it is up.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

CHANNELS = ("shell", "control", "iopub", "stdin", "hb")
_BACKLOG = 16


@contextlib.contextmanager
def listening(connection_info: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """A listening socket per channel, as descriptors; closed on this side afterwards."""
    with contextlib.ExitStack() as stack:
        descriptors = {}
        for channel in CHANNELS:
            ipc = connection_info["transport"] == "ipc"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX if ipc else socket.AF_INET))
            address = (connection_info["ip"], connection_info[f"{channel}_port"])
            listener.bind(ipc_path(connection_info, channel) if ipc else address)
            listener.listen(_BACKLOG)
            descriptors[channel] = listener.fileno()
        yield descriptors


def ipc_path(connection_info: Mapping[str, Any], channel: str) -> str:
    """The path of a channel's socket."""
    return f"{connection_info['ip']}-{connection_info[f'{channel}_port']}"


def remove_sockets(connection_info: Mapping[str, Any]) -> None:
    """Unlink the paths of an ipc connection's sockets, as far as they are there."""
    if connection_info.get("transport") == "ipc":
        for channel in CHANNELS:
            with contextlib.suppress(OSError):
                os.unlink(ipc_path(connection_info, channel))
