"""Problems about contexts that are too long for a prompt, for `environment: rlm`. The name says how many characters.

After the tasks of OOLONG (Bertsch et al., arXiv:2511.02817), from generated text, with exact answers: `needle` hides
one sentence in a text, `count` asks how many remarks of a list are complaints, and `join` asks what people of a town
have spent, from a table in which people and purchases are rows of different kinds. A context is computed from the
problem's number when a session begins.
"""

from __future__ import annotations

from random import Random
from typing import Any

from repl_rl.tasks.families import Family

SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}
"""Characters of a context, about."""

_NAMES = (
    "Ada",
    "Bela",
    "Chidi",
    "Dana",
    "Emre",
    "Fatou",
    "Goran",
    "Hana",
    "Ines",
    "Jun",
    "Kofi",
    "Lena",
    "Mara",
    "Noor",
)
_TOWNS = ("Accra", "Bergen", "Cusco", "Dakar", "Graz", "Hanoi", "Lima", "Oslo", "Porto", "Quito", "Riga", "Turin")
_THINGS = ("lamp", "kettle", "chair", "rug", "clock", "mirror", "bench", "shelf")
_PRAISE = ("I like my new {}.", "The {} is lovely, thank you!", "My {} works as well as on the first day.")
_COMPLAINTS = ("The {} broke after a week.", "I want my money back for this {}.", "The {} came with a crack in it.")
_REMARKS = ("The {} was sent to {}.", "No {} is made in {} any more.", "Nobody asked for the {} from {}.")


def needle(number: int, size: int) -> tuple[str, str, int]:
    """The text, whose code is asked for, and that code."""
    rng = Random(f"needle/{number}/{size}")
    name, code = rng.choice(_NAMES), rng.randrange(10_000, 100_000)
    sentences: list[str] = []
    chars = 0
    while chars < size - 40:
        sentence = rng.choice(_REMARKS).format(rng.choice(_THINGS), rng.choice(_TOWNS))
        if rng.random() < 0.1:  # codes that nobody asks for
            sentence = f"The ticket of {rng.choice(_NAMES)} has the number {rng.randrange(10_000, 100_000)}."
        sentences.append(sentence)
        chars += len(sentence) + 1
    sentences.insert(rng.randrange(len(sentences) + 1), f"The access code of {name} is {code}.")
    return " ".join(sentences), name, code


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


def purchases(number: int, size: int) -> tuple[list[dict[str, Any]], str, int]:
    """The table, the town that is asked for, and what its people have spent. Rows of both kinds are mixed."""
    rng = Random(f"join/{number}/{size}")
    people = max(4, size // 250)
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


def needle_context(number: int, size: int) -> str:
    return needle(number, size)[0]


def remarks_context(number: int, size: int) -> list[str]:
    return remarks(number, size)[0]


def purchases_context(number: int, size: int) -> list[dict[str, Any]]:
    return purchases(number, size)[0]


def _family(kind: str, name: str, size: int) -> Family:
    solve, present, make, question = {
        "needle": (
            lambda number, size: needle(number, size)[2],
            lambda number, size: (needle(number, size)[1],),
            "needle_context",
            "What is the access code of {0}?",
        ),
        "count": (
            lambda number, size: remarks(number, size)[1],
            lambda number, size: (),
            "remarks_context",
            "How many of these remarks of customers are complaints?",
        ),
        "join": (
            lambda number, size: purchases(number, size)[2],
            lambda number, size: (purchases(number, size)[1],),
            "purchases_context",
            "How much have the people of {0} spent together?",
        ),
    }[kind]
    return Family(
        f"{kind}-{name}",
        lambda rng: (rng.randrange(10**9), size),
        solve,
        (question,),
        present=present,
        environment="rlm",
        make_context=f"repl_rl.tasks.documents:{make}",
    )


DOCUMENT_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (_family(kind, name, size) for kind in ("needle", "count", "join") for name, size in SIZES.items())
}
"""All of them by name."""
