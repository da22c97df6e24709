"""The run viewer's server: the page and its API, on this machine only.

It listens on 127.0.0.1, answers GET only, and refuses requests whose Host is not this machine, so that no web site
can make a browser read a run through a host name of its own (DNS rebinding). The page may load and run only its own
files; a step's timeline is given as a file to keep.

Answers are computed in threads. Every request makes the indexer look at the run's files again, at most about once a
second: while nobody is looking, nothing is read.
"""

import asyncio
import json
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from repl_rl.errors import ConfigError, ReplRLError
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.api import Answer, RunApi
from repl_rl.view.viewer.export import INDEX, asset

HOST = "127.0.0.1"
_NAMES = {HOST, "localhost"}
_MOST_SCREEN_ROWS = 5000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_UNTIL_CHANGED = {"Cache-Control": "no-cache"}
"""The browser keeps the file and asks each time whether it is still the same."""
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(api: RunApi, poke: Callable[[], None]) -> web.Application:
    """The viewer. `poke` is called before each answer and has to return at once."""
    app = web.Application(middlewares=[_guarded(poke)])
    app.router.add_get("/", _asset)
    app.router.add_get("/assets/{name}", _asset)
    answers = {
        "run": lambda request: api.run(),
        "trajectories": lambda request: api.rows(dict(request.query)),
        "trajectory/{id}": lambda request: _trajectory(api, request),
        "tokens/{id}": lambda request: _tokens(api, request),
        "group/{id}": lambda request: api.group(request.match_info["id"]),
        "task/{id}": lambda request: api.task(request.match_info["id"]),
    }
    for path, answer in answers.items():
        app.router.add_get(f"/api/{path}", _answering(answer))
    app.router.add_get("/trace/{number}/{name}", _timeline(api))
    return app


async def serve(api: RunApi, poke: Callable[[], None], port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the address once it answers. Port 0 means any free one.

    Raises ConfigError if the port is not available.
    """
    runner = web.AppRunner(application(api, poke), access_log=None)
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port, shutdown_timeout=1.0).start()
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise ConfigError(f"port {port} can't be had: {reason}; give another, or leave out --port") from error
        ready(f"http://{HOST}:{runner.addresses[0][1]}/")
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await ended.wait()
    finally:
        await runner.cleanup()


def _guarded(poke: Callable[[], None]) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            name, _, port = request.host.lower().rpartition(":")
            if (name if port.isdecimal() else request.host.lower()) in _NAMES:
                poke()
                response = await handler(request)
            else:
                response = _error(403, f"this viewer is for this machine alone, as {HOST} or localhost")
        except web.HTTPException as error:
            response = _error(error.status, error.reason.lower(), error.headers.get("Allow"))
        except queries.NotFound as error:
            response = _error(404, str(error))
        except ConfigError as error:
            response = _error(400, str(error))
        except (ReplRLError, sqlite3.Error, OSError) as error:
            response = _error(503, f"the run can't be read just now: {error}")
        response.headers.update(_HEADERS)
        return response

    return guard


def _error(status: int, sentence: str, allow: str | None = None) -> web.Response:
    response = _json({"error": sentence}, status)
    if allow is not None:
        response.headers["Allow"] = allow
    return response


def _json(answer: Answer, status: int = 200) -> web.Response:
    """A JSON response in ASCII, so that it is valid UTF-8 whatever a file held."""
    text = json.dumps(answer, allow_nan=False)
    headers = {"Cache-Control": "no-store"}
    return web.Response(text=text, status=status, content_type="application/json", headers=headers)


def _answering(ask: Callable[[web.Request], Answer]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await asyncio.to_thread(lambda: _json(ask(request)))

    return handler


def _trajectory(api: RunApi, request: web.Request) -> Answer:
    first, rows = queries.count(request.query, "first", 0), queries.count(request.query, "count", 400)
    return api.trajectory(request.match_info["id"], first, min(rows, _MOST_SCREEN_ROWS))


def _tokens(api: RunApi, request: web.Request) -> Answer:
    line = queries.count(request.query, "line", 0) if request.query.get("line") else None
    return api.tokens(request.match_info["id"], line)


def _timeline(api: RunApi) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        number, name = request.match_info["number"], request.match_info["name"]
        content = await asyncio.to_thread(api.timeline, number, name)
        headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{name}"'}
        return web.Response(body=content, content_type="application/gzip", headers=headers)

    return handler


async def _asset(request: web.Request) -> web.StreamResponse:
    path = asset(request.match_info.get("name", INDEX))
    if path is None:
        raise web.HTTPNotFound
    # Types are set here: systems differ in the type they give a suffix, and with `nosniff` browsers rely on it.
    type = {"Content-Type": f"{_TYPES[path.suffix]}; charset=utf-8"} if path.suffix in _TYPES else {}
    return web.FileResponse(path, headers=_UNTIL_CHANGED | type)
