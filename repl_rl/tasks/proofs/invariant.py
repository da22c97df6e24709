"""`invariant-*`: problems about loops. The submission describes a set of states that the loop never leaves.

A polynomial p is accepted if it is not 0 itself, is 0 at the start, and becomes a multiple of p in a step, so that it
stays 0 however long the loop runs. This is checked by sympy's division, exactly. An invariant that holds only together
with another one is refused. A set of residues is accepted if it contains the start, is closed under the steps, and
lacks the state that must not be reached.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands
from repl_rl.tasks.proofs.reading import number_and_set, polynomial
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_MOST_MODULUS = 10_000

Loop = tuple[dict[str, int], dict[str, str]]
"""The first value of each variable, and its value after a step, as an expression. All variables change at once."""


def _nonzero(rng: Random, most: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, most)


def _loop_family(
    name: str, loop: Callable[..., Loop], draw: Any, solve: Callable[..., str], must_have: str = ""
) -> Family:
    """The family of a loop, whose invariant has `must_have` in it."""

    def present(*operands: int) -> tuple[str, ...]:
        start, step = loop(*operands)
        names = ", ".join(start)
        start_values = ", ".join(map(str, start.values()))
        step_values = ", ".join(step.values()).replace("+ -", "- ")
        return f"{names} = {start_values}", f"{names} = {step_values}", names

    def accepts(submitted: Sequence[str], *operands: int) -> bool:
        start, step = loop(*operands)
        names = list(start)
        invariant = polynomial(submitted, names)
        if invariant.is_zero:
            return False
        if must_have:
            symbol = invariant.gens[names.index(must_have)]
            if invariant.degree(symbol) < 1:
                return False
        if invariant.eval(tuple(start.values())) != 0:
            return False
        # If the polynomial after a step is a multiple of the polynomial, a step keeps it zero wherever it is zero.
        values_after = {symbol: polynomial([step[str(symbol)]], names).as_expr() for symbol in invariant.gens}
        after = invariant.as_expr().subs(values_after, simultaneous=True)
        _, remainder = sympy.reduced(after, [invariant.as_expr()], *invariant.gens, domain="QQ")
        return bool(remainder == 0)

    condition = f", in which {must_have} occurs," if must_have else ""
    return Family(
        name,
        draw=draw,
        solve=solve,
        phrasings=(
            f"Start with {{0}}, then repeat {{1}}. Find a polynomial in {{2}}{condition} that is 0 at the start and "
            "after each step, though it is not 0 itself: it has to be a factor of what a step makes of it. Submit it "
            "as a text.",
            f"A loop starts with {{0}} and repeats {{1}}. Which polynomial in {{2}}{condition} stays 0, without being "
            "the zero polynomial, because a step makes a multiple of it? Submit it as a text.",
        ),
        present=present,
        accepts=accepts,
    )


def _closure(start: int, add: int, times: int, modulus: int) -> set[int]:
    """The residues that can be reached."""
    first = start % modulus
    reached = {first}
    frontier = [first]
    while frontier:
        residue = frontier.pop()
        for following in _steps(residue, add, times, modulus):
            if following not in reached:
                reached.add(following)
                frontier.append(following)
    return reached


def _steps(residue: int, add: int, times: int, modulus: int) -> tuple[int, int]:
    return (residue + add) % modulus, residue * times % modulus


def _draw_residues(rng: Random) -> Operands:
    while True:
        modulus = rng.randint(5, 31)
        start = rng.randint(1, 60)
        add = modulus * rng.randint(1, 9)
        times = rng.randint(2, 40)
        reached = _closure(start, add, times, modulus)
        unreached = sorted(set(range(modulus)) - reached)
        if len(reached) > 1 and unreached:
            target = rng.choice(unreached) + modulus * rng.randint(20, 400)
            return start, add, times, target


def _residues(start: int, add: int, times: int, target: int) -> tuple[int, set[int]]:
    for modulus in range(2, 300):
        reached = _closure(start, add, times, modulus)
        if target % modulus not in reached:
            return modulus, reached
    raise ValueError(f"no modulus below 300 keeps {start} from {target}")


def _keeps_away(submitted: Sequence[str], start: int, add: int, times: int, target: int) -> bool:
    modulus, residues = number_and_set(submitted)
    if not 2 <= modulus <= _MOST_MODULUS:
        return False
    if not residues <= set(range(modulus)):
        return False
    if start % modulus not in residues or target % modulus in residues:
        return False
    return all(residues.issuperset(_steps(residue, add, times, modulus)) for residue in residues)


FAMILIES = (
    _loop_family(
        "invariant-1",
        loop=lambda x, y, dx, dy: ({"x": x, "y": y}, {"x": f"x + {dx}", "y": f"y + {dy}"}),
        draw=lambda rng: (rng.randint(-50, 50), rng.randint(-50, 50), _nonzero(rng, 12), _nonzero(rng, 12)),
        solve=lambda x, y, dx, dy: repr(f"{dy}*(x - ({x})) - ({dx})*(y - ({y}))"),
    ),
    _loop_family(
        "invariant-2",
        loop=lambda start, slope, offset: ({"n": 0, "s": start}, {"n": "n + 1", "s": f"s + {slope}*n + {offset}"}),
        draw=lambda rng: (rng.randint(-50, 50), _nonzero(rng, 12), rng.randint(-30, 30)),
        solve=lambda start, slope, offset: repr(f"2*s - 2*({start}) - ({slope})*n*(n - 1) - 2*({offset})*n"),
    ),
    _loop_family(
        "invariant-3",
        loop=lambda x, s, ratio: ({"x": x, "s": s}, {"x": f"{ratio}*x", "s": "s + x"}),
        draw=lambda rng: (_nonzero(rng, 30), rng.randint(-50, 50), rng.randint(2, 12)),
        solve=lambda x, s, ratio: repr(f"{ratio - 1}*(s - ({s})) - (x - ({x}))"),
    ),
    _loop_family(
        "invariant-4",
        loop=lambda y, s, slope: ({"n": 0, "y": y, "s": s}, {"n": "n + 1", "y": f"y + {slope}", "s": "s + y"}),
        draw=lambda rng: (rng.randint(-40, 40), rng.randint(-50, 50), _nonzero(rng, 12)),
        solve=lambda y, s, slope: repr(f"2*({slope})*(s - ({s})) - (y**2 - ({slope})*y) + {y * y - slope * y}"),
        must_have="s",
    ),
    Family(
        "invariant-5",
        draw=_draw_residues,
        solve=_residues,
        phrasings=(
            "Start with {0}. A step adds {1} or multiplies by {2}. Show that {3} is never reached: submit (m, "
            "residues), where the residues modulo m include that of the start, are closed under both steps, and lack "
            "that of {3}.",
        ),
        accepts=_keeps_away,
    ),
)
