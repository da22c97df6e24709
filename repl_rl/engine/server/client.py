"""HTTP to one vLLM server: JSON in, JSON out, two kinds of trouble.

`ServerUnreachable` may pass (no connection, no answer in time, a 5xx); `ServerRefused` will not (a 4xx, or something
that is no answer of vLLM's). Nothing is tried twice here. Cancelling a call closes its connection, and vLLM then aborts
the request.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from repl_rl.errors import ConfigError, EngineError

_RETRIABLE = frozenset({408, 425, 429})
_KEEP_ALIVE_S = 4.0
"""vLLM closes idle connections after 5 s; a request on a connection that is being closed is lost."""


class ServerUnreachable(EngineError):
    """No answer, or one that says that the server is in trouble."""


class ServerSilent(ServerUnreachable):
    """No answer in time: it may be busy."""


class ServerRefused(EngineError):
    """An answer that asking again would not change."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.status)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the engine waits for what, in seconds."""

    connect_s: float = 5.0
    """For a connection."""
    health_s: float = 5.0
    """For the answer to a small question."""
    handshake_s: float = 60.0
    """For an answer about what the server is; the first one may be slow."""
    request_s: float = 300.0
    """For one line, the time in the server's queue included."""
    weights_s: float = 1800.0
    """For one server to take in new weights."""
    between_checks_s: float = 2.0
    """From one health check of a server to the next."""
    no_server_s: float = 300.0
    """For any server to come back, once all are down."""
    backoff_s: float = 0.2
    """Before a failed request is sent again; doubled each time."""


def open_session(patience: Patience) -> aiohttp.ClientSession:
    """To be called on the event loop that will use it. `VLLM_API_KEY` is sent along where it is set."""
    key = os.environ.get("VLLM_API_KEY")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


class ServerClient:
    """One server. Raises ConfigError for a URL that is none."""

    def __init__(self, url: str, session: aiohttp.ClientSession, patience: Patience) -> None:
        self.url = base_url(url)
        self._session = session
        self.patience = patience

    async def get(self, path: str, wait_s: float | None = None) -> Any:
        return await self._call("GET", path, None, self.patience.health_s if wait_s is None else wait_s)

    async def post(self, path: str, body: Any = None, wait_s: float | None = None) -> Any:
        return await self._call("POST", path, body, self.patience.health_s if wait_s is None else wait_s)

    async def generate(self, body: dict[str, Any], wait_s: float | None = None) -> Any:
        """vLLM's tokens in, tokens out."""
        return await self.post("/inference/v1/generate", body, self.patience.request_s if wait_s is None else wait_s)

    async def worker_call(self, method: str, **arguments: Any) -> list[Any]:
        """Run a method of the worker extension in each of the server's workers (`repl_rl.engine.server.worker`)."""
        body = {"method": method, "kwargs": arguments, "timeout": self.patience.weights_s}
        answer = await self.post("/collective_rpc", body, self.patience.weights_s)
        return list((answer or {}).get("results", ()))

    async def _call(self, method: str, path: str, body: Any, wait_s: float) -> Any:
        where = f"{self.url}{path.partition('?')[0]}"
        timeout = aiohttp.ClientTimeout(total=wait_s, connect=self.patience.connect_s)
        try:
            async with self._session.request(method, self.url + path, json=body, timeout=timeout) as response:
                status, text = response.status, await response.text()
        except TimeoutError as error:
            raise ServerSilent(f"{where}: no answer in time ({wait_s:g} s)") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(f"{where}: {error or type(error).__name__}") from error
        return _read(where, status, text)


def base_url(url: str) -> str:
    """`url` without what stands behind host, port and prefix. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"engine.servers: {url!r} is no base URL; write it as http://host:8000")
    return url.rstrip("/").removesuffix("/v1")


def _read(where: str, status: int, text: str) -> Any:
    if status >= 500 or status in _RETRIABLE:
        raise ServerUnreachable(f"{where}: HTTP {status}: {_message(text)}")
    if status == 401:
        raise ServerRefused(f"{where} wants an API key; set VLLM_API_KEY to the one it was started with", status)
    if status >= 400:
        raise ServerRefused(f"{where}: HTTP {status}: {_message(text)}", status)
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise ServerRefused(f"{where} does not answer in JSON, so it is no vLLM server: {text[:80]!r}") from error


def _message(text: str) -> str:
    """The reason in an error answer of vLLM's, or its first characters."""
    try:
        answer = json.loads(text)
        return str(answer["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].strip() or "no reason given"
