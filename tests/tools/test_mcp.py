"""Tools of real MCP servers, as programs and over HTTP: as the model sees them, as it calls them, and as they fail."""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from mcp import Client
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
ODD = McpConfig(command=(sys.executable, str(Path(__file__).with_name("mcp_odd_server.py"))), timeout_s=60)
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


def test_what_a_server_prints_as_it_fails_is_for_the_host_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = tmp_path / "refusing"
    monkeypatch.setenv("REFUSING", str(refusing))
    toolbox = Toolbox(mcp_tools({"talkative": WORDS.model_copy(update={"env": ("GIVEN", "REFUSING")})}))
    refusing.touch()
    reply = ask(toolbox, "count", "banana")
    assert (reply.error_name, reply.error_message) == (
        "ConnectionError",
        "the MCP server 'talkative' can't be reached",
    )
    assert "it printed: words are served with a secret" in caplog.text
    refusing.unlink()
    assert ask(toolbox, "count", "banana") == HostReply(3)


def test_what_a_server_prints_that_is_no_message_ends_nothing() -> None:
    toolbox = Toolbox(mcp_tools({"scribbling": WORDS}))
    assert ask(toolbox, "scribble") == HostReply("scribbled")
    assert ask(toolbox, "count", "banana") == HostReply(3)


def test_names_schemas_and_results_that_python_does_not_expect() -> None:
    tools = mcp_tools({"odd": ODD.model_copy(update={"only": ("2d-plot", "list", "five", "result", "nothing")})})
    toolbox = Toolbox(tools)
    assert tools[0].signature == "_2d_plot(_2d: Any, from_: str | None = None)"
    assert ask(toolbox, "_2d_plot", 7) == HostReply("{'2d': 7}")
    assert ask(toolbox, "_2d_plot", 7, from_="here") == HostReply("{'2d': 7, 'from': 'here'}")
    assert ask(toolbox, "list") == HostReply([1, 2])
    assert ask(toolbox, "five") == HostReply(5)
    assert ask(toolbox, "result") == HostReply({"result": 5})
    assert ask(toolbox, "nothing") == HostReply("{}")


def test_two_servers_one_prefix_and_a_choice(words: Toolbox) -> None:
    with pytest.raises(ToolError, match=r"MCP servers words, more: two tools are called .count.*put a `prefix`"):
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
        (
            {"command": ODD.command, "only": ("submit-final-answer",)},
            "MCP server 'it', tool 'submit-final-answer': .* would hide the function .*with `only`, or put a `prefix`",
        ),
        ({"command": ODD.command, "only": ("twice",)}, "'it', tool 'twice': two of its parameters have one name"),
    ],
)
def test_what_is_wrong_with_a_server_is_said_before_anything_starts(server: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        mcp_tools({"it": McpConfig(**server)})


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def served(port: int) -> Iterator[None]:
    with subprocess.Popen([*COMMAND, str(port)]) as process:
        try:
            until(lambda: is_open(port))
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_http_with_a_header_from_the_environment(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both protocols: without sessions of the server, and with them, which end with it."""
    monkeypatch.setattr("repl_rl.tools.mcp.Client", partial(Client, mode=mode))
    port = free_port()
    server = McpConfig(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Key": "Bearer ${GIVEN}"}, timeout_s=60)
    with served(port):
        toolbox = Toolbox(mcp_tools({mode: server}))
        assert ask(toolbox, "count", "banana") == HostReply(3)
        assert ask(toolbox, "header", "x-key") == HostReply("Bearer a secret")
        assert ask(toolbox, "header", "X-Other") == HostReply("unset")
    with served(port):
        replies = [ask(toolbox, "count", "banana") for _ in range(2)]
        # A server that keeps no sessions may not even be missed.
        assert replies[0] == HostReply(3) or replies[0].error_name == "ConnectionError"
        assert replies[1] == HostReply(3)
    assert ask(toolbox, "count", "banana").error_name == "ConnectionError"
