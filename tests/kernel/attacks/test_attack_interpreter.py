"""Attacks inside the interpreter: names rebound, modules changed, frames walked; no other session is to notice."""

import pytest
from kernel.attacks.arena import BOTH, SOON_S, Attack, cases
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("interpreter"))
def test_what_is_changed_is_the_sessions_own(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


@pytest.mark.more
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "cell",
    [
        "import random; random.random()",
        "import numpy; numpy.random.rand()",
        "import numpy; numpy.random.default_rng().random()",
        "import sympy.core.random as r; r.rng.random()",
        "os.urandom(8)",
        "__import__('uuid').uuid4()",
        "__import__('tempfile').mktemp()",
    ],
    ids=["random", "numpy", "generator", "sympy", "system", "uuid", "tempfile"],
)
def test_sessions_draw_different_numbers(kind: str, cell: str, arenas: Arenas) -> None:
    drawn = [arenas(kind).fresh(cell)[0].output for _ in range(3)]
    assert len(set(drawn)) == 3
    assert all(drawn)


@pytest.mark.more
@pytest.mark.parametrize("kind", BOTH)
def test_hashes_are_equal_in_all_sessions_whatever_one_does(kind: str, arenas: Arenas) -> None:
    look = "hash('a'), list({'some', 'words', 'in', 'a', 'set'})"
    [before] = arenas(kind).fresh(look)
    arenas(kind).attack("os.environ['PYTHONHASHSEED'] = '7'; _ = hash('a')")
    [after] = arenas(kind).fresh(look)
    assert before.output == after.output
    assert before.output.startswith("(")


@pytest.mark.more
@pytest.mark.parametrize("kind", BOTH)
def test_a_rebound_clock_changes_no_duration(kind: str, arenas: Arenas) -> None:
    *_, timed = arenas(kind).attack("sleep = time.sleep; time.time = time.monotonic = lambda: 0.0", "sleep(0.2)")
    assert 0.2 <= timed.duration_s < SOON_S


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_of_other_sessions_is_in_reach_of_the_collector(kind: str, arenas: Arenas) -> None:
    words = "[o for o in gc.get_objects() if isinstance(o, dict) and 'held' in o and o is not globals()]"
    [found] = arenas(kind).attack(words)
    assert found.output == "[]\n"
