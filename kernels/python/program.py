"""The program in the sandbox: a fork server of many sessions, a Jupyter kernel of one, or what runs any other kernel.

It reads a boot record (JSON) from an inherited descriptor. One with a "control" is a fork server's (fork_server.py),
one with an "argv" is that of a kernel of any language (repl_guest.py). Otherwise it is that of our own Jupyter kernel:

    connection     the contents of the Jupyter connection file; its sockets are not bound here, but inherited as
    sockets        listening descriptors: {"shell": 7, "control": 8, "iopub": 9, "stdin": 10, "hb": 11}
    rlimits        {"RLIMIT_CPU": [soft, hard], ...}; RLIMIT_AS is held at its soft value while a cell runs
    uid            the ordinary user to become, or null to stay as started
    lifeline       a descriptor of a pipe that closes with the owner of the kernel. The sandbox ends the kernel too, but
                   may miss one that is being made while its owner dies: threads die first, descriptors last
    watches_parent true where no sandbox ends the kernel together with its parent
    site_packages  folders to import own modules and third-party packages from

A request of the host has the key "repl_rl" in its content, with "line" for a typed line and "setup" for set-up code.
What such a line prints goes to descriptors 1 and 2 as it happens, and once more to attached clients as messages when
it is done; printed text reaches neither the reply nor the answer. Its `execute_reply` carries the key "repl_rl" with
the status, error name, compiled flag and answer of the cell. All other requests are those of Jupyter's clients, whose
cells run as in a notebook (repl_client.py) and print to clients only; their replies carry such a report too.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import site
import sys

import slim_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_OWN_MODULES = (
    "program",
    "slim_imports",
    "huge_pages",
    "confinement",
    "fork_server",
    "seccomp_filter",
    *(
        f"repl_{name}"
        for name in (
            "answer",
            "cell",
            "channel",
            "client",
            "fingerprint",
            "fork",
            "host",
            "interpreter",
            "kernel",
            "lookup",
            "publisher",
            "screen",
            "session",
            "stack",
            "syntax",
            "tools",
        )
    ),
)


def main(boot_descriptor: int) -> NoReturn:
    """Read the record and be what it says. Never returns."""
    gc.disable()  # nothing that the imports make is garbage
    with open(boot_descriptor, encoding="utf-8") as file:
        boot = json.load(file)
    if "control" in boot:
        _fork_sessions(boot)
    elif "argv" in boot:
        from repl_guest import be_a_guest

        be_a_guest(boot)
    else:
        _be_a_kernel(boot)


def _fork_sessions(boot: dict[str, Any]) -> NoReturn:
    from fork_server import SessionServer

    server = SessionServer(boot)
    _look_like_a_terminal()
    server.serve()


def _be_a_kernel(boot: dict[str, Any]) -> NoReturn:
    if boot["watches_parent"]:
        from confinement import die_with_parent

        die_with_parent(os.getppid())
    _confine(boot["rlimits"], boot["uid"])
    sys.path.extend(boot["site_packages"])
    os.environ.pop("PYTHONHASHSEED", None)
    with slim_imports.stand_ins():
        from repl_kernel import make_kernel
    from repl_cell import Cells
    from repl_interpreter import PythonInterpreter
    from repl_screen import Screen

    cells = Cells(PythonInterpreter(Screen(descriptors=(1, 2))), boot["rlimits"].get("RLIMIT_AS"))
    kernel = make_kernel(boot["connection"], boot["sockets"], cells)
    between_cells = Screen(descriptors=(1, 2), limit_bytes=0)
    sys.stdout, sys.stderr = between_cells.stdout, between_cells.stderr
    _look_like_a_terminal()
    gc.freeze()
    gc.enable()
    kernel.serve(boot["lifeline"], os._exit, 1)


def _confine(rlimits: dict[str, list[int]], uid: int | None) -> None:
    for name, (soft, hard) in rlimits.items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _look_like_a_terminal() -> None:
    """Leave `sys` as `python -i` has it: this folder and its modules out of sight, the working directory importable."""
    site.setquit()
    site.setcopyright()
    site.sethelper()
    sys.argv = [""]
    sys.path[0] = ""
    for name in _OWN_MODULES:
        sys.modules.pop(name, None)
