"""`python -m studies.credit_noise.states`: are the states that lines are compared by too fine?

    python -m studies.credit_noise.states --folder noise/step10

`baseline: state` takes two lines to be alike if the same names were bound to the same values before them. A session
that says `price` where another one says `jersey_price` shares nothing with it. Here the sessions that
`studies.credit_noise` has recorded run again, without a model, and what their names are bound to is read before each
line. Baselines that look at less are compared with `place` by the gradients of lines that the folder has. Each is a
function of what was there before the line, so each is unbiased. The protocol, and what came out, is in README.md.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple
from fractions import Fraction
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.config import Config
from repl_rl.credit.normalize import anchors
from repl_rl.kernel import ExecStatus, KernelSession
from repl_rl.rollout import make_pool
from repl_rl.trajectory import Trajectory
from repl_rl.utils.machine import machine
from studies.common.command import main
from studies.credit_noise import statistics
from studies.credit_noise.estimators import States, towards_place
from studies.credit_noise.settings import QUICK as QUICK_NOISE
from studies.credit_noise.settings import NoiseSettings
from studies.credit_noise.statistics import Array
from studies.credit_noise.study import FLAGS, Groups, recorded

__all__ = ["DEFAULT", "FLAGS", "QUICK", "measure", "plain", "table"]

DEFAULT = NoiseSettings()
QUICK = QUICK_NOISE
KINDS = ("names and values", "values", "numbers and texts", "newest value")
"""What has to be equal for two lines to be alike: the interpreter's state, as `baseline: state` has it; the values that
names are bound to, whatever the names; the set of numbers and texts in these, where 12, 12.0 and 24/2 are one; the
value that was bound last."""
_PROBE = """
print(__import__("json").dumps([
    (name, repr(value)[:400]) for name, value in list(globals().items())
    if not name.startswith("_") and not callable(value) and type(value).__name__ != "module"
]))
"""

State = dict[str, str]
"""By what is looked at: a text that equal states share. Empty where the state is unknown."""


def measure(settings: NoiseSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the recorded sessions again; returns the content of the JSON file.

    Raises what `study.recorded` does where the folder lacks gradients, and what starting kernels raises.
    """
    problems, stored = recorded(settings, say)
    products = [each["lines"] for each in stored]
    sessions = [session for problem in problems for group in problem for session in group]
    say(f"running {len(sessions)} sessions again")
    looked_into = iter(asyncio.run(_looked_into(settings.loaded, sessions)))
    states = []
    for problem in problems:
        states.append([[next(looked_into) for _ in group] for group in problem])
    of_place = _lengths(problems, products, [[{} for _ in problem] for problem in problems], weight=1)
    rows = []
    for kind in KINDS:
        alike = [[_alike(sessions, kind) for sessions in groups] for groups in states]
        shared = _shares(alike, sum(len(session.lines) for session in sessions))
        for baseline, weight in (("state", 0), ("shrunk", 1)):
            lengths = _lengths(problems, products, alike, weight)
            size = statistics.ratio(lengths, of_place)
            least = statistics.smallest_effect(lengths, of_place, len(problems))
            rows.append({"kind": kind, "baseline": baseline, "size": astuple(size), "smallest_effect": least} | shared)
    return {"problems": len(problems), "sessions": len(sessions), "rows": rows} | machine(("repl-rl", "sympy"))


async def _looked_into(config: Config, sessions: Sequence[Trajectory]) -> list[list[State]]:
    """Of each session, the state before each of its lines."""
    async with make_pool(config.kernel) as kernels:
        free = asyncio.Semaphore(config.kernel.size)

        async def look(session: Trajectory) -> list[State]:
            async with free, kernels.session() as kernel:
                return await _states_of(kernel, session)

        return await asyncio.gather(*map(look, sessions))


async def _states_of(kernel: KernelSession, session: Trajectory) -> list[State]:
    """The state before each line, by what `KINDS` look at."""
    found: list[State] = []
    bound, newest = await _bound(kernel), ""
    for line, anchor in zip(session.lines, anchors(session), strict=True):
        open_text = anchor[1] if anchor else ""
        found.append(
            {}
            if anchor is None
            else {
                "names and values": str(anchor),
                "values": repr((sorted(bound.values()), open_text)),
                "numbers and texts": repr((sorted(set(map(plain, bound.values()))), open_text)),
                "newest value": repr((plain(newest), open_text)),
            }
        )
        for cell in line.cells:
            await kernel.execute(cell.source)
        if line.cells and line is not session.lines[-1]:
            before, bound = bound, await _bound(kernel)
            changed = [value for name, value in bound.items() if before.get(name) != value]
            newest = changed[-1] if changed else newest
    return found


async def _bound(kernel: KernelSession) -> dict[str, str]:
    """What names are bound to; nothing in an interpreter that is gone."""
    result = await kernel.execute(_PROBE)
    if result.status is not ExecStatus.OK:
        return {}
    return dict(json.loads(result.output.splitlines()[-1]))


def plain(value: str) -> str:
    """A value as `repr` writes it, in a form that equal numbers share: "12.0" and "Fraction(12, 1)" are "12"."""
    written = re.sub(r"Fraction\((-?\d+), (\d+)\)", r"\1/\2", value)
    try:
        return str(Fraction(written).limit_denominator(10**6))
    except (ValueError, ZeroDivisionError, OverflowError):
        return written


def _alike(states: Sequence[Sequence[State]], kind: str) -> States:
    """The lines of a group, as indices of session and line, by their states."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for session, of_lines in enumerate(states):
        for line, state in enumerate(of_lines):
            if kind in state:
                found[state[kind]].append((session, line))
    return found


def _shares(alike: Sequence[Sequence[States]], lines: int) -> dict[str, float]:
    """The shares of all lines that began in a state of another session of their group, and in one other than the
    group's first."""
    shared = later = 0
    for groups in alike:
        for states in groups:
            for places in states.values():
                if len({session for session, _ in places}) > 1:
                    shared += len(places)
                    later += len(places) * ((0, 0) not in places)
    return {"shared": shared / lines, "later": later / lines}


def _lengths(
    problems: Sequence[Groups], products: Sequence[Array], alike: Sequence[Sequence[States]], weight: int
) -> Array:
    """(problems,): the mean squared length of the gradients of a problem's two groups, by the last `down_proj`."""
    found = []
    for groups, of_lines, states in zip(problems, products, alike, strict=True):
        start, total = 0, 0.0
        for group, of_group in zip(groups, states, strict=True):
            rewards = [[line.reward or 0.0 for line in session.lines] for session in group]
            values = towards_place(rewards, of_group, 1.0, weight=weight, once=True)
            vector = np.array([value for of_session in values for value in of_session])
            end = start + len(vector)
            total += float(vector @ of_lines[start:end, start:end] @ vector)
            start = end
        found.append(total / len(groups))
    return np.array(found)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(box=SIMPLE_HEAD, title=f"{report['problems']} problems: size over that of place, last down_proj")
    for column in ("equal are", "baseline", "size", "least", "lines that share", "not at the start"):
        shown.add_column(column)
    for row in report["rows"]:
        size = "{:.2f} ({:.2f}, {:.2f})".format(*row["size"])
        shares = (f"{row[name]:.0%}" for name in ("smallest_effect", "shared", "later"))
        shown.add_row(row["kind"], row["baseline"], size, *shares)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.credit_noise.states"))
