"""Attacks by what is printed, shown and handed in, and by the way in which a session ends."""

import pytest
from kernel.attacks.arena import BOTH, BY_NAME, Attack, cases
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("output", without="floods"))
def test_what_is_shown_costs_its_line_and_an_end_is_the_sessions_own(
    kind: SandboxKind, attack: Attack, try_out: TryOut
) -> None:
    try_out(kind, attack)


@pytest.mark.parametrize(("kind", "attack"), cases("output", only="floods"))
def test_floods_are_cut(kind: SandboxKind, attack: Attack, arenas: Arenas) -> None:
    results = arenas(kind, BY_NAME[attack.limits]).attack(*attack.cells)
    if not results[-1].omitted_bytes:  # a busy machine may not print enough in so short a time
        results = arenas(kind).attack(*attack.cells)
    attack.check(results)
    assert results[-1].omitted_bytes > 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_huge_answer_is_cut(kind: str, arenas: Arenas) -> None:
    [result] = arenas(kind).attack("submit_final_answer('x' * 10 ** 7)")
    assert result.answer is not None
    assert len(result.answer[0]) <= 10_000


@pytest.mark.parametrize("kind", BOTH)
def test_what_a_thread_prints_late_comes_with_a_later_line(kind: str, arenas: Arenas) -> None:
    start = "late = threading.Timer(0.05, print, ('late',)); late.start()"
    started, later = arenas(kind).attack(start, "late.join(); 'now'")
    assert (started.output, later.output) == ("", "late\n'now'\n")
