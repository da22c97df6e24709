"""The seccomp filter: its programs evaluated by hand for both architectures, and in force in real child processes."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import platform
import re
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernel.refused_calls import REFUSED

FOLDER = Path(__file__).parents[2] / "kernels" / "python"
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
UNISTD = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
NEW_NAMESPACES = [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]
THREAD_FLAGS = 0x3D0F00  # what pthread_create asks for
FORK_FLAGS = 0x1200011
NEW_NETWORK = 0x40000000
TWIN_FLAGS = 0x78020011  # what a session forks itself with: mounts, IPC, user, PIDs and network of its own

here = pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seccomp_filter_under_test", FOLDER / "seccomp_filter.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILTER = load()


def evaluate(program: bytes, arch: int, number: int, *arguments: int) -> str:
    """Classic BPF as the kernel runs it, on one system call; checks that the program is well-formed on its way."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("<HBBI", program))
    place, accumulator = 0, 0
    while True:
        operation, if_true, if_false, operand = code[place]
        place += 1
        if operation == 0x20:
            assert operand % 4 == 0
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x05:
            place += operand
        elif operation == 0x06:
            return result_name(operand)
        else:
            taken = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            place += if_true if taken else if_false


def result_name(result: int) -> str:
    if result & 0xFFFF0000 == 0x00050000:
        return errno.errorcode[result & 0xFFFF]
    return {0x7FFF0000: "allow", 0x80000000: "kill", 0x7FC00000: "ask"}[result]


APART = {name for group in FILTER.ALLOWED_APART.values() for name in group}
"""What only a session with namespaces of its own may call."""


def numbers(machine: str) -> dict[str, int]:
    """Name -> number of every call that is named, by the filter or among those that it refuses."""
    named = [*FILTER.ALLOWED.values(), *FILTER.ALLOWED_APART.values(), FILTER.EXAMINED, *REFUSED.values()]
    column = list(MACHINES).index(machine)
    return {name: row[column] for group in named for name, row in group.items() if row[column] is not None}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("may_fork", [True, False])
def test_every_number_gets_its_verdict(machine: str, may_fork: bool) -> None:
    program = FILTER.build(machine, may_fork)
    number_of = numbers(machine)
    allowed = {name for group in FILTER.ALLOWED.values() for name in group} | (APART if may_fork else set())
    expected = {number_of[name]: "allow" for name in allowed & number_of.keys()}
    # Those whose arguments decide, with arguments of zero.
    expected |= {number_of[name]: "allow" for name in ("fcntl", "madvise", "mmap", "prlimit64")}
    expected |= {number_of["clone"]: "allow" if may_fork else "EPERM", number_of["clone3"]: "ENOSYS"}
    expected |= {number_of[name]: "EAFNOSUPPORT" for name in ("socket", "socketpair")}
    for number in range(451):
        assert evaluate(program, MACHINES[machine], number) == expected.get(number, "EPERM"), number


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("number", [451, 467, 1000, 0x40000000, 0x40000000 + 165, 0x7FFFFFFF, 0x80000000, -1])
def test_newer_and_x32_calls_do_not_exist(machine: str, number: int) -> None:
    assert evaluate(FILTER.build(machine, True), MACHINES[machine], number) == "ENOSYS"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("may_fork", [True, False])
@pytest.mark.parametrize("arch", [0x40000003, 0x40000028, 0, 0xC0000015])
def test_a_foreign_architecture_is_killed(machine: str, may_fork: bool, arch: int) -> None:
    program = FILTER.build(machine, may_fork)
    assert {evaluate(program, arch, number) for number in (0, 1, 20, 165, 451)} == {"kill"}
    other = next(value for name, value in MACHINES.items() if name != machine)
    assert evaluate(program, other, 0) == "kill"


