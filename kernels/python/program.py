"""The kernel program: one Jupyter kernel, one interactive session, started inside the sandbox.

It reads a boot record (JSON) from an inherited descriptor:

    connection     the contents of the Jupyter connection file; its sockets are not bound here, but inherited as
    sockets        listening descriptors: {"shell": 7, "control": 8, "iopub": 9, "stdin": 10, "hb": 11}
    rlimits        {"RLIMIT_CPU": [soft, hard], ...}; RLIMIT_AS is held at its soft value while a cell runs
    uid            the ordinary user to become, or null to stay as started
    lifeline       a descriptor of a pipe that closes with the owner of the kernel. The sandbox ends the kernel too, but
                   one that is being made while its owner dies may be missed: threads die first, descriptors last
    watches_parent true where no sandbox ends the kernel together with its parent
    site_packages  folders to import third-party packages from

An `execute_reply` carries, next to what the Jupyter protocol asks for, the key "repl_rl" with the status, error name,
compiled flag and answer of the cell. What a cell prints goes to descriptors 1 and 2 as it happens, and once more as a
`stream` message when the cell is done; printed text reaches neither the reply nor the answer.
"""

import gc
import json
import os
import resource
import signal
import site
import sys

import slim_imports

_PR_SET_PDEATHSIG = 1
_OWN_MODULES = (
    "program",
    "slim_imports",
    *(f"repl_{name}" for name in ["interpreter", "kernel", "screen", "stack", "syntax"]),
)


def main(boot_descriptor):
    """Confine the process, build the kernel, and serve until a session ends."""
    gc.disable()  # nothing that the imports make is garbage
    with open(boot_descriptor, encoding="utf-8") as file:
        boot = json.load(file)
    if boot["watches_parent"]:
        _die_with_parent()
    _confine(boot["rlimits"], boot["uid"])
    sys.path.extend(boot["site_packages"])
    with slim_imports.stand_ins():
        from repl_kernel import make_kernel
    kernel = make_kernel(boot["connection"], boot["sockets"], boot["rlimits"].get("RLIMIT_AS"))
    _look_like_a_terminal()
    gc.freeze()
    gc.enable()
    kernel.serve(boot["lifeline"])


def _die_with_parent():
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _confine(rlimits, uid):
    for name, (soft, hard) in rlimits.items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _look_like_a_terminal():
    """Leave `sys` as `python -i` has it: this folder and its modules out of sight, the working directory importable."""
    site.setquit()
    site.setcopyright()
    site.sethelper()
    sys.argv = [""]
    sys.path[0] = ""
    for name in _OWN_MODULES:
        sys.modules.pop(name, None)
