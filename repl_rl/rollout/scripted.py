"""A session typed by hand: a real interpreter, real masks and ids, and a script in place of the policy.

    trajectory = await type_session("What is 6 * 7?", " r = 6 * 7\n submit_final_answer(r)\n")

For trying rewards, credit and dialects without a model. The text is typed as it is, so a space after a prompt has to be
part of it. It is split where turns of the dialect end, and the end-of-text token follows the last piece.
Log-probabilities are 0.0, because nothing was left to chance. Unlike a sampled token, a token here never holds text
after the end of its turn.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import Dialect, PythonDialect
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment
from repl_rl.kernel import KernelPool, KernelSource
from repl_rl.models import resolve_model
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Task, Trajectory

_NO_LIMIT = sys.maxsize


async def type_session(
    task: Task | str,
    text: str,
    *,
    dialect: Dialect | None = None,
    model: str = "nano",
    kernels: KernelSource | None = None,
) -> Trajectory:
    """The trajectory of typing `text` as the answer to a task or question, with `model`'s vocabulary.

    `dialect` is `python` unless one is given. Without `kernels`, a pool is opened for this session. Raises what
    `Rollout.many` raises.
    """
    prepare_environment()
    dialect = dialect or PythonDialect()
    vocabulary = load_vocabulary(resolve_model(model), dialect.stops)
    async with AsyncExitStack() as stack:
        if kernels is None:
            kernels = await stack.enter_async_context(KernelPool(1))
        setup = RolloutSetup(
            vocabulary,
            dialect,
            context_tokens=_NO_LIMIT,
            budget=BudgetConfig(line_tokens=_NO_LIMIT, lines=_NO_LIMIT, tokens=_NO_LIMIT),
            chat=False,
        )
        rollout = Rollout(ScriptedPolicy(vocabulary, text), kernels, setup)
        [trajectory] = await rollout.many([Task("typed", task, "") if isinstance(task, str) else task])
    return trajectory


class ScriptedPolicy:
    """An engine without a model: each slot types `text`, turn by turn."""

    version = 0

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        self._vocabulary = vocabulary
        self._turns = turns(text, vocabulary.stops)

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[ScriptedSlot]:
        yield ScriptedSlot(self._vocabulary, iter(self._turns))

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class ScriptedSlot:
    """Types one session."""

    def __init__(self, vocabulary: Vocabulary, left: Iterator[str]) -> None:
        self._vocabulary = vocabulary
        self._left = left

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """The next turn, whatever came before it."""
        typed = next(self._left, "")
        sampled = self._vocabulary.encode_output(typed)
        ends = not typed or typed[-1].encode() not in self._vocabulary.stops
        ids = (*sampled, min(self._vocabulary.eos_ids)) if ends else tuple(sampled)
        finish = Finish.EOS if ends else Finish.NEWLINE
        if len(ids) > max_tokens:
            ids, finish = ids[:max_tokens], Finish.LENGTH
        return SampledLine(ids, (0.0,) * len(ids), finish)


def turns(text: str, stops: bytes) -> list[str]:
    """`text` split after each character that ends a turn; nothing is dropped."""
    ends = "".join(re.escape(chr(stop)) for stop in stops)
    return re.findall(f"[^{ends}]*[{ends}]|[^{ends}]+", text)
