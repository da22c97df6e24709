"""Arenas for each kind of sandbox, shared by all attacks. They look at the host between tests, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kernel.attacks.arena import BATCH, BOTH, BWRAP, FROM_FORKS, GENTLE, LIMITS, SECRET, SHORT, Arena

from repl_rl.kernel import Limits, landlock
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

Arenas = Callable[..., Arena]
Opened = dict[tuple[SandboxKind, Limits], Arena]


@pytest.fixture(scope="session")
def opened(loop: BackgroundLoop) -> Iterator[Opened]:
    """All at once: an arena counts the descriptors of this process, those of the other arenas among them."""
    kinds: tuple[SandboxKind, ...] = BWRAP if FROM_FORKS or landlock.problem() else BOTH
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET_TOKEN", SECRET)
        arenas = {(kind, limits): Arena(loop, kind, limits) for kind in kinds for limits in (LIMITS, SHORT, GENTLE)}
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
