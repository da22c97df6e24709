"""How tools get into a session, out of a process that has the modules into one that hasn't."""

import functools
import subprocess
import sys
import threading
from typing import Any

import cloudpickle
import pytest
from scripted import locked
from user_tools import convert, fibonacci, multiply, next_fibonacci, search

from repl_rl.errors import ConfigError, ToolError
from repl_rl.tools import Toolbox, as_tools
from repl_rl.tools.toolbox import MOST_BYTES


def elsewhere(source: str, *, before: str = "") -> str:
    """What a program prints in a process that can import installed packages only."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{before}\n{source}"], capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_set_up_leaves_no_name_of_its_own() -> None:
    source = Toolbox(as_tools([multiply]), {"start": {"x": [1, 2]}}).setup_source()
    names: dict[str, Any] = {}
    exec(source, names)
    assert {name: value for name, value in names.items() if name not in ("__builtins__", "multiply")} == {
        "start": {"x": [1, 2]}
    }


RECORDING = """
import sys, types
made = types.ModuleType("repl_tools")
made.register = lambda function, name, **options: print("register", name, function(6, 7))
made.host_proxy = lambda name, signature, doc, **options: print("proxy", name, signature, repr(doc))
made.bind = lambda name, value: print("bind", name, value)
sys.modules["repl_tools"] = made
"""


def test_a_kernel_with_repl_tools_is_told_of_every_tool() -> None:
    source = Toolbox(as_tools([multiply, search]), {"start": 5}).setup_source()
    assert elsewhere(source, before=RECORDING) == (
        "bind start 5\nregister multiply 42\n"
        "proxy search search(query: str, most: int = 3) -> list[str] 'Search for something.\\n\\nSecond paragraph.'\n"
    )


def test_host_tools_alone_need_nothing_unpacked() -> None:
    source = Toolbox(as_tools([search])).setup_source()
    assert elsewhere(f"{source}\nprint('cloudpickle' in sys.modules)", before=RECORDING).endswith("\nFalse\n")


def test_a_kernel_without_repl_tools_has_no_host_tools() -> None:
    said = elsewhere(Toolbox(as_tools([search])).setup_source())
    assert said == "RuntimeError: this kernel has no repl_tools, which tools that run on the host need"


def test_an_empty_toolbox_is_nothing_to_set_up() -> None:
    assert not Toolbox()
    assert (Toolbox().setup_source(), Toolbox().host_calls()) == ("", None)
    assert Toolbox(as_tools([multiply])).host_calls() is None


def test_functions_with_a_cache_work_in_a_sandbox() -> None:
    source = Toolbox(as_tools([fibonacci, next_fibonacci])).setup_source()
    shown = "print(fibonacci(30), next_fibonacci(29), fibonacci.cache_info().currsize, fibonacci.__doc__)"
    assert elsewhere(f"{source}\n{shown}") == "832040 832040 31 The n-th Fibonacci number.\n"


def test_what_is_withheld_goes_into_no_sandbox() -> None:
    secret = Secret("7")
    for value in (secret, {"deep": [secret]}, functools.partial(secret.tell, 1), secret.tell):
        with pytest.raises(ConfigError, match=r"'value' holds, or refers to, .*Secret stays on the host"):
            Toolbox((), {"value": value}, withheld=[secret]).setup_source()
    assert Toolbox((), {"value": Secret("8")}, withheld=[secret]).setup_source()


class Secret:
    def __init__(self, answer: str) -> None:
        self.answer = answer

    def tell(self, times: int) -> str:
        return self.answer * times


def test_the_registry_of_cloudpickle_is_left_as_it_was() -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    Toolbox(as_tools([convert])).setup_source()
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_joined_boxes_have_all_and_no_name_twice() -> None:
    box = Toolbox(as_tools([multiply])).joined(Toolbox(as_tools([search]), {"start": 1}))
    assert repr(box) == "Toolbox(multiply, search, start)"
    with pytest.raises(ToolError, match="two tools are called 'multiply'"):
        box.joined(Toolbox([], {"multiply": 1}))
    with pytest.raises(ToolError, match="'submit_final_answer' would hide"):
        Toolbox([], {"submit_final_answer": 1})
    assert Toolbox().joined(box) is box is box.joined(Toolbox())


def test_what_can_not_be_packed_is_named() -> None:
    box = Toolbox(as_tools([multiply, locked()]))
    with pytest.raises(ConfigError, match="sandbox: 'guarded' holds, or refers to, something that can't be pickled"):
        box.setup_source()
    with pytest.raises(ConfigError, match="sandbox: 'gate' holds"):
        Toolbox([], {"ok": 1, "gate": threading.Lock()}).setup_source()


def test_what_is_too_large_for_every_sandbox_is_refused() -> None:
    box = Toolbox([], {"data": bytes(MOST_BYTES)})
    with pytest.raises(ConfigError, match=r"amount to 2,097,\d+ bytes .* 2,097,152 is the most"):
        box.setup_source()
