"""Tools of MCP servers, as host tools: the session has a name, a signature and a text, and nothing of the server.

    tools = mcp_tools({"words": McpConfig(command=("python", "words.py"))})

A server is a program that speaks over its standard streams, or an address (Streamable HTTP). Protocol and transports
are those of MCP's own package. Each process that answers sessions connects at the first call, and all its sessions
share the connection. The call after the one at which a connection broke opens it anew.

What a server may know (`env`, `headers`) is named in the config and read from the environment as the server is
connected to, so that no run folder, transcript or sandbox has it. Why a server can't be reached is told to the host
alone, because the server may print what it knows.

Not covered: resources, prompts, sampling and questions of a server, and images, which are left out of results.
"""

from __future__ import annotations

import asyncio
import atexit
import keyword
import logging
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import Parameter, Signature
from typing import IO, Any, Literal

from repl_rl.config import McpConfig
from repl_rl.errors import DependencyError, ToolError
from repl_rl.tools.signatures import signature_text
from repl_rl.tools.tool import Tool, check_name, refuse_doubles
from repl_rl.utils.machine import install_command
from repl_rl.utils.threads import BackgroundLoop

try:
    import httpx2
    from mcp import Client, MCPError
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
except ImportError as error:
    raise DependencyError(
        f"MCP servers need version 2 of the package mcp, which can't be imported ({error}): {install_command('mcp')}"
    ) from error

_log = logging.getLogger(__name__)

CONNECT_S = 30.0
"""How long a server may take to start and answer, or to list its tools."""
_HTTP_S = httpx2.Timeout(CONNECT_S, read=300.0)
"""A server may hold a response open until a tool is done; how long a call may take is the tool's own limit."""
_PRINTED_CHARS = 1000
_MOST_PAGES = 100
_WAYS_OUT = "choose among a server's tools with `only`, or put a `prefix` before their names"
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict[str, Any],
    "null": type(None),
}
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def mcp_tools(servers: Mapping[str, McpConfig]) -> tuple[Tool, ...]:
    """The tools of MCP servers, by the names that we give the servers, as each describes its tools now.

    Connects to each and leaves it again. Raises ToolError, which names the server: for one that does not start or
    answer, a variable that is not set, a tool that it does not have, and names that Python code can't call.
    """
    tools: list[Tool] = []
    with BackgroundLoop() as loop:
        for name, server in servers.items():
            offered = loop.run(_offered(name, server))
            missing = [tool for tool in server.only or () if tool not in offered]
            if missing:
                raise ToolError(
                    f"MCP server {name!r} has no tool {missing[0]!r}; it has {', '.join(offered) or 'none'}"
                )
            for tool in server.only or offered:
                try:
                    tools.append(_as_tool(name, server, offered[tool]))
                except ToolError as error:
                    raise ToolError(f"MCP server {name!r}, tool {tool!r}: {error}; {_WAYS_OUT}") from error
    try:
        refuse_doubles(tool.name for tool in tools)
    except ToolError as error:
        raise ToolError(f"MCP servers {', '.join(servers)}: {error}; {_WAYS_OUT}") from error
    return tuple(tools)


async def call_tool(name: str, server: McpConfig, tool: str, arguments: dict[str, Any]) -> Any:
    """What a tool returns: the structured content if there is some, else its texts. For any event loop.

    Raises RuntimeError with what the server says of a call that failed, and ConnectionError if it can't be reached.
    """
    result = await asyncio.wrap_future(_connection(name, server).submit(tool, arguments))
    text = "\n".join(part.text for part in result.content if part.type == "text")
    if result.is_error:
        raise RuntimeError(text or f"{tool} failed, and the MCP server {name!r} does not say why")
    return text if result.structured_content is None else result.structured_content


