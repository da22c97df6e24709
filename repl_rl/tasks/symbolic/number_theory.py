"""Number theory by sympy's functions."""

from __future__ import annotations

import math
from random import Random

from repl_rl.tasks.families import Family, Operands
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_PRIMES = tuple(n for n in range(101, 1000) if all(n % divisor for divisor in range(2, 32)))


def _draw_congruences(rng: Random, count: int) -> Operands:
    """Remainders and moduli in turn. The moduli are pairwise coprime."""
    while True:
        moduli = sorted(rng.sample(range(5, 40), count))
        if math.lcm(*moduli) == math.prod(moduli):
            return tuple(part for modulus in moduli for part in (rng.randint(1, modulus - 1), modulus))


def _remainder(*operands: int) -> int:
    return int(sympy.ntheory.modular.crt(operands[1::2], operands[::2])[0])


def _draw_unit(rng: Random) -> Operands:
    while True:
        modulus = rng.randint(101, 2999)
        unit = rng.randint(2, modulus - 1)
        if math.gcd(unit, modulus) == 1:
            return unit, modulus


def _draw_order(rng: Random) -> Operands:
    prime = rng.choice(_PRIMES)
    return rng.randint(2, prime - 2), prime


FAMILIES = (
    Family(
        "congruence-1",
        lambda rng: _draw_congruences(rng, 2),
        _remainder,
        (
            "What is the smallest positive number that leaves {0} when divided by {1} and {2} when divided by {3}?",
            "Find the smallest positive n with n = {0} mod {1} and n = {2} mod {3}.",
            "Solve n = {0} (mod {1}), n = {2} (mod {3}) for the smallest positive n.",
        ),
    ),
    Family(
        "congruence-2",
        lambda rng: _draw_congruences(rng, 3),
        _remainder,
        (
            "Find the smallest positive n with n = {0} mod {1}, n = {2} mod {3} and n = {4} mod {5}.",
            "Solve n = {0} (mod {1}), n = {2} (mod {3}), n = {4} (mod {5}) for the smallest positive n.",
            "Which smallest positive number leaves {0}, {2} and {4} when divided by {1}, {3} and {5}?",
        ),
    ),
    Family(
        "modular-inverse-1",
        _draw_unit,
        lambda unit, modulus: int(sympy.mod_inverse(unit, modulus)),
        (
            "Find the inverse of {0} modulo {1}, between 1 and the modulus.",
            "Which positive n, smaller than the modulus, solves {0}*n = 1 (mod {1})?",
            "Compute the smallest positive multiplicative inverse of {0} mod {1}.",
        ),
    ),
    Family(
        "totient-1",
        lambda rng: (rng.randint(2, 99) * rng.randint(11, 99),),
        lambda number: int(sympy.totient(number)),
        (
            "What is Euler's totient of {0}?",
            "How many of the numbers up to {0} share no divisor with it?",
            "Compute phi({0}), Euler's function.",
        ),
    ),
    Family(
        "order-1",
        _draw_order,
        lambda base, prime: int(sympy.n_order(base, prime)),
        (
            "What is the multiplicative order of {0} modulo {1}?",
            "Find the smallest positive k with {0}**k = 1 (mod {1}).",
            "Which is the least k > 0 for which {1} divides {0}**k - 1?",
        ),
    ),
)
