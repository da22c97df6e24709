"""Python functions that the model may call: inside its interpreter, or outside over the session's channel.

tools = Toolbox(as_tools([multiply, "my_package.lookups:search"]))
await kernel.prepare(tools.setup_source())
await kernel.execute("multiply(3, 4)", host=tools.host_calls())
"""

from repl_rl.tools.tool import Tool, as_tools, tool
from repl_rl.tools.toolbox import Toolbox, tool_metrics

__all__ = ["Tool", "Toolbox", "as_tools", "tool", "tool_metrics"]
