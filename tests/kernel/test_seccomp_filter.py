"""The seccomp filter: its programs evaluated by hand for both architectures, and in force in real child processes."""

import errno
import itertools
import json
import platform
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.system_calls import FILTER, FOLDER, MACHINES, REFUSED, numbers

UNISTD = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
GENERIC_UNISTD = Path("/usr/include/asm-generic/unistd.h")
ARGUMENTS = yaml.safe_load(Path(__file__).with_name("seccomp_arguments.yaml").read_text())
APART = {name for group in FILTER.ALLOWED_APART.values() for name in group}
"""What only a session with namespaces of its own may call."""

here = pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")
each_machine = pytest.mark.parametrize("machine", MACHINES)


def evaluate(program: bytes, arch: int, number: int, *arguments: int) -> str:
    """Classic BPF as the kernel runs it, on one system call; checks that the program is well-formed on its way."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("<HBBI", program))
    index, accumulator = 0, 0
    while True:
        operation, if_true, if_false, operand = code[index]
        index += 1
        if operation == 0x20:
            assert operand % 4 == 0
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x05:
            index += operand
        elif operation == 0x06:
            return result_name(operand)
        else:
            taken = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[
                operation
            ]
            index += if_true if taken else if_false


def result_name(result: int) -> str:
    if result & 0xFFFF0000 == 0x00050000:
        return errno.errorcode[result & 0xFFFF]
    return {0x7FFF0000: "allow", 0x80000000: "kill", 0x7FC00000: "ask"}[result]


@each_machine
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


@each_machine
@pytest.mark.parametrize("number", [451, 467, 1000, 0x40000000, 0x40000000 + 165, 0x7FFFFFFF, 0x80000000, -1])
def test_newer_and_x32_calls_do_not_exist(machine: str, number: int) -> None:
    assert evaluate(FILTER.build(machine, True), MACHINES[machine], number) == "ENOSYS"


@each_machine
@pytest.mark.parametrize("may_fork", [True, False])
@pytest.mark.parametrize("arch", [0x40000003, 0x40000028, 0, 0xC0000015])
def test_a_foreign_architecture_is_killed(machine: str, may_fork: bool, arch: int) -> None:
    program = FILTER.build(machine, may_fork)
    assert {evaluate(program, arch, number) for number in (0, 1, 20, 165, 451)} == {"kill"}
    other = next(value for name, value in MACHINES.items() if name != machine)
    assert evaluate(program, other, 0) == "kill"


@each_machine
@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda case: f"{case['call']}-{'-'.join(case['verdicts'])}")
def test_arguments_decide(machine: str, case: dict[str, Any]) -> None:
    for may_fork, verdict in zip((True, False), case["verdicts"], strict=True):
        program, number = FILTER.build(machine, may_fork), numbers(machine)[case["call"]]
        for x, given in itertools.product(case.get("x", [None]), case["arguments"]):
            arguments = [x if each == "x" else each for each in given]
            assert evaluate(program, MACHINES[machine], number, *arguments) == verdict, arguments


@each_machine
def test_memory_is_shared_without_a_file_only_where_it_is_charged(machine: str) -> None:
    flags = {0x21: False, 0x23: False, 0x8021: False, 0x100031: False}
    flags |= dict.fromkeys((0x01, 0x03, 0x02, 0x22, 0x20022), True)
    for may_fork, may_share in itertools.product((True, False), repeat=2):
        program, mmap = FILTER.build(machine, may_fork, may_share), numbers(machine)["mmap"]
        for each, lies_in_a_file in flags.items():
            verdict = evaluate(program, MACHINES[machine], mmap, 0, 4096, 3, each, 0, 0)
            assert verdict == ("allow" if lies_in_a_file or may_share else "EPERM"), each


@each_machine
def test_programs_are_well_formed(machine: str) -> None:
    for may_fork, may_share in itertools.product((True, False), repeat=2):
        code = list(struct.iter_unpack("<HBBI", FILTER.build(machine, may_fork, may_share)))
        for index, (operation, if_true, if_false, operand) in enumerate(code):
            assert operation in {0x20, 0x05, 0x06, 0x15, 0x35, 0x45}
            furthest = operand if operation == 0x05 else max(if_true, if_false)
            assert operation == 0x06 or index + 1 + furthest < len(code)
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


@pytest.mark.skipif(not GENERIC_UNISTD.exists(), reason="no kernel headers here")
def test_numbers_are_those_of_the_generic_headers() -> None:
    """aarch64 takes its numbers from there, all those that it has; some stand under a name for 32 and 64 bit."""
    text, ours = GENERIC_UNISTD.read_text(), numbers("aarch64")
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
