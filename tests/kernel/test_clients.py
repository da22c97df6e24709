"""What Jupyter's clients are told: of cells of their own as in any notebook, of typed lines as of another client's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jupyter_client import BlockingKernelClient
from kernel.conftest import LIMITS
from kernel.kernelspecs import client_of

from repl_rl.kernel import KernelPool
from repl_rl.kernel.pool import PooledKernel
from repl_rl.utils.threads import BackgroundLoop

TABLE = yaml.safe_load(Path(__file__).with_name("clients.yaml").read_text())
TIMEOUT_S = 600


@pytest.fixture(scope="module", params=["fork", pytest.param("repl_rl", marks=pytest.mark.more)])
def kernel(
    request: pytest.FixtureRequest, kernel_pools: Callable[..., KernelPool], loop: BackgroundLoop
) -> Iterator[PooledKernel]:
    session = kernel_pools(LIMITS, backend=request.param).session()
    yield loop.run(session.__aenter__())
    loop.run(session.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def client(kernel: PooledKernel, loop: BackgroundLoop) -> Iterator[BlockingKernelClient]:
    with client_of(loop.run(kernel.open_jupyter())) as client:
        client.allow_stdin = False
        yield client


def heard(client: BlockingKernelClient, parent: str | None = None) -> list[Any]:
    """What is published up to the next idle state: of the request called `parent`, or of the one that comes next."""
    told: list[Any] = []
    while True:
        message = client.get_iopub_msg(timeout=TIMEOUT_S)
        if parent is not None and message["parent_header"].get("msg_id") != parent:
            continue
        content = message["content"]
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return _joined(told)
        told += [_short(message["msg_type"], content)] if message["msg_type"] != "status" else []


def _short(msg_type: str, content: dict[str, Any]) -> list[Any]:
    if msg_type == "stream":
        return [content["name"], content["text"]]
    if msg_type == "error":
        return ["error", content["ename"], content["evalue"], len(content["traceback"])]
    if msg_type == "clear_output":
        return [msg_type, content["wait"]]
    if msg_type == "execute_input":
        return [msg_type, content["code"]]
    return [msg_type, content["data"] if "metadata" in content else content]


def _joined(told: list[Any]) -> list[Any]:
    """With the texts of one stream in one piece: how many pieces there are depends on how long a cell takes."""
    whole: list[Any] = []
    for part in told:
        if whole and part[0] in ("stdout", "stderr") and part[0] == whole[-1][0]:
            whole[-1][1] += part[1]
        else:
            whole.append(part)
    return whole


def replied(client: BlockingKernelClient, request: str) -> dict[str, Any]:
    """The reply to a request. On a busy machine, replies to what a client asked as it came may still arrive."""
    while True:
        message = client.get_shell_msg(timeout=TIMEOUT_S)
        if message["parent_header"].get("msg_id") == request:
            content: dict[str, Any] = message["content"]
            return content


def ran(client: BlockingKernelClient, code: str, **options: Any) -> tuple[dict[str, Any], list[Any]]:
    """The reply to a cell, and what is told of it; of a text of more than 1,000 characters, its length."""
    request = client.execute(code, stop_on_error=False, **options)
    echo, *told = heard(client, request) if not options.get("silent") else [[], *heard(client, request)]
    assert echo in ([], ["execute_input", code])
    reply = replied(client, request)
    told = [[name, len(rest[0])] if rest and len(str(rest[0])) > 1000 else [name, *rest] for name, *rest in told]
    return reply, told


def test_cells_are_told_of_as_in_a_notebook(client: BlockingKernelClient) -> None:
    for code, told in TABLE["cells"]:
        reply, messages = ran(client, code)
        assert messages == told, code
        assert reply["status"] == ("error" if told and told[-1][0] == "error" else "ok")
        assert [reply.get("ename")] == [part[1] for part in told if part[0] == "error"] or reply["status"] == "ok"


@pytest.mark.more
def test_names_are_completed_as_ipython_does(client: BlockingKernelClient) -> None:
    ran(client, "x = 20\nkey = {'name': 1}\ndef twice(width): return 2 * width")
    for code, matches in TABLE["complete"]:
        assert client.complete(code, reply=True, timeout=TIMEOUT_S)["content"]["matches"] == matches, code


def test_what_is_typed_is_said_to_be_complete_or_not(client: BlockingKernelClient) -> None:
    for code, status, indent in TABLE["is complete"]:
        reply = replied(client, client.is_complete(code))
        assert (reply["status"], reply.get("indent")) == (status, indent), code


def test_a_silent_request_is_not_told_of_nor_remembered(client: BlockingKernelClient) -> None:
    before = ran(client, "1")[0]["execution_count"]
    assert ran(client, "print('a'); display(1); 1 / 0", silent=True)[1] == []
    reply, told = ran(client, "quiet = 2\nquiet", store_history=False, user_expressions={"n": "quiet", "no": "1 / 0"})
    assert told == [["execute_result", {"text/plain": "2"}]]
    assert reply["user_expressions"]["n"]["data"] == {"text/plain": "2"}
    assert reply["user_expressions"]["no"]["evalue"] == "division by zero"
    assert ran(client, "2")[0]["execution_count"] == before + 1
    history = client.history(hist_access_type="tail", n=2, output=True, reply=True, timeout=TIMEOUT_S)["content"]
    assert history["history"] == [[1, before, ["1", "1"]], [1, before + 1, ["2", "2"]]]


def test_history_is_found_by_range_and_by_pattern(client: BlockingKernelClient) -> None:
    first = ran(client, "spam = 1")[0]["execution_count"]
    for code in ("spam = 2", "spam = 1"):
        ran(client, code)

    def found(**request: Any) -> list[Any]:
        reply = client.history(reply=True, timeout=TIMEOUT_S, **request)["content"]["history"]
        return [[number, source] for _, number, source in reply]

    both = [[first, "spam = 1"], [first + 1, "spam = 2"]]
    assert found(hist_access_type="range", session=0, start=first, stop=first + 2) == both
    assert found(hist_access_type="range", session=7, start=first, stop=first + 2) == []
    assert found(hist_access_type="search", pattern="spam*", unique=True, n=9) == [both[1], [first + 2, "spam = 1"]]
    assert found(hist_access_type="search", pattern="spam = ?", n=1) == [[first + 2, "spam = 1"]]


def test_input_is_asked_for_where_the_client_allows_it(client: BlockingKernelClient) -> None:
    request = client.execute("print('before')\ninput('name? ') + '!'", allow_stdin=True)
    question = client.get_stdin_msg(timeout=TIMEOUT_S)["content"]
    client.input("Ada")
    assert question == {"prompt": "name? ", "password": False}
    assert heard(client, request)[1:] == [["stdout", "before\n"], ["execute_result", {"text/plain": "'Ada!'"}]]
    replied(client, request)


def test_a_cell_is_interrupted_by_a_message_and_shows_meanwhile_what_it_has_printed(
    client: BlockingKernelClient,
) -> None:
    request = client.execute("print('under way')\nwhile True: pass")
    while client.get_iopub_msg(timeout=TIMEOUT_S)["content"].get("text") != "under way\n":
        pass
    client.control_channel.send(client.session.msg("interrupt_request", {}))
    assert client.get_control_msg(timeout=TIMEOUT_S)["content"] == {"status": "ok"}
    assert heard(client, request) == [["error", "KeyboardInterrupt", "", 3]]
    replied(client, request)
    assert ran(client, "1")[1] == [["execute_result", {"text/plain": "1"}]]


def test_comms_are_closed_and_harm_nothing(client: BlockingKernelClient) -> None:
    for msg_type in ("comm_open", "comm_msg", "comm_close", "of_nobody"):
        message = client.session.msg(msg_type, {"comm_id": "a", "target_name": "t", "data": {}})
        client.shell_channel.send(message)
        told = heard(client, message["header"]["msg_id"])
        assert told == ([["comm_close", {"comm_id": "a", "data": {}}]] if msg_type == "comm_open" else [])
    assert ran(client, "1")[0]["status"] == "ok"


@pytest.mark.parametrize("kernel", ["fork"], indirect=True)
def test_typed_lines_are_told_of_as_requests_of_their_own_and_look_the_same_to_the_policy(
    kernel: PooledKernel, client: BlockingKernelClient, loop: BackgroundLoop
) -> None:
    ran(client, "print('a look')\n'a look'")
    ran(client, "class Loud:\n    def __repr__(self): return 'loud'\n    def _repr_html_(self): print('asked')")
    for line, output, told in TABLE["lines"]:
        assert loop.run(kernel.execute(line)).output == output
        assert heard(client) == [["execute_input", line], *told]


@pytest.mark.parametrize("kernel", ["fork"], indirect=True)
def test_a_client_that_leaves_does_not_end_the_session(
    kernel: PooledKernel, client: BlockingKernelClient, loop: BackgroundLoop
) -> None:
    for code in ("exit()", "quit(1)", "raise SystemExit"):
        assert ran(client, code)[0]["payload"] == [{"source": "ask_exit", "keepkernel": True}]
    assert loop.run(kernel.execute("1 + 1")).output == "2\n"
    assert loop.run(kernel.execute("input()")).error_name == "EOFError"
    for line in ("1 + 1", "input()"):
        assert heard(client)[0] == ["execute_input", line]
