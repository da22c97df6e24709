"""Python functions that the model may call: inside its interpreter, or outside over the session's channel.

tools = Toolbox(as_tools([multiply, "my_package.lookups:search"]))
await kernel.prepare(tools.setup_source())
await kernel.execute("multiply(3, 4)", host=tools.host_calls())
"""

from repl_rl.tools.tool import Tool as Tool
from repl_rl.tools.tool import as_tools as as_tools
from repl_rl.tools.tool import tool as tool
from repl_rl.tools.toolbox import Toolbox as Toolbox
from repl_rl.tools.toolbox import call_metrics as call_metrics
from repl_rl.tools.toolbox import tool_metrics as tool_metrics
