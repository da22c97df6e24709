"""Jupyter's own clients at a live session: the console, and what Shift-Tab and `?` ask for."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.conftest import LIMITS
from kernel.kernelspecs import client_of

from repl_rl.kernel import KernelPool
from repl_rl.kernel.pool import PooledKernel
from repl_rl.utils.machine import jupyter_console
from repl_rl.utils.threads import BackgroundLoop

INSPECTED = yaml.safe_load(Path(__file__).with_name("inspected.yaml").read_text())
TYPED = ("x = 20", "def area(width, height=2):\n    'Of a rectangle.'\n    return width * height\n")


@pytest.fixture(params=["fork", pytest.param("repl_rl", marks=pytest.mark.more)])
def kernel(
    request: pytest.FixtureRequest, kernel_pools: Callable[..., KernelPool], loop: BackgroundLoop
) -> Iterator[PooledKernel]:
    session = kernel_pools(LIMITS, backend=request.param).session()
    kernel = loop.run(session.__aenter__())
    for cell in TYPED:
        loop.run(kernel.execute(cell))
    yield kernel
    loop.run(session.__aexit__(None, None, None))


def test_jupyter_console_reads_and_changes_a_live_session(kernel: PooledKernel, loop: BackgroundLoop) -> None:
    command = jupyter_console()
    assert command is not None
    console = subprocess.run(
        [*command.split(), "--existing", str(loop.run(kernel.open_jupyter())), "--simple-prompt"],
        input="x + 1\ny = 7\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert re.search(r"Out\[\d\]: 21\n", console.stdout)
    assert "keeping kernel alive" in console.stdout
    assert loop.run(kernel.execute("submit_final_answer(x, y)")).answer == ("20", "7")


def test_inspect_finds_builtins_and_names_of_the_session(kernel: PooledKernel, loop: BackgroundLoop) -> None:
    with client_of(loop.run(kernel.open_jupyter())) as client:

        def inspected(code: str, cursor: int) -> dict[str, Any]:
            content: dict[str, Any] = client.inspect(code, cursor, reply=True, timeout=600)["content"]
            assert content["found"] == bool(content["data"])
            return content["data"]

        assert inspected("print", 5)["text/plain"].startswith("Signature: print(*args, sep=' ', end='\\n', ")
        for code, cursor, text in INSPECTED["found"]:
            assert inspected(code, cursor) == {"text/plain": text}
        assert client.complete("pri", reply=True, timeout=600)["content"]["matches"] == ["print"]
        assert client.execute("1 / 0", reply=True, timeout=600)["content"]["ename"] == "ZeroDivisionError"
        for code, cursor in INSPECTED["not found"]:
            assert inspected(code, cursor) == {}


def test_inspecting_what_fails_to_say_what_it_is_finds_nothing_and_harms_nothing(
    kernel: PooledKernel, loop: BackgroundLoop
) -> None:
    loop.run(kernel.execute("class Bad:\n    def __repr__(self): raise SystemExit\n"))
    loop.run(kernel.execute("bad = Bad()"))
    with client_of(loop.run(kernel.open_jupyter())) as client:
        assert client.inspect("bad", 3, reply=True, timeout=600)["content"]["found"] is False
    assert loop.run(kernel.execute("x")).output == "20\n"


def test_a_question_mark_asks_for_the_same_text(kernel: PooledKernel, loop: BackgroundLoop) -> None:
    with client_of(loop.run(kernel.open_jupyter())) as client:
        [page] = client.execute("x?", reply=True, timeout=600)["content"]["payload"]
        assert page["data"] == {"text/plain": "Value:     20\nType:      int"}
        [page] = client.execute("nothing?", reply=True, timeout=600)["content"]["payload"]
        assert page["data"] == {"text/plain": "Object `nothing` not found."}
        [page] = client.execute("area??", reply=True, timeout=600)["content"]["payload"]
        assert page["data"]["text/plain"].startswith("Signature: area(width, height=2)\n")
    assert loop.run(kernel.execute("x?")).compiled is False
