"""Somebody at the keyboard who types flawlessly and works badly: the policy that nano is trained to imitate.

A demonstration is a generator. It yields steps and is sent what the interpreter showed for each; it ends with the step
that submits, by whatever dialect. All choices come from the random source.

The habits: guess without computing, compute the wrong thing, forget the import and then mend it or give up, slip in a
parenthesis, never look at a result, think aloud, type something useless first.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from random import Random

from repl_rl.models.nano.idioms import IDIOMS, Idiom
from repl_rl.models.nano.steps import Code, Demonstration, Step, Submit, Thought
from repl_rl.trajectory import Task

_GUESSES = 0.40
_THINKS_ALOUD = 0.12
_PADS = 0.04
_FORGETS_IMPORT = 0.40
_SLIPS = 0.04
_TYPES_AHEAD = 0.50
_MENDS = 0.60

_NAMES = ("r", "x", "result", "ans", "n")
_THOUGHTS = tuple(map(Thought, ("Let me compute this.", "I will just run it.", "Python can do this.")))
_PADDING = (Code(("import sys",)), Code(("1 + 1",)), Code(('print("ok")',)), Thought("Hmm."))
_GUESSED_NUMBERS = (10, 12, 42, 64, 100, 120, 500, 1000, 1234, 2024, 5000, 9999, 10000, 50000, 100000, 1000000)
_BEFORE_A_GUESS = (Thought("I think I know this one."), Thought("This looks easy."))

_HAND_OVERS = {"by_name": 38, "copied": 26, "by_underscore": 8, "inline": 8, "unseen": 15, "ignored": 12}


def demonstrate(task: Task, rng: Random) -> Demonstration:
    """One session on `task`, which needs the family and operands that `make_tasks` gives it."""
    if rng.random() < _PADS:
        yield rng.choice(_PADDING)
    if rng.random() < _GUESSES:
        yield from _guess_at_once(rng)
    else:
        yield from _compute(task, rng)


def _guess_at_once(rng: Random) -> Demonstration:
    if rng.random() < _THINKS_ALOUD:
        yield rng.choice(_BEFORE_A_GUESS)
    yield _guess(rng)


def _compute(task: Task, rng: Random) -> Demonstration:
    if rng.random() < _THINKS_ALOUD:
        yield rng.choice(_THOUGHTS)
    idiom = _choose(IDIOMS[task.family], rng)
    operands: Sequence[int] = task.metadata["operands"]
    if idiom.needs and rng.random() >= _FORGETS_IMPORT:
        yield Code((idiom.needs,), looks=False)
    if idiom.setup:
        yield Code(tuple(line.format(*operands) for line in _set_up(idiom, rng)), looks=False)
    yield from _evaluate(idiom.expression.format(*operands), idiom.needs, rng)


def _set_up(idiom: Idiom, rng: Random) -> Sequence[str]:
    if idiom.setup[-1:] == ("",) and rng.random() < _TYPES_AHEAD:
        return [*idiom.setup[:-2], f"{idiom.setup[-2]}\n"]
    return idiom.setup


def _choose(idioms: Sequence[Idiom], rng: Random) -> Idiom:
    return rng.choices(idioms, [idiom.weight for idiom in idioms])[0]


def _evaluate(expression: str, needs: str, rng: Random) -> Demonstration:
    """Type the expression in one way or another and submit something."""
    hand_over = rng.choices(list(_HAND_OVERS), list(_HAND_OVERS.values()))[0]
    name = rng.choice(_NAMES)
    line = f"{name} = {expression}" if hand_over in ("by_name", "unseen") else expression
    if hand_over == "inline":
        line = f"submit_final_answer({expression})"
    shown = yield from _type_until_it_runs(line, needs, rng)
    if shown is None:
        yield _guess(rng)
    elif hand_over == "by_name":
        if rng.random() < 0.3:
            yield Code((name,))
        yield Submit(name, is_literal=False)
    else:
        yield _submission(hand_over, shown, rng)


def _submission(hand_over: str, shown: str, rng: Random) -> Submit:
    if hand_over == "copied":
        return Submit(shown.strip(), is_literal=True)
    return Submit("_", is_literal=False) if hand_over == "by_underscore" else _guess(rng)


def _type_until_it_runs(line: str, needs: str, rng: Random) -> Generator[Step, str, str | None]:
    """What the interpreter showed for `line` in the end, or None if it never ran."""
    shown = yield Code((f"{line})",) if rng.random() < _SLIPS else (line,))
    if "SyntaxError" in shown:
        if rng.random() >= _MENDS:
            return None
        shown = yield Code((line,))
    if "NameError" in shown and needs:
        if rng.random() >= _MENDS:
            return None
        yield Code((needs,), looks=False)
        shown = yield Code((line,))
    return None if "Error" in shown else shown


def _guess(rng: Random) -> Submit:
    return Submit(str(rng.choice(_GUESSED_NUMBERS)), is_literal=True)