class _Connection:
    """A connection of this process, on an event loop of its own."""

    def __init__(self, name: str, server: McpConfig) -> None:
        self._name = name
        self._server = server
        self._loop = BackgroundLoop()
        self._client: asyncio.Future[Any] | None = None
        self._holding: asyncio.Task[None] | None = None
        atexit.register(self._loop.close)

    def submit(self, tool: str, arguments: dict[str, Any]) -> Future[Any]:
        return self._loop.submit(self._call(tool, arguments))

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._holding = asyncio.create_task(self._hold(self._client))
        opened = self._client
        try:
            # Shielded: a call whose time is up is cancelled, and others wait for the same client.
            return await (await asyncio.shield(opened)).call_tool(tool, arguments)
        except MCPError as error:
            if not self._is_over(error):
                raise RuntimeError(error.message) from None
            self._forget(opened)
            raise ConnectionError(f"the connection to the MCP server {self._name!r} broke") from None
        except ToolError as error:
            self._forget(opened)
            _log.warning("%s", error)
            raise ConnectionError(f"the MCP server {self._name!r} can't be reached") from None

    def _is_over(self, error: MCPError) -> bool:
        """Whether no further call can succeed. An address that was started anew does not know our session, and refuses
        each request that names it."""
        if error.code == INVALID_REQUEST:
            return self._server.url is not None
        return bool(error.code == CONNECTION_CLOSED)

    def _forget(self, client: asyncio.Future[Any]) -> None:
        """Let the next call connect anew, unless one has already."""
        if self._client is client:
            assert self._holding is not None
            self._holding.cancel()
            self._client = None

    async def _hold(self, client: asyncio.Future[Any]) -> None:
        """Keep the connection until this is cancelled. The task that opens a connection has to close it."""
        try:
            async with _connected(self._name, self._server) as opened:
                client.set_result(opened)
                await asyncio.Event().wait()
        except ToolError as error:
            client.set_exception(error)


_connections: dict[tuple[str, str], _Connection] = {}
_connections_lock = threading.Lock()


def _connection(name: str, server: McpConfig) -> _Connection:
    key = name, server.model_dump_json()
    with _connections_lock:
        if key not in _connections:
            _connections[key] = _Connection(name, server)
        return _connections[key]


