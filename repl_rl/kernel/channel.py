"""The shell channel of one kernel: requests and their replies, by the Jupyter messaging protocol."""

from __future__ import annotations

from typing import Any

import zmq.asyncio
from jupyter_client.session import Session
from zmq.constants import SocketType


class ShellChannel:
    """One request at a time. Never reconnects: a kernel that is gone stays gone."""

    def __init__(self, context: zmq.asyncio.Context, url: str, session: Session) -> None:
        self._session = session
        self._socket = context.socket(SocketType.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl = -1
        self._socket.connect(url)

    async def request(self, msg_type: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its reply's content; replies to earlier requests are dropped."""
        sent = self._session.send(self._socket, msg_type, content)
        while True:
            _, frames = self._session.feed_identities(await self._socket.recv_multipart())
            reply = self._session.deserialize(frames)
            if reply["parent_header"].get("msg_id") == sent["header"]["msg_id"]:
                return dict(reply["content"])

    def close(self) -> None:
        self._socket.close()
