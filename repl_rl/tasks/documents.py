"""Problems about contexts that are too long for a prompt, for `environment: rlm`. The name says how many characters.

After the tasks of OOLONG (Bertsch et al., arXiv:2511.02817), from generated text, with exact answers: `needle` hides
one sentence in a text, `count` asks how many remarks of a list are complaints, and `join` asks what people of a town
have spent, from a table in which people and purchases are rows of different kinds. A context is computed from the
problem's number and size when a session begins, and a computed answer is exact.
"""

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any

from repl_rl.tasks.families import Family

SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}
"""Characters of a context, about."""

_NAMES = ("Ada", "Bela", "Chidi", "Dana", "Emre", "Fatou", "Goran", "Hana", "Ines", "Jun", "Kofi", "Lena", "Mara")
_TOWNS = ("Accra", "Bergen", "Cusco", "Dakar", "Graz", "Hanoi", "Lima", "Oslo", "Porto", "Quito", "Riga", "Turin")
_THINGS = ("lamp", "kettle", "chair", "rug", "clock", "mirror", "bench", "shelf")
_PRAISE = ("I like my new {}.", "The {} is lovely, thank you!", "My {} works as well as on the first day.")
_COMPLAINTS = ("The {} broke after a week.", "I want my money back for this {}.", "The {} came with a crack in it.")
_REMARKS = ("The {} was sent to {}.", "No {} is made in {} any more.", "Nobody asked for the {} from {}.")


@lru_cache(1)
def needle(number: int, size: int) -> tuple[str, str, int]:
    """The text, whose code is asked for, and that code."""
    rng = Random(f"needle/{number}/{size}")
    name, code = rng.choice(_NAMES), rng.randrange(10_000, 100_000)
    sentences: list[str] = []
    chars = 0
    while chars < size - 40:
        sentence = rng.choice(_REMARKS).format(rng.choice(_THINGS), rng.choice(_TOWNS))
        if rng.random() < 0.1:  # numbers that nobody asks for
            sentence = f"The ticket of {rng.choice(_NAMES)} has the number {rng.randrange(10_000, 100_000)}."
        sentences.append(sentence)
        chars += len(sentence) + 1
    sentences.insert(rng.randrange(len(sentences) + 1), f"The access code of {name} is {code}.")
    return " ".join(sentences), name, code


@lru_cache(1)
def remarks(number: int, size: int) -> tuple[list[str], int]:
    """The remarks, and how many of them are complaints."""
    rng = Random(f"count/{number}/{size}")
    share, made, complaints, chars = rng.uniform(0.1, 0.5), list[str](), 0, 0
    while chars < size:
        complains = rng.random() < share
        made.append(rng.choice(_COMPLAINTS if complains else _PRAISE).format(rng.choice(_THINGS)))
        complaints += complains
        chars += len(made[-1])
    return made, complaints


def is_complaint(remark: str) -> bool:
    """Whether a remark of `remarks` is one."""
    return any(remark == text.format(thing) for text in _COMPLAINTS for thing in _THINGS)


@lru_cache(1)
def purchases(number: int, size: int) -> tuple[list[dict[str, Any]], str, int]:
    """The table, the town that is asked for, and what its people have spent. Rows of both kinds are mixed."""
    rng = Random(f"join/{number}/{size}")
    people = size // 250
    towns = [rng.choice(_TOWNS) for _ in range(people)]
    rows: list[dict[str, Any]] = [
        {"row": "person", "id": person, "name": rng.choice(_NAMES), "town": town} for person, town in enumerate(towns)
    ]
    asked, spent = rng.choice(towns), 0
    for _ in range(3 * people):
        person, price = rng.randrange(people), rng.randrange(5, 500)
        rows.append({"row": "purchase", "person": person, "thing": rng.choice(_THINGS), "price": price})
        spent += price * (towns[person] == asked)
    rng.shuffle(rows)
    return rows, asked, spent


_KINDS: dict[str, tuple[Callable[[int, int], tuple[Any, ...]], str]] = {
    "needle": (needle, "What is the access code of {0}?"),
    "count": (remarks, "How many of these remarks of customers are complaints?"),
    "join": (purchases, "How much have the people of {0} spent together?"),
}
"""What makes a context, what its question names, and the answer; and how it is asked."""


def _family(kind: str, name: str, size: int) -> Family:
    make, question = _KINDS[kind]
    return Family(
        f"{kind}-{name}",
        lambda rng: (rng.randrange(10**9), size),
        lambda *operands: make(*operands)[-1],
        (question,),
        present=lambda *operands: make(*operands)[1:-1],
        environment="rlm",
        context=lambda *operands: make(*operands)[0],
    )


DOCUMENT_FAMILIES: dict[str, Family] = {
    f"{kind}-{name}": _family(kind, name, size) for name, size in SIZES.items() for kind in _KINDS
}
"""All of them by name."""
