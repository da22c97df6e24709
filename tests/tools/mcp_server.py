"""An MCP server, built with MCP's own package: `python mcp_server.py [PORT]`, over standard streams or over HTTP."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Literal

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("words", log_level="ERROR")
store: dict[str, int] = {}


@server.tool()
def count(text: str, letter: str = "a") -> int:
    """Count a letter in a text.

    Upper and lower case differ.
    """
    return text.count(letter)


@server.tool(name="look-up")
def look_up(word: str, kind: Literal["noun", "verb"] | None = None, most: list[int] | None = None) -> dict[str, Any]:
    """Look a word up."""
    return {"word": word, "kind": kind, "most": most}


@server.tool(structured_output=False)
def variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "unset")


@server.tool()
def fail() -> str:
    """Never works."""
    from mcp.server.mcpserver.exceptions import ToolError

    raise ToolError("there is no such word")


@server.tool()
async def sleep(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def header(context: Context[Any], name: str) -> str:
    """A header of the request."""
    return (context.headers or {}).get(name, "unset")


@server.tool()
def scribble() -> str:
    """Print what is no message, and not even text."""
    os.write(1, b"\xff\xfe\n")
    return "scribbled"


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def flood(size: int) -> str:
    """Say much."""
    return "x" * size


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        print(f"words are served with {os.environ.get('GIVEN')}", file=sys.stderr)
        if os.environ.get("REFUSING") and Path(os.environ["REFUSING"]).exists():
            sys.exit(1)
        server.run()