# fmt: off
ARGUMENTS = [
    # call, arguments, with forks, without
    ("clone", (FORK_FLAGS,), "allow", "EPERM"),
    ("clone", (THREAD_FLAGS,), "allow", "allow"),
    ("clone", (0,), "allow", "EPERM"),
    ("clone", (TWIN_FLAGS,), "ask", "EPERM"),
    ("clone", (TWIN_FLAGS & ~NEW_NETWORK,), "ask", "EPERM"),
    *(("clone", (TWIN_FLAGS & ~flag,), "EPERM", "EPERM") for flag in NEW_NAMESPACES
      if TWIN_FLAGS & flag and flag != NEW_NETWORK),
    *(("clone", (TWIN_FLAGS & ~NEW_NETWORK & ~flag,), "EPERM", "EPERM") for flag in NEW_NAMESPACES
      if TWIN_FLAGS & flag and flag != NEW_NETWORK),
    *(("clone", (TWIN_FLAGS | flag,), "EPERM", "EPERM") for flag in (0x100, 0x800, 0x2000000, 0x4000000)),
    *(("clone", (flag | 17,), "EPERM", "EPERM") for flag in NEW_NAMESPACES),
    *(("clone", (flag | THREAD_FLAGS,), "EPERM", "EPERM") for flag in NEW_NAMESPACES),
    ("clone", (1 << 63 | 0x10000000,), "EPERM", "EPERM"),
    *(("clone", (flag | 17,), "EPERM", "EPERM") for flag in (0x2000, 0x8000, 0x20000, 0x800000, 0x80000000)),
    *(("fcntl", (3, command), "allow", "allow") for command in (0, 1, 2, 3, 4, 6, 7, 8, 38, 1027, 1030, 1032)),
    *(("fcntl", (3, command), "EPERM", "EPERM") for command in (1024, 1025, 1026, 1031, 1033, 1036, 0xFFFFFFFF)),
    ("fcntl", (3, 1 << 32 | 1026, 0), "EPERM", "EPERM"),
    ("fcntl", (1026, 1, 1026), "allow", "allow"),
    *(("ioctl", (0, request), "allow", "allow") for request in (0x5401, 0x540E, 0x5413, 0x541B, 0x5421, 0x80045430)),
    *(("ioctl", (0, request), "EPERM", "EPERM") for request in (0, 0x5412, 0x541C, 0x40086602, 0x401C5820, 0x8912)),
    ("ioctl", (0, 1 << 32 | 0x5412), "EPERM", "EPERM"),
    ("ioctl", (0x5412, 0x5401, 0x5412), "allow", "allow"),
    *(("setsockopt", (3, 1, option), "allow", "allow") for option in (2, 7, 8, 16, 20, 67)),
    *(("setsockopt", (3, 1, option), "EPERM", "EPERM") for option in (0, 1, 26, 27, 36, 50, 51, 52, 1 << 32 | 26)),
    *(("prctl", (option, 9), "allow", "EPERM") for option in (1, 24)),
    *(("prctl", (option,), "allow", "allow") for option in (2, 3, 15, 16, 21, 38)),
    *(("prctl", (option,), "EPERM", "EPERM") for option in (0, 4, 22, 28, 31, 35, 47, 53, 0x59616D61)),
    ("mmap", (0, 4096, 3, 0x22, 1 << 32, 0), "allow", "allow"),
    ("mmap", (0x40000, 0x40000, 3, 0x01, 0x40000, 0), "allow", "allow"),
    ("mmap", (0, 1 << 21, 3, 0x40022, 1 << 32, 0), "EPERM", "EPERM"),
    *(("madvise", (0, 4096, advice), "allow", "allow") for advice in (0, 4, 8, 14, 102)),
    *(("madvise", (0, 4096, advice), "EPERM", "EPERM") for advice in (12, 13, 20, 21, 25, 100, 101)),
    ("prlimit64", (0, 7), "allow", "allow"),
    ("prlimit64", (4711, 7), "allow", "EPERM"),
    *((call, (1, 1, 0), "allow", "allow") for call in ("socket", "socketpair")),
    *((call, (family, 1, 0), "EAFNOSUPPORT", "EAFNOSUPPORT")
      for call in ("socket", "socketpair") for family in (0, 2, 10, 16, 17, 31, 38, 40, 0xFFFFFFFF)),
]
# fmt: on


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "arguments", "forking", "lone"), ARGUMENTS)
def test_arguments_decide(machine: str, call: str, arguments: tuple[int, ...], forking: str, lone: str) -> None:
    for may_fork, expected in ((True, forking), (False, lone)):
        program = FILTER.build(machine, may_fork)
        assert evaluate(program, MACHINES[machine], numbers(machine)[call], *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("may_fork", [True, False])
@pytest.mark.parametrize(
    ("flags", "lies_in_a_file"),
    [(0x21, False), (0x23, False), (0x8021, False), (0x100031, False), (0x01, True), (0x03, True), (0x02, True),
     (0x22, True), (0x20022, True)],
)  # fmt: skip
def test_memory_is_shared_without_a_file_only_where_it_is_charged(
    machine: str, may_fork: bool, flags: int, lies_in_a_file: bool
) -> None:
    for may_share in (True, False):
        program = FILTER.build(machine, may_fork, may_share)
        verdict = evaluate(program, MACHINES[machine], numbers(machine)["mmap"], 0, 4096, 3, flags, 0, 0)
        assert verdict == ("allow" if lies_in_a_file or may_share else "EPERM")


@pytest.mark.parametrize("machine", MACHINES)
def test_programs_are_well_formed(machine: str) -> None:
    for may_fork, may_share in itertools.product((True, False), repeat=2):
        program = FILTER.build(machine, may_fork, may_share)
        code = list(struct.iter_unpack("<HBBI", program))
        for place, (operation, if_true, if_false, operand) in enumerate(code):
            assert operation in {0x20, 0x05, 0x06, 0x15, 0x35, 0x45}
            furthest = operand if operation == 0x05 else max(if_true, if_false)
            assert operation == 0x06 or place + 1 + furthest < len(code)
        assert code[-1][0] == 0x06


def test_other_machines_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="'riscv64'"):
        FILTER.build("riscv64", True)


