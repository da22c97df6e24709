"""64 rollouts through real kernels of other languages, behind bwrap, are exact to the token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
)
from real_kernels import RealKernel, pari_kernel, r_kernel
from scripted import ScriptedEngine

from repl_rl.config import BudgetConfig, DialectConfig
from repl_rl.engine import Vocabulary
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

COUNT = 64
Turns = list[tuple[str, str, LineKind]]
"""What is typed, what is shown after it, and the line's kind."""


@pytest.fixture(scope="module")
def pari(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKernel]:
    with pytest.MonkeyPatch.context() as patch:
        yield pari_kernel(tmp_path_factory.mktemp("pari"), patch.setenv)


def r_turns(n: int) -> Turns:
    return [
        (" # A function first.\n", ">>>", LineKind.COMMENT),
        (f" x <- c({n}, {n + 1}, 6)\n", ">>>", LineKind.STATEMENT),
        (" total <- function(v) {\n", "...", LineKind.OPEN),
        ("\n", "...", LineKind.BLANK),
        ("   sum(v) * 10 # of all\n", "...", LineKind.OPEN),
        (" }\n", ">>>", LineKind.STATEMENT),
        (" total(x)\n", f"[1] {10 * (2 * n + 7)}\n>>>", LineKind.STATEMENT),
        (" cat('no newline')\n", "no newline>>>", LineKind.STATEMENT),
        (
            " stop('on purpose')\n",
            'Error in eval(expr, envir, enclos): on purpose\nTraceback:\n\n1. stop("on purpose")\n>>>',
            LineKind.EXCEPTION,
        ),
        (
            " 1 + )\n",
            "Error in parse(text = x, srcfile = src): <text>:1:5: unexpected ')'\n1: 1 + )\n        ^\nTraceback:\n>>>",
            LineKind.SYNTAX_ERROR,
        ),
        ("\n", ">>>", LineKind.BLANK),
        (" total(x) / 10", f"[1] {2 * n + 7}\n", LineKind.STATEMENT),
    ]


def pari_turns(n: int) -> Turns:
    return [
        (" \\\\ Each line is a cell of its own.\n", ">>>", LineKind.COMMENT),
        (f" p = x^2 - {n * n}\n", f"x^2 - {n * n}\n>>>" if n else "x^2\n>>>", LineKind.STATEMENT),
        (" q = 2^61 - 1;\n", ">>>", LineKind.STATEMENT),
        (" isprime(q)\n", "1\n>>>", LineKind.STATEMENT),
        (f" subst(p, x, {n + 1})\n", f"{2 * n + 1}\n>>>", LineKind.STATEMENT),
        (
            " 1/0\n",
            "  ***   at top-level: 1/0\n  ***                  ^--\n  *** _/_: impossible inverse in gdiv: 0.\n>>>",
            LineKind.EXCEPTION,
        ),
        (f" {n} * 3", f"{n * 3}\n", LineKind.STATEMENT),
    ]


def made(
    kernel: RealKernel, vocabulary: Vocabulary, turns: Callable[[int], Turns], dialect: str
) -> tuple[list[Trajectory], RecordingEngine]:
    def script(prompt: str) -> Sequence[str]:
        return [typed for typed, _, _ in turns(int(prompt.split("number ")[1].split(".")[0]))]

    engine = RecordingEngine(ScriptedEngine(vocabulary, script))
    setup = RolloutSetup(
        vocabulary,
        DialectConfig(name=dialect, max_output_chars=400),
        context_tokens=4000,
        budget=BudgetConfig(line_tokens=100, lines=20, tokens=3000),
        at_once=6,
    )

    async def roll() -> list[Trajectory]:
        async with kernel.pool(6) as pool:
            return await Rollout(engine, pool, setup).many(
                [Task(str(n), f"This is number {n}.", "") for n in range(COUNT)]
            )

    return asyncio.run(roll()), engine


def assert_exact(
    trajectories: list[Trajectory], engine: RecordingEngine, vocabulary: Vocabulary, turns: Callable[[int], Turns]
) -> None:
    assert_the_engine_was_given_the_sequence_so_far(trajectories, engine.calls)
    for n, trajectory in enumerate(trajectories):
        expected = turns(n)
        assert trajectory.error is None
        assert [(line.text, line.output, line.kind) for line in trajectory.lines] == expected
        assert trajectory.stop_reason is StopReason.EOS
        assert_masked_text_is_the_outputs(trajectory, vocabulary)
        ids, mask = list[int](), list[bool]()
        for index, (typed, shown, _) in enumerate(expected):
            is_last = index + 1 == len(expected)
            sampled = [*vocabulary.encode_output(typed), *([min(vocabulary.eos_ids)] if is_last else [])]
            inserted = [] if is_last else vocabulary.encode_output(shown)
            ids += [*sampled, *inserted]
            mask += [True] * len(sampled) + [False] * len(inserted)
        assert list(trajectory.completion_ids) == ids
        assert list(trajectory.sampled_mask) == mask


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_64_rollouts_through_r_are_exact(vocabulary: Vocabulary) -> None:
    trajectories, engine = made(r_kernel(), vocabulary, r_turns, "python")
    assert_exact(trajectories, engine, vocabulary, r_turns)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_64_rollouts_through_pari_are_exact(pari: RealKernel, vocabulary: Vocabulary) -> None:
    trajectories, engine = made(pari, vocabulary, pari_turns, "python")
    assert_exact(trajectories, engine, vocabulary, pari_turns)
