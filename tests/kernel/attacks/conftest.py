"""Arenas for each kind of sandbox, shared by all attacks. They look at the host between tests, batch by batch."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from kernel.attacks.arena import BATCH, BOTH, BWRAP, BY_NAME, FROM_FORKS, LIMITS, SECRET, Arena, Attack

from repl_rl.kernel import Limits, landlock
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

Arenas = Callable[..., Arena]
TryOut = Callable[[SandboxKind, Attack], None]
Opened = dict[tuple[SandboxKind, Limits], Arena]


@pytest.fixture(scope="session")
def opened(loop: BackgroundLoop) -> Iterator[Opened]:
    """All at once: an arena counts the descriptors of this process, those of the other arenas among them."""
    kinds: tuple[SandboxKind, ...] = BWRAP if FROM_FORKS or landlock.problem() else BOTH
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET_TOKEN", SECRET)
        arenas = {(kind, limits): Arena(loop, kind, limits) for kind in kinds for limits in BY_NAME.values()}
        yield arenas
        for arena in arenas.values():
            arena.close()


@pytest.fixture(scope="module")
def whole_batches(opened: Opened) -> Iterator[None]:
    """The end of a file ends a batch, however small."""
    yield
    for arena in opened.values():
        arena.end(0)


@pytest.fixture
def arenas(opened: Opened, whole_batches: None) -> Iterator[Arenas]:
    """The arena of a kind of sandbox, and of limits; skips where this machine can't have it."""

    def arena(kind: SandboxKind, limits: Limits = LIMITS) -> Arena:
        if (kind, LIMITS) not in opened:
            pytest.skip(f"{landlock.problem() or 'sessions under sandlock can not be forked'}")
        return opened[kind, limits]

    for each in opened.values():
        each.begin()
    yield arena
    for each in opened.values():
        each.end(BATCH)


@pytest.fixture
def try_out(arenas: Arenas, caplog: pytest.LogCaptureFixture) -> TryOut:
    """Asserts that an attack from a YAML file does what it is expected to, and nothing to what belongs to all."""

    def run(kind: SandboxKind, attack: Attack) -> None:
        arena, before, began = arenas(kind, BY_NAME[attack.limits]), of_all(), (time.time(), time.monotonic())
        attack.check(arena.attack(*attack.cells, in_time=not attack.times_out))
        assert attack.log in caplog.text
        if attack.next_session:
            assert [result.output for result in arena.fresh(attack.next_session)] == ["(True, True)\n"]
        assert of_all() == before
        assert abs(time.time() - began[0] - (time.monotonic() - began[1])) < 60

    return run


def of_all() -> tuple[object, ...]:
    """What belongs to all processes of this machine, or to this one."""
    files = [os.stat(path) for path in (os.__file__, sys.executable)]
    return (
        [(file.st_mtime, file.st_mode, file.st_size) for file in files],
        socket.gethostname(),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getaffinity(0),
    )
