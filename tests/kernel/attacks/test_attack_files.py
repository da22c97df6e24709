"""Attacks on files: filling them, reading the host's, changing what is everybody's."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel.attacks.arena import (
    BOTH,
    BWRAP,
    CHECKOUT,
    ERROR,
    GONE,
    LIMITS,
    OK,
    SANDLOCK,
    SECRET,
    TIMEOUT,
    Attack,
    cases,
    number,
)
from kernel.attacks.conftest import Arenas

HERE = "os.getcwd()"
FILL = "n = 0\nwhile True:\n  n += 1\n  with open({} + '/%d' % n, 'wb') as f: _ = f.write({})\n"

FILLS = [
    *(
        Attack(f"{what}-{place.strip('/')}", (FILL.format(repr(place), content), f"n < {most}"), "True", kinds=BWRAP)
        for place in ("/tmp", "/dev/shm")
        for what, content, most in (
            ("bytes", "bytes(10 ** 6)", LIMITS.tmp_mb + 2),
            ("names", "b''", LIMITS.tmp_mb * 256 + 2),
        )
    ),
    Attack("folders", ("n = 0\nwhile True:\n  n += 1\n  os.mkdir('/tmp/%d' % n)\n", "n < 4000"), "True", kinds=BWRAP),
    Attack(
        "links",
        ("n = 0; open('/tmp/0', 'w').close()\nwhile True:\n  n += 1\n  os.link('/tmp/0', '/tmp/%d' % n)\n", "n < 4000"),
        "True",
        kinds=BWRAP,
    ),
    Attack("one-file", (f"f = open({HERE} + '/x', 'wb')\nwhile True: _ = f.write(bytes(10 ** 6))\n", "1"), "1"),
    Attack("a-hole", (f"f = open({HERE} + '/x', 'wb'); _ = f.truncate(10 ** 12)", "1"), "1"),
    Attack("reserved", (f"f = open({HERE} + '/x', 'wb'); os.posix_fallocate(f.fileno(), 0, 10 ** 9)", "1"), "1"),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*FILLS))
def test_a_fill_ends_at_its_limit(kind: str, attack: Attack, arenas: Arenas) -> None:
    filling, after = arenas(kind).attack(*attack.cells)
    assert (filling.status, filling.error_name, after.status) == (ERROR, "OSError", OK)
    assert after.output.strip() == attack.evidence


DEEP = "for _ in range({count}): os.mkdir({name}); os.chdir({name})\n"
NESTS = {
    "folders": (DEEP.format(count=1_500, name="'d'"),),
    "long-names": (DEEP.format(count=600, name="'d' * 255"),),
    "hidden": (DEEP.format(count=1_100, name="'.' + 'd' * 16"),),
    "closed": (
        DEEP.format(count=1_100, name="'d'"),
        "for _ in range(1_100): os.chmod('.', 0); tried(os.chdir, '..')\n",
    ),
    "read-only": (DEEP.format(count=1_100, name="'d'"), "os.chmod('.', 0o500); tried(os.chdir, '/')"),
    "no-utf-8": (DEEP.format(count=1_100, name=r"b'\xff\n'"),),
    "with-files": (f"{DEEP.format(count=1_100, name=repr('d'))[:-1]}; open('f', 'w').close()\n",),
    "with-links": (f"{DEEP.format(count=1_100, name=repr('d'))[:-1]}; os.symlink('..', 'l'); os.symlink('l', 'm')\n",),
    "many-branches": (
        "for n in range(40):\n  at = os.getcwd()\n  "
        + DEEP.format(count=40, name="str(n)")[:-1]
        + "\n  os.chdir(at)\n",
    ),
    "in-the-way": (DEEP.format(count=30, name="'d'"), "for n in range(99): tried(os.mkdir, '/tmp/.%016x' % n)\n"),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", NESTS)
def test_what_is_nested_is_gone_with_the_session(kind: str, name: str, arenas: Arenas) -> None:
    results = arenas(kind).attack(*NESTS[name])
    assert {result.status for result in results} <= {OK, ERROR, TIMEOUT}


STDLIB, PACKAGES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
WRITE = "tried(open, {}, 'w')"


def written(*places: str) -> Iterator[Attack]:
    for place in places:
        name = re.sub(r"\W+", "-", place).strip("-") or "root"
        yield Attack(f"write-{name}", (f"import numpy, sympy; {WRITE.format(place)}",), GONE)


READ_ONLY = [
    *written(
        "'/' + mark", "'/usr/' + mark", "'/etc/' + mark", "'/dev/' + mark", "'/kernel/' + mark", "'/venv/' + mark",
        "'/kernel/repl_session.py'", "os.__file__", "numpy.__file__", "sympy.__file__", "json.__file__",
        "json.__cached__", "numpy.__cached__", "sys.executable", "sys.prefix + '/' + mark", "sys.path[-1] + '/' + mark",
        "os.path.dirname(json.__cached__) + '/' + mark", "sys.path[-1] + '/attack.pth'", "'/bin/sh'",
        "'/proc/sys/kernel/core_pattern'", "'/proc/sysrq-trigger'", "'/proc/sys/kernel/hostname'",
        "'/proc/sys/vm/drop_caches'", "'/proc/1/root/usr/' + mark", "'/proc/self/cwd/../usr/' + mark",
        "'/proc/self/uid_map'", "'/proc/self/setgroups'", "'/proc/self/loginuid'", "'/proc/self/mem'", "'/sys/' + mark",
        "'/python/' + mark", "'/dev/mem'", "'/dev/kmsg'", "'/dev/sda'", "'/dev/vda'", "'/dev/core'",
    ),
    Attack("remove", ("tried(os.remove, os.__file__)",), GONE),
    Attack("rename", (f"tried(os.rename, os.__file__, {HERE} + '/os.py')",), GONE),
    Attack("link-out", (f"tried(os.link, os.__file__, {HERE} + '/os.py')",), GONE),
    Attack("mode", ("tried(os.chmod, os.__file__, 0o777)",), GONE),
    Attack("owner", ("tried(os.chown, os.__file__, os.getuid(), -1)",), GONE),
    Attack("time", ("tried(os.utime, os.__file__, (1, 1))",), GONE),
    Attack("attribute", ("tried(os.setxattr, os.__file__, 'user.x', b'1')",), GONE),
    Attack("flags", ("tried(fcntl.ioctl, os.open(os.__file__, 0), 0x40086602, struct.pack('i', 0x80))",), GONE),
    Attack("truncate", ("tried(os.truncate, os.__file__, 0)",), GONE),
    Attack("shared-mapping", ("tried(mmap.mmap, os.open(os.__file__, 0), 0)",), "'EACCES'"),
    Attack("device", (f"tried(os.mknod, {HERE} + '/disk', 0o60666, os.makedev(8, 0))",), GONE),
    Attack("memory-device", (f"tried(os.mknod, {HERE} + '/mem', 0o20666, os.makedev(1, 1))",), GONE),
    Attack("by-handle", (f"call({number('open_by_handle_at')}, 3, id(mark), 0)",), "'EPERM'"),
    Attack("core", ("tried(open, '/proc/kcore', 'rb')",), GONE),
    Attack("shadow", ("tried(open, '/etc/shadow')",), GONE),
    Attack("passwd", ("tried(open, '/etc/passwd')",), GONE, kinds=SANDLOCK),
    Attack("users", ("len(open('/etc/passwd').readlines() + open('/etc/group').readlines())",), "4", kinds=BWRAP),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attack"), cases(*READ_ONLY))
def test_what_belongs_to_all_can_not_be_changed(kind: str, attack: Attack, arenas: Arenas) -> None:
    before = [os.stat(path) for path in (os.__file__, sys.executable)]
    [result] = arenas(kind).attack(*attack.cells)
    assert re.fullmatch(attack.evidence, result.output.strip()), result.output
    after = [os.stat(path) for path in (os.__file__, sys.executable)]
    assert [(one.st_mtime, one.st_mode, one.st_size) for one in before] == [
        (one.st_mtime, one.st_mode, one.st_size) for one in after
    ]


SEARCH = """
def holds(disguised):
    for line in open('/proc/self/maps'):
        first, last = (int(word, 16) for word in line.split()[0].split('-'))
        if line.split()[1][:2] == 'rw' and last - first < 1 << 25:
            memory = open('/proc/self/mem', 'rb', 0)
            _ = memory.seek(first)
            found = tried(memory.read, last - first)
            if isinstance(found, bytes) and disguised in found.translate(disguise): return True
    return False