@asynccontextmanager
async def _connected(name: str, server: McpConfig) -> AsyncIterator[Any]:
    """A client of the server. Raises ToolError if it can't be connected to."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(CONNECT_S):
                    transport = await _transport(name, server, printed, stack)
                    client = await stack.enter_async_context(Client(transport))
            except ToolError:
                raise
            except Exception as error:
                raise ToolError(f"MCP server {name!r} can't be used: {_reason(error)}{_last_words(printed)}") from error
            yield client


async def _transport(name: str, server: McpConfig, printed: IO[str], stack: AsyncExitStack) -> Any:
    if server.url is None:
        program, *arguments = server.command
        variables = {variable: _variable(name, variable) for variable in server.env}
        parameters = StdioServerParameters(
            command=program,
            args=arguments,
            env=variables,
            # A byte that is not UTF-8 would end the reader, and with it the connection.
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=printed)
    headers = {}
    for key, text in server.headers.items():
        headers[key] = _VARIABLE.sub(lambda match: _variable(name, match[1]), text)
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=_HTTP_S))
    return streamable_http_client(server.url, http_client=http)


def _variable(name: str, variable: str) -> str:
    if variable not in os.environ:
        raise ToolError(f"MCP server {name!r} is to get the variable {variable}, which the environment does not have")
    return os.environ[variable]


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECT_S:g} s"
    return str(error) or type(error).__name__


def _last_words(printed: IO[str]) -> str:
    printed.seek(0)
    text = printed.read().strip()[-_PRINTED_CHARS:]
    return f"; it printed: {text}" if text else ""


async def _offered(name: str, server: McpConfig) -> dict[str, Any]:
    """MCP's descriptions of the server's tools, by their names."""
    offered: dict[str, Any] = {}
    async with _connected(name, server) as client:
        try:
            async with asyncio.timeout(CONNECT_S):
                cursor = None
                for _ in range(_MOST_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    offered |= {tool.name: tool for tool in page.tools}
                    cursor = page.next_cursor
                    if cursor is None:
                        break
        except (MCPError, TimeoutError) as error:
            raise ToolError(f"MCP server {name!r} does not list its tools: {_reason(error)}") from error
    return offered


# Their description of a tool, as ours


def _as_tool(name: str, server: McpConfig, offered: Any) -> Tool:
    tool_name = _identifier(f"{server.prefix}{offered.name}")
    check_name(tool_name)
    schema = offered.input_schema
    properties: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    keys = {_identifier(key): key for key in sorted(properties, key=lambda key: key not in required)}
    if len(keys) < len(properties):
        raise ToolError("two of its parameters have one name in Python")
    parameters = []
    lines = []
    for parameter, key in keys.items():
        # A schema may be plain true: anything goes.
        described = properties[key] if isinstance(properties[key], dict) else {}
        annotation = _annotation(described)
        default: Any = Parameter.empty
        if key not in required:
            default = described.get("default")
            if default is None and annotation is not Any:
                annotation = annotation | None
        parameters.append(Parameter(parameter, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
        if description := described.get("description"):
            lines.append(f"    {parameter}: {' '.join(description.split())}")
    positional = [each.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for each in parameters]
    signature = Signature(positional)
    description = (offered.description or offered.title or offered.name).strip()
    doc = description + ("\n\nArgs:\n" + "\n".join(lines) if lines else "")
    named = {parameter: properties[key] for parameter, key in keys.items()}
    return Tool(
        name=tool_name,
        signature=signature_text(tool_name, signature),
        description=" ".join(description.split("\n\n")[0].split()),
        doc=doc,
        where="host",
        function=_function(name, server, offered, signature, keys),
        timeout_s=server.timeout_s,
        at_once=server.at_once,
        parameters={**schema, "properties": named, "required": [key for key in keys if keys[key] in required]},
    )


def _function(
    name: str, server: McpConfig, offered: Any, signature: Signature, keys: Mapping[str, str]
) -> Callable[..., Any]:
    """A function of these parameters that calls the tool. It can be sent to other processes."""
    tool = offered.name
    is_wrapped = _is_wrapped(offered.output_schema)

    async def function(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        result = await call_tool(name, server, tool, {keys[key]: value for key, value in given.items()})
        return result["result"] if is_wrapped and isinstance(result, dict) else result

    function.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    function.__annotations__ = {key: each.annotation for key, each in signature.parameters.items()}
    return function


def _is_wrapped(schema: Any) -> bool:
    """Whether MCP's or FastMCP's package has put a result that is no object into one, `{"result": ...}`.

    FastMCP says so in the schema; MCP's titles the schema of a function `count` "countOutput".
    """
    if not isinstance(schema, dict) or list(schema.get("properties", {})) != ["result"]:
        return False
    return bool(schema.get("x-fastmcp-wrap-result")) or str(schema.get("title", "")).endswith("Output")


def _identifier(text: str) -> str:
    """Such as look_up for look-up, _2d for 2d and from_ for from."""
    name = "".join(letter if f"_{letter}".isidentifier() else "_" for letter in text)
    if not name.isidentifier():
        name = f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _annotation(schema: Any) -> Any:
    """The Python type of a JSON schema. What Python has no plain type for is Any, and left to the server to check."""
    if not isinstance(schema, dict):
        return Any
    if isinstance(schema.get("enum"), list) and all(isinstance(each, str | int) for each in schema["enum"]):
        return Literal[tuple(schema["enum"])]
    options = schema.get("anyOf")
    if options is None and isinstance(schema.get("type"), list):
        options = [{**schema, "type": kind} for kind in schema["type"]]
    if options:
        annotation, *others = map(_annotation, options)
        for other in others:
            if Any in (annotation, other):
                return Any
            annotation = annotation | other
        return annotation
    kind = schema.get("type")
    if kind == "array":
        return list[_annotation(schema.get("items"))]  # type: ignore[misc]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any