def test_no_number_stands_twice() -> None:
    for machine in MACHINES:
        values = list(numbers(machine).values())
        assert len(values) == len(set(values))


@pytest.mark.skipif(not UNISTD.exists(), reason="no kernel headers here")
def test_every_call_in_the_kernel_headers_has_been_looked_at() -> None:
    headers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", UNISTD.read_text())}
    retired = {"afs_syscall", "epoll_ctl_old", "epoll_wait_old", "get_kernel_syms", "getpmsg", "putpmsg", "security"}
    known = {name: number for name, number in headers.items() if number < 451}
    assert known.items() - numbers("x86_64").items() == {
        (name, headers[name]) for name in (*retired, "tuxcall", "vserver")
    }


@pytest.mark.skipif(not Path("/usr/include/asm-generic/unistd.h").exists(), reason="no kernel headers here")
def test_numbers_are_those_of_the_generic_headers() -> None:
    """aarch64 takes its numbers from there, all those that it has; some stand under a name for 32 and 64 bit."""
    text = Path("/usr/include/asm-generic/unistd.h").read_text()
    ours = numbers("aarch64")
    assert ours == {name: int(re.findall(rf"__NR(?:3264)?_{name}\s+(\d+)", text)[0]) for name in ours}


def child(source: str, may_fork: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `source` in a Python of its own, under the filter."""
    preamble = f"""
        import ctypes, errno, json, os, sys
        sys.path.insert(0, {str(FOLDER)!r})
        import seccomp_filter
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.argtypes = [ctypes.c_long] * 7
        libc.syscall.restype = ctypes.c_long
        def call(number, *arguments):
            ctypes.set_errno(0)
            failed = libc.syscall(number, *(*arguments, 0, 0, 0, 0, 0, 0)[:6]) < 0
            return errno.errorcode[ctypes.get_errno()] if failed else "done"
        seccomp_filter.Filter(may_fork={may_fork}).install()
    """
    code = textwrap.dedent(preamble) + textwrap.dedent(source)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


def printed(source: str, may_fork: bool = True) -> Any:
    """What `source` printed, as JSON."""
    finished = child(source, may_fork)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@here
@pytest.mark.parametrize("may_fork", [True, False])
def test_denied_calls_answer_eperm(may_fork: bool) -> None:
    """Arguments of -1 and a bad pointer: no call of these gets anywhere, and without the filter most say EFAULT."""
    ours = numbers(platform.machine())
    # These close, hang up or move something even with such arguments, were they let through by mistake.
    harmful = {"reboot", "vhangup", "acct", "swapoff"}
    refused = {name for group in REFUSED.values() for name in group} | (set() if may_fork else APART)
    asked = {name: ours[name] for name in sorted(refused & ours.keys() - harmful)}
    source = f"print(json.dumps({{name: call(number, -1, -1, -1, -1, -1) for name, number in {asked}.items()}}))"
    assert printed(source, may_fork) == dict.fromkeys(asked, "EPERM")


@here
def test_examined_calls_in_force() -> None:
    ours = numbers(platform.machine())
    source = f"""
        n = {ours}
        print(json.dumps([
            call(n["clone3"], 0, 0), call(451), call(n["clone"], 0x10000011), call(n["ioctl"], 0, 0x5412, 0),
            call(n["ioctl"], 0, (1 << 32) | 0x541C, 0), call(n["socket"], 2, 1, 0), call(n["socket"], 16, 3, 0),
            call(n["socketpair"], 2, 1, 0, 0), call(n["socket"], 1, 1, 0),
            call(n["fcntl"], os.open("/", os.O_RDONLY), 1026, 1), call(n["fcntl"], 0, 1),
        ]))
    """
    assert printed(source) == [*["ENOSYS"] * 2, *["EPERM"] * 3, *["EAFNOSUPPORT"] * 3, "done", "EPERM", "done"]


@here
def test_python_sees_exceptions() -> None:
    source = """
        import socket
        def raised(function, *arguments):
            try:
                function(*arguments)
            except OSError as error:
                return [type(error).__name__, errno.errorcode[error.errno]]
        print(json.dumps([raised(os.chroot, "/"), raised(socket.socket), raised(socket.sethostname, "x")]))
    """
    refused = ["PermissionError", "EPERM"]
    assert printed(source) == [refused, ["OSError", "EAFNOSUPPORT"], refused]


PROBE = "import os\ntry: os.chroot('/')\nexcept PermissionError: print('refused')"


@here
@pytest.mark.parametrize("may_fork", [True, False])
def test_threads_started_later_are_covered(may_fork: bool) -> None:
    source = f"""
        import io, threading
        sys.stdout = io.StringIO()
        threads = [threading.Thread(target=exec, args=({PROBE!r}, {{}})) for _ in range(4)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        print(json.dumps(sys.stdout.getvalue().split()), file=sys.__stdout__)
    """
    assert printed(source, may_fork) == ["refused"] * 4


@here
def test_child_processes_inherit_it() -> None:
    source = f"""
        import subprocess
        print(json.dumps(subprocess.check_output([sys.executable, "-c", {PROBE!r}], text=True)))
    """
    assert printed(source) == "refused\n"


@here
def test_what_sessions_use_goes_on_working() -> None:
    source = """
        import asyncio, multiprocessing, socket, subprocess, tempfile, threading
        from concurrent.futures import ProcessPoolExecutor
        found = {}
        found["subprocess"] = subprocess.check_output(["echo", "hi"], text=True)
        found["shell"] = os.popen("echo a | cat").read()
        found["fork"] = os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(7), 0)[1])
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found["pool"] = pool.map(abs, [-1, -2])
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            found["spawned"] = executor.submit(abs, -3).result()
        async def main():
            process = await asyncio.create_subprocess_exec("echo", "there", stdout=subprocess.PIPE)
            await asyncio.sleep(0.01)
            await asyncio.to_thread(lambda: None)
            return (await process.communicate())[0].decode()
        found["asyncio"] = asyncio.run(main())
        left, right = socket.socketpair()
        left.send(b"x")
        found["socketpair"] = right.recv(1).decode()
        callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)
        found["ctypes"] = callback(4)
        with tempfile.NamedTemporaryFile("w+") as file:
            found["file"] = file.write("abc")
        if __name__ == "__main__":
            print(json.dumps(found))
    """
    assert printed(source) == {
        "subprocess": "hi\n",
        "shell": "a\n",
        "fork": 7,
        "pool": [1, 2],
        "spawned": 3,
        "asyncio": "there\n",
        "socketpair": "x",
        "ctypes": 5,
        "file": 3,
    }


@here
@pytest.mark.parametrize("may_fork", [True, False])
def test_numpy_goes_on_working(may_fork: bool) -> None:
    pytest.importorskip("numpy")
    source = "import numpy as np\na = np.arange(250_000.0).reshape(500, 500)\nprint(float((a @ np.eye(500)).sum()))"
    assert printed(source, may_fork) == 31249875000.0


@here
def test_a_session_that_may_not_fork() -> None:
    source = """
        import subprocess, threading
        def raised(function, *arguments):
            try:
                function(*arguments)
            except OSError as error:
                return errno.errorcode[error.errno]
        found = [
            raised(os.fork), raised(subprocess.run, ["true"]), raised(os.execv, "/bin/true", ["true"]),
            raised(os.posix_spawn, "/bin/true", ["true"], {}), raised(os.execve, 1, ["true"], {}),
            os.waitstatus_to_exitcode(os.system("true")),
        ]
        thread = threading.Thread(target=found.append, args=("thread",))
        thread.start(), thread.join()
        print(json.dumps(found))
    """
    *refused, system, thread = printed(source, may_fork=False)
    assert refused == ["EPERM"] * 5
    assert system != 0
    assert thread == "thread"


@here
def test_no_filter_is_put_on_top() -> None:
    """Each would take some of what the machine has for compiled filters."""
    source = """
        try:
            seccomp_filter.Filter(may_fork=False).install()
        except PermissionError:
            print(1)
    """
    assert printed(source) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 is x86")
def test_the_32_bit_gate_ends_the_process() -> None:
    gate = """
        import mmap
        page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, 7)
        page.write(bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3"))  # getpid of i386
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        print(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid())
    """
    unfiltered = textwrap.dedent("import ctypes, os\n" + textwrap.dedent(gate))
    bare = subprocess.run([sys.executable, "-c", unfiltered], capture_output=True, text=True, timeout=600, check=False)
    if bare.stdout != "True\n":
        pytest.skip("this kernel has no 32-bit gate")
    assert child(gate).returncode == -signal.SIGSYS
