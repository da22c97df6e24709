"""One arena for each kind of sandbox, shared by all attacks on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kernel.attacks.arena import SECRET, Arena

from repl_rl.kernel import landlock
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.background import BackgroundLoop

Arenas = Callable[[SandboxKind], Arena]


@pytest.fixture(scope="session")
def arenas(loop: BackgroundLoop) -> Iterator[Arenas]:
    """The arena of a kind, opened when it is asked for; skips where this machine can't have it."""
    opened: dict[SandboxKind, Arena] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET_TOKEN", SECRET)

        def arena(kind: SandboxKind) -> Arena:
            if kind == "sandlock" and (problem := landlock.problem()):
                pytest.skip(problem)
            if kind not in opened:
                opened[kind] = Arena(loop, kind)
            return opened[kind]

        yield arena
        for each in opened.values():
            each.close()
