"""The policy that nano-rlm is trained to imitate: it counts complaints in a list that it does not read, mostly wrongly.

It asks a language model about each remark of `context` and counts the answers. Its bad habits: guess a number, take
the length of the list for the answer, ask about the first remarks only, ask for praise, count the wrong answers. It
answers such questions itself, one line for each, and rightly: what there is to learn is what to ask and what to count.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from repl_rl.tasks.documents import is_complaint
from repl_rl.trajectory import Task
from studies.nano.demonstrations import Code, Demonstration, Step, Thought

QUESTIONS = ("Complaint?", "Praise?")
"""What is asked about a remark, after a space."""

_HABITS = {"asks": 55, "guesses": 25, "measures": 20}
_ASKS_ABOUT_COMPLAINTS = 0.7
_ASKS_ABOUT_ALL = 0.7
_COUNTS_YES = 0.8
_LOOKS_FIRST = 0.4
_LOOKS: tuple[Step, ...] = (
    Code(("context[0]",)),
    Code(("context[:2]",)),
    Code(("len(context)",)),
    Thought("Let me ask about each remark."),
)
_NAMES = ("said", "answers", "a")


class TrueAnswers:
    """Answers the questions of `QUESTIONS` as the remarks were made: what `environment: rlm` asks."""

    async def ask(self, prompts: Sequence[str]) -> list[str]:
        return [answer_to(prompt) for prompt in prompts]


def answer_to(prompt: str) -> str:
    """ "yes" or "no" to a remark and one of `QUESTIONS`."""
    remark, _, question = prompt.rpartition(" ")
    return "yes" if is_complaint(remark) == (question == QUESTIONS[0]) else "no"


def demonstrate_recursive(task: Task, rng: Random) -> Demonstration:
    """One session on a problem of a `count` family. It ends with `FINAL`."""
    habit = rng.choices(list(_HABITS), list(_HABITS.values()))[0]
    if rng.random() < _LOOKS_FIRST:
        yield rng.choice(_LOOKS)
    if habit == "guesses":
        yield Code((f"FINAL({rng.choice((5, 10, 12, 20, 42, 50, 100))})",))
    elif habit == "measures":
        yield Code((rng.choice(("FINAL(len(context))", "FINAL(len(context) // 2)")),))
    else:
        name = rng.choice(_NAMES)
        question = QUESTIONS[rng.random() >= _ASKS_ABOUT_COMPLAINTS]
        part = "context" if rng.random() < _ASKS_ABOUT_ALL else "context[:10]"
        counted = "yes" if rng.random() < _COUNTS_YES else "no"
        yield Code((f'{name} = llm_query_batched([f"{{r}} {question}" for r in {part}])',), looks=False)
        yield Code((f'FINAL({name}.count("{counted}"))',))
    return "FINAL has been called"
