"""`python -m studies.profile`: what a session of a sandbox profile costs, and whether its packages are warm.

- start: from asking for a session that was not prepared (`warm=0`) to its answer to the line `1`;
- unique memory: private pages (USS) of the processes that appear as the sessions open, per session, before any line;
- first and later: for each package that the profile has, a small task in a fresh session, imports included, and the
  same task again in that session. A package is warm if its first use costs what a later one does.

All times are medians, measured in this process around `execute`. Times of packages alternate from round to round, so
that a busy machine affects all alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from repl_rl.bench.kernels import descendants, memory_mb, timed_s
from repl_rl.bench.settings import Say
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import KernelPool, KernelSession, Limits
from repl_rl.kernel.limits import MATH, Profile
from repl_rl.utils.machine import machine

USES = {
    "numpy": "import numpy; str(numpy.linalg.solve(numpy.eye(3), [1, 2, 3]))",
    "sympy": "import sympy; x = sympy.Symbol('x'); str(sympy.solve(x**2 - 5*x + 6, x))",
    "mpmath": "import mpmath; str(mpmath.quad(lambda t: t**3, [0, 2]))",
    "scipy": "import scipy.optimize; scipy.optimize.linprog([-1, -2], [[1, 1]], [4]).fun",
    "networkx": "import networkx; networkx.shortest_path(networkx.Graph([(1, 2), (2, 3), (1, 3)]), 1, 3)",
    "z3": "import z3; s = z3.Solver(); n = z3.Int('n'); s.add(n * n == 49, n > 0); str(s.check()), str(s.model())",
    "flint": "import flint; str(flint.fmpz_poly([-6, 11, -6, 1]).factor())",
    "ortools": (
        "from ortools.sat.python import cp_model; m = cp_model.CpModel(); v = m.new_int_var(0, 9, 'v');"
        " m.add(2 * v <= 7); m.maximize(v); s = cp_model.CpSolver(); s.solve(m), s.value(v)"
    ),
}
"""A small task for each package: one cell."""
_DISTRIBUTIONS = ("numpy", "sympy", "mpmath", "scipy", "networkx", "z3-solver", "python-flint", "ortools")
_LATER = 5
"""Later uses in a session."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    profile: str = MATH
    sessions: int = 16
    rounds: int = 15
    starts: int = 40

    def __post_init__(self) -> None:
        for name in ("sessions", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")


DEFAULT = ProfileSettings()
QUICK = ProfileSettings(sessions=3, rounds=2, starts=3)
FLAGS = (
    ("--profile", str, "a shipped profile's name, or a .toml file (default: math)"),
    ("--sessions", int, "live sessions (default: 16)"),
    ("--rounds", int, "fresh sessions for each package (default: 15)"),
)


def measure(settings: ProfileSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the JSON object that it writes. `say` is called with the progress. Raises KernelError,
    and ConfigError for a profile that there is not."""
    return asyncio.run(_measure(settings, say))


async def _measure(settings: ProfileSettings, say: Say) -> dict[str, Any]:
    limits = Limits(line_s=60.0, start_s=Profile.load(settings.profile).limits.start_s)
    async with KernelPool(settings.sessions + 1, limits, warm=0, profile=settings.profile) as pool:
        say(f"{settings.starts} starts, {settings.sessions} sessions")
        async with pool.session():  # starts the server that the sessions share
            pass
        starts = [await _start_s(pool) for _ in range(settings.starts)]
        before = descendants()
        async with AsyncExitStack() as sessions:
            for _ in range(settings.sessions):
                await timed_s(await sessions.enter_async_context(pool.session()), "1")
            unique_mb = memory_mb(descendants() - before, "uss") / settings.sessions
        first: dict[str, list[float]] = {name: [] for name in USES}
        later: dict[str, list[float]] = {name: [] for name in USES}
        for number in range(1, settings.rounds + 1):
            say(f"round {number} of {settings.rounds}")
            for name in list(first):
                async with pool.session() as kernel:
                    if not await _has(kernel, name):
                        say(f"left out: {name} is not installed")
                        del first[name], later[name]
                        continue
                    first[name].append(await timed_s(kernel, USES[name]))
                    later[name] += [await timed_s(kernel, USES[name]) for _ in range(_LATER)]
    return {
        "profile": settings.profile,
        "sessions": settings.sessions,
        "rounds": settings.rounds,
        "start_ms_p50": 1000 * statistics.median(starts),
        "unique_mb": unique_mb,
        "uses": {
            name: {"first_ms": 1000 * statistics.median(first[name]), "later_ms": 1000 * statistics.median(later[name])}
            for name in first
        },
        **machine(_DISTRIBUTIONS),
    }


async def _start_s(pool: KernelPool) -> float:
    began = time.perf_counter()
    async with pool.session() as kernel:
        await timed_s(kernel, "1")
        return time.perf_counter() - began


async def _has(kernel: KernelSession, package: str) -> bool:
    """Whether a session can import a package, without importing it."""
    result = await kernel.execute(f"__import__('importlib.util').util.find_spec({package!r}) is not None")
    if result.output not in ("True\n", "False\n"):
        raise KernelError(f"a session that was asked for {package} said {result.output[-500:]!r}")
    return result.output == "True\n"


def table(report: dict[str, Any]) -> Table:
    """A row for each package, under what a session costs."""
    title = (
        f"{report['profile']}: a session starts in {report['start_ms_p50']:.1f} ms (p50) and has "
        f"{report['unique_mb']:.1f} MB of its own; {report['cores']} cores"
    )
    shown = Table(title=title, title_justify="left", header_style="bold")
    for column in ("", "first use, ms", "later use, ms", "ratio"):
        shown.add_column(column, justify="right" if column else "left")
    for name, use in report["uses"].items():
        ratio = use["first_ms"] / use["later_ms"]
        shown.add_row(name, f"{use['first_ms']:.2f}", f"{use['later_ms']:.2f}", f"{ratio:.1f}x")
    return shown
