"""Tools of real MCP servers, as programs and over HTTP: as the model sees them, as it calls them, and as they fail."""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from waiting import until

from repl_rl.config import McpConfig, parse_config
from repl_rl.errors import ToolError
from repl_rl.kernel.results import HostCall, HostReply
from repl_rl.rollout.scripted import type_session
from repl_rl.rollout.setup import load_extensions
from repl_rl.tools import Toolbox
from repl_rl.tools.mcp import mcp_tools
from repl_rl.trajectory import Task

pytestmark = pytest.mark.more
SERVER = Path(__file__).with_name("mcp_server.py")
COMMAND = (sys.executable, str(SERVER))
WORDS = McpConfig(command=COMMAND, env=("GIVEN",), timeout_s=60)


@pytest.fixture(scope="module", autouse=True)
def variables() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIVEN", "a secret")
        patch.setenv("KEPT", "another")
        yield


@pytest.fixture(scope="module")
def words() -> Toolbox:
    return Toolbox(mcp_tools({"words": WORDS}))


def ask(toolbox: Toolbox, name: str, *args: Any, **kwargs: Any) -> HostReply:
    answer = toolbox.host_calls()
    assert answer is not None
    return asyncio.run(answer(HostCall(name, args, kwargs)))


def test_what_the_model_reads_of_them(words: Toolbox) -> None:
    tools = {tool.name: tool for tool in words.tools}
    assert tools["count"].signature == "count(text: str, letter: str = 'a')"
    assert tools["count"].description == "Count a letter in a text."
    assert "Upper and lower case differ." in tools["count"].doc
    kind = "kind: Optional[Literal['noun', 'verb']] = None"
    assert tools["look_up"].signature == f"look_up(word: str, {kind}, most: list[int] | None = None)"
    parameters = tools["look_up"].schema["function"]["parameters"]
    assert (list(parameters["properties"]), parameters["required"]) == (["word", "kind", "most"], ["word"])
    assert tools["fail"].signature == "fail()"


def test_values_come_back_as_python_has_them(words: Toolbox) -> None:
    assert ask(words, "count", "banana") == HostReply(3)
    assert ask(words, "count", "banana", letter="n") == HostReply(2)
    looked_up = ask(words, "look_up", "go", kind="verb", most=[1, 2])
    assert looked_up == HostReply({"word": "go", "kind": "verb", "most": [1, 2]})
    assert ask(words, "look_up", "go").value["kind"] is None


def test_wrong_arguments_failures_and_floods_are_told(words: Toolbox) -> None:
    reply = ask(words, "count", 7)
    assert (reply.error_name, reply.error_message) == (
        "TypeError",
        "count() argument 'text': input should be a valid string, got 7",
    )
    assert ask(words, "look_up", "go", kind="noon").error_name == "TypeError"
    reply = ask(words, "fail")
    assert (reply.error_name, reply.error_message) == (
        "RuntimeError",
        "Error executing tool fail: there is no such word",
    )
    reply = ask(words, "flood", 2 << 20)
    assert (reply.error_name, "bytes of JSON" in str(reply.error_message)) == ("ValueError", True)


def test_a_server_gets_no_variables_but_those_that_are_named(words: Toolbox) -> None:
    assert ask(words, "variable", "GIVEN") == HostReply("a secret")
    assert ask(words, "variable", "KEPT") == HostReply("unset")
    assert "a secret" not in words.setup_source()


def test_a_session_calls_them_and_has_nothing_of_the_server(words: Toolbox) -> None:
    """As they arrive in the rollouts' process."""
    tools = pickle.loads(cloudpickle.dumps(words.tools))
    typed = (
        "n = count('banana')\nvariable('GIVEN')\nimport os; os.environ.get('GIVEN')\nfail()\nsubmit_final_answer(n)\n"
    )
    session = asyncio.run(type_session(Task("fruit", "How many a's has banana?", "3"), typed, tools=tools))
    assert "count(text: str, letter: str = 'a')" in session.prompt
    outputs = [line.output for line in session.lines]
    assert outputs[1].startswith("'a secret'\n")
    assert "secret" not in outputs[2]
    assert "RuntimeError: Error executing tool fail: there is no such word" in outputs[3]
    assert session.answer == ("3",)
    assert [call.name for line in session.lines for call in line.calls] == ["count", "variable", "fail"]


def test_a_config_names_servers() -> None:
    server = {"command": list(COMMAND), "only": ["count"], "at_once": 2}
    config = parse_config({"tools": {"mcp": {"words": server}}})
    [tool] = load_extensions(config).toolbox.tools
    assert (tool.name, tool.where, tool.at_once, tool.timeout_s) == ("count", "host", 2, 10.0)


def test_a_call_that_takes_too_long_ends_and_others_go_on() -> None:
    toolbox = Toolbox(mcp_tools({"slow": WORDS.model_copy(update={"timeout_s": 5.0})}))
    assert ask(toolbox, "sleep", 0.0) == HostReply("awake")
    reply = ask(toolbox, "sleep", 1000.0)
    assert (reply.error_name, reply.error_message) == ("TimeoutError", "sleep() took longer than 5 s")
    assert ask(toolbox, "count", "banana") == HostReply(3)


def test_a_server_that_ends_is_started_again_by_the_next_call() -> None:
    toolbox = Toolbox(mcp_tools({"mortal": WORDS}))
    reply = ask(toolbox, "leave")
    assert (reply.error_name, reply.error_message) == (
        "ConnectionError",
        "the connection to the MCP server 'mortal' broke",
    )
    assert ask(toolbox, "count", "banana") == HostReply(3)


def test_two_servers_one_prefix_and_a_choice(words: Toolbox) -> None:
    with pytest.raises(ToolError, match="two tools are called 'count'"):
        mcp_tools({"words": WORDS, "more": WORDS})
    chosen = WORDS.model_copy(update={"only": ("look-up", "count"), "prefix": "my_"})
    tools = mcp_tools({"words": WORDS, "more": chosen})
    assert [tool.name for tool in tools][-2:] == ["my_look_up", "my_count"]
    assert ask(Toolbox(tools), "my_count", "banana") == HostReply(3)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"command": ("no-such-program",)}, "MCP server 'it' can't be used: .*No such file"),
        ({"command": (sys.executable, "-c", "raise SystemExit('not today')")}, "can't be used: .*printed: not today"),
        ({"url": "http://127.0.0.1:9/mcp"}, "MCP server 'it' can't be used: "),
        ({"command": COMMAND, "env": ("NOT_SET",)}, "is to get the variable NOT_SET, which the environment does not"),
        ({"url": "http://127.0.0.1:9/mcp", "headers": {"A": "Bearer ${NOT_SET}"}}, "is to get the variable NOT_SET"),
        (
            {"command": COMMAND, "only": ("count", "spell")},
            "MCP server 'it' has no tool 'spell'; it has count, look-up",
        ),
        ({"command": COMMAND, "prefix": "1"}, "'1count' is not a name that Python code can call"),
    ],
)
def test_what_is_wrong_with_a_server_is_said_before_anything_starts(server: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        mcp_tools({"it": McpConfig(**server)})


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_over_http_with_a_header_from_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([*COMMAND, str(port)]) as process:
        try:
            until(lambda: is_open(port))
            server = McpConfig(url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer ${GIVEN}"})
            toolbox = Toolbox(mcp_tools({"far": server}))
            assert ask(toolbox, "count", "banana") == HostReply(3)
            assert "secret" not in server.model_dump_json()
        finally:
            process.kill()
    assert ask(toolbox, "count", "banana").error_name == "ConnectionError"