"""
DISGUISE = "disguise = bytes(n ^ 0x55 for n in range(256)); known = bytes(b ^ 0x55 for b in mark.encode())"
"""What is searched for must not be in memory because it is searched for."""
DISGUISED = bytes(byte ^ 0x55 for byte in SECRET.encode())
SECRETS = [
    Attack("environment", (f"{SECRET!r} in str(os.environ) or 'A_SECRET_TOKEN' in os.environ",), "False"),
    Attack("c-environment", ("ctypes.c_char_p(libc.getenv(b'A_SECRET_TOKEN')).value",), ""),
    Attack("own-environ", (f"{SECRET!r} in str(tried(open, '/proc/self/environ'))",), "False"),
    Attack(
        "all-environs",
        (f"any({SECRET.encode()!r} in open(f, 'rb').read() for f in __import__('glob').glob('/proc/[0-9]*/environ'))",),
        "False",
        kinds=BWRAP,
    ),
    Attack("memory", (SEARCH, DISGUISE, f"holds({DISGUISED!r}), holds(known)"), r"\(False, True\)", kinds=BWRAP),
    Attack("host-memory", (f"tried(open, '/proc/{os.getpid()}/mem', 'rb')",), GONE),
    Attack("host-environ", (f"tried(open, '/proc/{os.getpid()}/environ')",), GONE),
    Attack("host-descriptors", (f"tried(os.listdir, '/proc/{os.getpid()}/fd')",), GONE),
    Attack("host-root", (f"tried(os.listdir, '/proc/{os.getpid()}/root')",), GONE),
    Attack("parents-memory", ("tried(open, f'/proc/{os.getppid()}/mem', 'rb')",), GONE),
    Attack("checkout", (f"tried(os.listdir, {str(CHECKOUT)!r})",), GONE),
    Attack("graders", (f"tried(open, {str(CHECKOUT / 'repl_rl/rewards/table.py')!r})",), GONE),
    Attack("import", ("getattr(tried(__import__, 'repl_rl'), '__file__', None)",), ""),
    Attack("import-tasks", ("tried(__import__, 'repl_rl.tasks')",), "'(ModuleNotFoundError|ImportError)'"),
    Attack("loaded", ("any('repl_rl' in name for name in sys.modules)",), "False"),
    Attack("this-test", (f"tried(open, {__file__!r})",), GONE),
    Attack("home", (f"tried(os.listdir, {str(Path.home() / '.ssh')!r})",), GONE),
    Attack("upwards", ("tried(os.listdir, '../' * 20 + 'boot'), tried(os.listdir, '/var')",), rf"\({GONE}, {GONE}\)"),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*SECRETS))
def test_secrets_of_the_host_are_not_there(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, result = arenas(kind).attack(*attack.cells)
    assert result.status is OK
    assert re.fullmatch(attack.evidence, result.output.strip()), result.output


@pytest.mark.parametrize("kind", BOTH)
def test_a_file_of_the_host_can_be_neither_read_nor_changed(kind: str, arenas: Arenas, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    [told] = arenas(kind).attack(
        f"p = {str(victim)!r}; [tried(f, p, *a) for f, *a in ((open,), (open, 'a'), (os.remove,), (os.chmod, 0o777),"
        " (os.chown, 1, 1), (os.utime, (1, 1)), (os.setxattr, 'user.x', b''), (os.truncate, 0), (os.rename, p + 'x'))]"
    )
    assert re.fullmatch(rf"\[({GONE}(, )?){{9}}\]", told.output.strip()), told.output
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == (SECRET, 0o644)
    assert victim.stat().st_mtime > 1
