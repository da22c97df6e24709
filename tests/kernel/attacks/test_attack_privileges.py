"""Attacks on the walls themselves: mounts, namespaces, users, capabilities, and the parts of the kernel behind them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import stat
import time

import pytest
from kernel.attacks.arena import BOTH, BWRAP, GONE, OK, SANDLOCK, SECRET, Attack, cases, number
from kernel.attacks.conftest import Arenas

REFUSED = "'(EPERM|ENOSYS|EACCES)'"
NO_SUCH_USER = "'(EPERM|EINVAL)'"
CALLS = {
    # name in libc: arguments
    "mount-proc": "c('mount', b'proc', b'/proc', b'proc', 0, None)",
    "mount-tmpfs": "c('mount', b'x', b'/tmp', b'tmpfs', 0, None)",
    "bind": "c('mount', b'/', b'/tmp', None, 4096, None)",
    "remount-writable": "c('mount', None, b'/', None, 32 | 4096, None)",
    "make-shared": "c('mount', None, b'/', None, 1 << 20, None)",
    "umount-proc": "c('umount', b'/proc')",
    "umount-tmp": "c('umount2', b'/tmp', 2)",
    "umount-cover": "c('umount2', b'/kernel', 2)",
    "chroot": "tried(os.chroot, '/tmp')",
    "chroot-escape": "tried(lambda: (os.mkdir('x'), os.chroot('x'), [os.chdir('..') for _ in range(99)]))",
    "sethostname": "c('sethostname', b'owned', 5)",
    "setdomainname": "c('setdomainname', b'owned', 5)",
    "settimeofday": "c('settimeofday', struct.pack('ll', 0, 0), None)",
    "clock-settime": "tried(time.clock_settime, time.CLOCK_REALTIME, 0)",
    "adjtimex": "c('adjtimex', bytes(300))",
    # Root without capabilities is root already, and may not become anybody else.
    "setuid": "tried(os.setuid, 0 if os.getuid() else 1)",
    "seteuid": "tried(os.seteuid, 0 if os.getuid() else 1)",
    "setresgid": "tried(os.setresgid, *[0 if os.getgid() else 1] * 3)",
    "setgroups": "tried(os.setgroups, [0, 27])",
    "all-capabilities": "c('capset', struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6))",
    "ambient-capability": "c('prctl', 47, 2, 21, 0, 0)",
    "quotactl": "c('quotactl', 0, None, 0, None)",
    "acct": "c('acct', None)",
    "swapon": "c('swapon', b'/tmp/x', 0)",
    "syslog": "c('klogctl', 3, ctypes.create_string_buffer(9), 9)",
    "reboot-refused": f"call({number('reboot')}, 1, 2, 3)",
    "vhangup": "c('vhangup')",
    "personality": "c('personality', 0x40000)",
    "thread-in-new-namespaces": f"call({number('clone')}, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3": f"call({number('clone3')}, id(mark), 64)",
    "old-aio": f"(lambda word: call({number('io_setup')}, 1, ctypes.addressof(word)))(ctypes.c_ulong())",
    "not-to-be-looked-at": "c('prctl', 4, 0, 0, 0, 0)",
    "addresses": "tried(fcntl.ioctl, socket.socketpair()[0], 0x8912, bytes(16))",
    "namespaces-of-a-process": "tried(fcntl.ioctl, os.pidfd_open(os.getpid()), 0xff01)",
    "own-terminal-types": "tried(fcntl.ioctl, 0, 0x5412, b'x')",
    **{
        name: f"call({number(name)}, 0, 0, 0, 0, 0)"
        for name in (
            "pivot_root", "open_tree", "move_mount", "fsopen", "fsmount", "mount_setattr", "bpf", "perf_event_open",
            "userfaultfd", "io_uring_setup", "add_key", "request_key", "keyctl", "open_by_handle_at",
            "fanotify_init", "kexec_load", "init_module", "finit_module", "delete_module", "memfd_secret", "mbind",
            "mincore",
        )
    },
    **{f"unshare-{flag:#x}": f"c('unshare', {flag})" for flag in
       (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80)},
}  # fmt: skip


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", CALLS)
def test_the_walls_can_not_be_moved(kind: str, name: str, arenas: Arenas) -> None:
    before = socket.gethostname(), time.time()
    [result] = arenas(kind).attack(CALLS[name])
    assert result.status is OK
    evidence = NO_SUCH_USER if name.startswith("set") else REFUSED
    assert re.fullmatch(evidence, result.output.strip()), result.output
    assert socket.gethostname() == before[0]
    assert abs(time.time() - before[1]) < 60


PROGRAMS = {
    "su": "su root -c id",
    "sudo": "sudo -n id",
    "mount": "mount -t tmpfs x /tmp",
    "umount": "umount /proc",
    "passwd": "passwd -d root",
    "newgrp": "newgrp root",
    "chsh": "chsh -s /bin/false root",
    "pkexec": "pkexec id",
    "newuidmap": "newuidmap 1 0 0 1",
    "unshare": "unshare -Urm id",
    "nsenter": "nsenter -t 1 -a id",
    "ping": "ping -c 1 -W 1 127.0.0.1",
    "bwrap": "bwrap --ro-bind / / id",
    "setpriv": "setpriv --reuid 0 id",
}

SERVERS_GROUPS: set[int] = set() if os.geteuid() == 0 else {*os.getgroups(), 1000, 65534}
"""Root gives them up. An ordinary user can't; in a namespace they show as the session's own, or as nobody's."""

