"""An MCP server whose tools have names, schemas and results that MCP allows and Python code does not expect."""

import asyncio
from typing import Any

import mcp_types
from mcp.server import Server
from mcp.server.stdio import stdio_server

ANYTHING = {"type": "object", "properties": {}}
NUMBER = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"], "title": "Number"}
RESULTS: dict[str, Any] = {"list": [1, 2], "five": 5, "result": {"result": 5}, "nothing": None}
TOOLS = [
    mcp_types.Tool(
        name="2d-plot",
        input_schema={"type": "object", "properties": {"2d": True, "from": {"type": "string"}}, "required": ["2d"]},
    ),
    mcp_types.Tool(name="list", input_schema=ANYTHING),
    mcp_types.Tool(name="five", input_schema=ANYTHING),
    mcp_types.Tool(name="result", input_schema=ANYTHING, output_schema=NUMBER),
    mcp_types.Tool(name="nothing", input_schema=ANYTHING),
    mcp_types.Tool(name="submit-final-answer", input_schema=ANYTHING),
    mcp_types.Tool(name="twice", input_schema={"type": "object", "properties": {"a-b": {}, "a.b": {}}}),
]


async def offered(context: Any, params: Any) -> mcp_types.ListToolsResult:
    return mcp_types.ListToolsResult(tools=TOOLS)


async def called(context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
    text = [mcp_types.TextContent(type="text", text=f"{params.arguments}")]
    if params.name in RESULTS:
        return mcp_types.CallToolResult(content=text, structured_content=RESULTS[params.name])
    return mcp_types.CallToolResult(content=text)


async def main() -> None:
    server = Server("odd", on_list_tools=offered, on_call_tool=called)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
