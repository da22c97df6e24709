"""Problems about contexts that are too long for a prompt, for `environment: rlm`. Their names end in their sizes.

After the tasks of OOLONG (Bertsch et al., arXiv:2511.02817), from generated text, with exact answers: `needle` hides
one sentence in a text, `count` asks how many remarks of a list are complaints, and `join` asks what people of a town
have spent, from a table in which people and purchases are rows of different kinds. A context is computed from the
problem's number and size when a session begins, and a computed answer is exact.
"""

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands

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
    """The text, the person whose code is asked for, and that code."""
    rng = Random(f"needle/{number}/{size}")
    name = rng.choice(_NAMES)
    code = rng.randrange(10_000, 100_000)
    sentences: list[str] = []
    chars = 0
    while chars < size - 40:
        remark = rng.choice(_REMARKS)
        thing = rng.choice(_THINGS)
        town = rng.choice(_TOWNS)
        sentence = remark.format(thing, town)
        if rng.random() < 0.1:  # a distractor: a number that nobody asks for
            ticket_holder = rng.choice(_NAMES)
            sentence = f"The ticket of {ticket_holder} has the number {rng.randrange(10_000, 100_000)}."
        sentences.append(sentence)
        chars += len(sentence) + 1
    position = rng.randrange(len(sentences) + 1)
    sentences.insert(position, f"The access code of {name} is {code}.")
    return " ".join(sentences), name, code


@lru_cache(1)
def remarks(number: int, size: int) -> tuple[list[str], int]:
    """The remarks, and how many of them are complaints."""
    rng = Random(f"count/{number}/{size}")
    complaint_share = rng.uniform(0.1, 0.5)
    texts: list[str] = []
    complaint_count = 0
    chars = 0
    while chars < size:
        templates = _PRAISE
        if rng.random() < complaint_share:
            templates = _COMPLAINTS
            complaint_count += 1
        text = rng.choice(templates).format(rng.choice(_THINGS))
        texts.append(text)
        chars += len(text)
    return texts, complaint_count


def is_complaint(remark: str) -> bool:
    """Whether a remark of `remarks` is one."""
    return any(remark == text.format(thing) for text in _COMPLAINTS for thing in _THINGS)


@lru_cache(1)
def purchases(number: int, size: int) -> tuple[list[dict[str, Any]], str, int]:
    """The table, the town that is asked for, and what its people have spent. Rows of both kinds are mixed."""
    rng = Random(f"join/{number}/{size}")
    people_count = size // 250
    towns = [rng.choice(_TOWNS) for _ in range(people_count)]
    rows: list[dict[str, Any]] = []
    for person, town in enumerate(towns):
        rows.append({"row": "person", "id": person, "name": rng.choice(_NAMES), "town": town})
    question_town = rng.choice(towns)
    spent = 0
    for _ in range(3 * people_count):
        person = rng.randrange(people_count)
        price = rng.randrange(5, 500)
        thing = rng.choice(_THINGS)
        rows.append({"row": "purchase", "person": person, "thing": thing, "price": price})
        if towns[person] == question_town:
            spent += price
    rng.shuffle(rows)
    return rows, question_town, spent


_KINDS: dict[str, tuple[Callable[[int, int], tuple[Any, ...]], str]] = {
    "needle": (needle, "What is the access code of {0}?"),
    "count": (remarks, "How many of these remarks of customers are complaints?"),
    "join": (purchases, "How much have the people of {0} spent together?"),
}
"""By kind: a function that returns the context, the values in the question, and the answer; and the question."""


def _family(kind: str, name: str, size: int) -> Family:
    make, question = _KINDS[kind]

    def draw(rng: Random) -> Operands:
        return rng.randrange(10**9), size

    def solve(*operands: int) -> Any:
        *_, answer = make(*operands)
        return answer

    def present(*operands: int) -> tuple[Any, ...]:
        _context, *values, _answer = make(*operands)
        return tuple(values)

    def context(*operands: int) -> Any:
        return make(*operands)[0]

    return Family(
        f"{kind}-{name}",
        draw=draw,
        solve=solve,
        phrasings=(question,),
        present=present,
        environment="rlm",
        context=context,
    )


DOCUMENT_FAMILIES: dict[str, Family] = {
    f"{kind}-{name}": _family(kind, name, size) for name, size in SIZES.items() for kind in _KINDS
}
"""The families of documents by name."""