AUXILIARY = """def ids(program):
    asked = dict(env={'LD_SHOW_AUXV': '1', 'PATH': os.environ['PATH']}, capture_output=True, text=True)
    return re.findall('AT_(?:E?[UG]ID|SECURE): +[0-9]+', subprocess.run([program, '--version'], **asked).stdout)
"""
"""What the kernel tells a program about itself as it starts; one that was given privileges does not show it."""
SETUID_PROGRAMS = [path for path in map(shutil.which, PROGRAMS) if path and os.stat(path).st_mode & stat.S_ISUID]
SETUID_COPY = """import shutil
_ = shutil.copy(shutil.which('true'), 'x'), tried(os.chown, 'x', 0, 0), os.chmod('x', 0o6755)
"""
UNCHANGED = r"\(True, \['AT_UID: +1000', 'AT_EUID: +1000', 'AT_GID: +1000', 'AT_EGID: +1000', 'AT_SECURE: +0'\]\)"

STATES = [
    Attack("no-capability", ("[l for l in open('/proc/self/status') if re.match('Cap(Inh|Prm|Eff|Bnd|Amb)', l)]",),
           r"(.*0{16}.*){5}", kinds=BWRAP),
    Attack("no-new-privileges", ("c('prctl', 39, 0, 0, 0, 0)",), "1"),
    Attack("filtered", ("c('prctl', 21, 0, 0, 0, 0)",), "2|'EPERM'"),
    Attack("filter-can-not-be-left", ("c('prctl', 22, 0, 0, 0, 0)",), "'(EINVAL|EPERM|EFAULT)'"),
    Attack("no-group", (f"set(os.getgroups()) - {SERVERS_GROUPS}",), r"set\(\)"),
    Attack("first-namespaces", ("[c('setns', os.open('/proc/1/ns/' + n, 0), 0) for n in ('pid', 'mnt', 'user')]",),
           r"\[('EPERM'(, )?){3}\]", kinds=BWRAP),
    Attack("owner-of-the-root", ("tried(os.chown, '/tmp', 0, 0)",), GONE),
    *(Attack("setuid-program", (AUXILIARY, f"os.access({path!r}, os.X_OK), ids({path!r})"), UNCHANGED, kinds=BWRAP)
      for path in SETUID_PROGRAMS[:1]),
    Attack("setuid-copy", (AUXILIARY, SETUID_COPY, "os.stat('x').st_mode & 0o6000 == 0o6000, ids('./x')"), UNCHANGED,
           kinds=BWRAP),
    Attack("setuid-bit", ("open('x', 'w').close(); tried(os.chmod, 'x', 0o6755)",), "'EPERM'", kinds=SANDLOCK),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attack"), cases(*STATES))
def test_no_privilege_is_there(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, result = arenas(kind).attack("import re", *attack.cells)
    assert re.fullmatch(attack.evidence, result.output.strip(), re.DOTALL), result.output


@pytest.mark.parametrize("program", [name for name in PROGRAMS if shutil.which(name)])
def test_programs_give_no_privilege(program: str, arenas: Arenas) -> None:
    asked = f"{PROGRAMS[program].split()!r}, stdin=subprocess.DEVNULL, capture_output=True, text=True"
    judged = "done.returncode != 0"
    if PROGRAMS[program].endswith(" id"):
        judged += " or 'uid=' in done.stdout and 'uid=0' not in done.stdout"
    ran, result = arenas("bwrap").attack(f"program = {program!r}; done = subprocess.run({asked})", judged)
    assert ran.status is OK, ran.output
    assert result.output == "True\n"
    assert SECRET not in ran.output


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 is x86")
@pytest.mark.parametrize("kind", BOTH)
def test_the_gate_of_another_architecture_leads_nowhere(kind: str, arenas: Arenas) -> None:
    gate = """page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, 7)
_ = page.write(bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid()"""
    [result] = arenas(kind).attack(gate)
    assert result.output in ("", "False\n") or "Error" in result.output
