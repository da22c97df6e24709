"""A session typed by hand: a real interpreter, real masks and ids, and a script instead of the policy.

    trajectory = await type_session("What is 6 * 7?", " r = 6 * 7\n submit_final_answer(r)\n")

For trying rewards, credit, dialects and environments without a model. The text is typed as it is, so a space after a
prompt has to be part of it. It is split where turns of the dialect end, and the end-of-text token follows the last
piece. Log-probabilities are 0.0, because nothing was left to chance. Unlike a sampled token, a token here never holds
text after the end of its turn.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from repl_rl.config import BudgetConfig, DialectConfig, SamplingConfig, SubcallsConfig
from repl_rl.dialect import Dialect, PythonDialect
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment
from repl_rl.kernel import KernelPool, KernelSource
from repl_rl.models import resolve_model
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup, make_extensions
from repl_rl.trajectory import Task, Trajectory

_NO_LIMIT = sys.maxsize


async def type_session(
    task: Task | str,
    text: str,
    *,
    dialect: Dialect | None = None,
    model: str = "nano",
    kernels: KernelSource | None = None,
    tools: Iterable[Any] = (),
    environment: Any = None,
    answer: Callable[[str], str] = lambda prompt: "",
    subcalls: SubcallsConfig | None = None,
) -> Trajectory:
    """The trajectory of typing `text` as the answer to a task or question, with `model`'s vocabulary.

    `dialect` is `python` unless one is given. Without `kernels`, a pool is opened for this session. `tools` and
    `environment` are what a config names or a trainer takes; if the environment asks a language model, as `rlm` does,
    `answer` answers, within the budgets of `subcalls`. Raises what `Rollout.many` raises.
    """
    prepare_environment()
    extensions = make_extensions(tools, environment=environment)
    stops = (dialect or PythonDialect()).stops
    vocabulary = load_vocabulary(resolve_model(model), stops)
    async with AsyncExitStack() as stack:
        if kernels is None:
            kernels = await stack.enter_async_context(KernelPool(1))
        setup = RolloutSetup(
            vocabulary,
            dialect or DialectConfig(),
            context_tokens=_NO_LIMIT,
            budget=BudgetConfig(line_tokens=_NO_LIMIT, lines=_NO_LIMIT, tokens=_NO_LIMIT, repeats=None),
            subcalls=subcalls or SubcallsConfig(),
            chat=False,
            extensions=extensions,
        )
        rollout = Rollout(ScriptedPolicy(vocabulary, text, answer), kernels, setup)
        [trajectory] = await rollout.many([Task("typed", task, "") if isinstance(task, str) else task])
    return trajectory


class ScriptedPolicy:
    """An engine without a model: each slot types `text`, turn by turn, and each sub-call gets `answer(prompt)`."""

    version = 0

    def __init__(self, vocabulary: Vocabulary, text: str, answer: Callable[[str], str] = lambda prompt: "") -> None:
        self.vocabulary = vocabulary
        self._text = text
        self._answer = answer

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[ScriptedSlot]:
        def script(prompt: str) -> tuple[str, bool]:
            return (self._answer(prompt), False) if is_subcall else (self._text, True)

        yield ScriptedSlot(self.vocabulary, script)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class ScriptedSlot:
    """Types what `script` makes of the prompt: a text, turn by turn, or else an answer that ends with itself."""

    def __init__(self, vocabulary: Vocabulary, script: Callable[[str], tuple[str, bool]]) -> None:
        """`script` says of its text whether that is one of turns."""
        self._vocabulary = vocabulary
        self._script = script
        self._turns: Iterator[str] | None = None

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """The next turn, whatever came before it, or the answer."""
        if self._turns is None:
            text, has_turns = self._script(self._vocabulary.decode(ids))
            if not has_turns:
                return typed_line(self._vocabulary, text, True, max_tokens)
            self._turns = iter(turns(text, self._vocabulary.stops))
        turn = next(self._turns, "")
        ends = not turn or turn[-1].encode() not in self._vocabulary.stops
        return typed_line(self._vocabulary, turn, ends, max_tokens)


def typed_line(vocabulary: Vocabulary, text: str, ends: bool, max_tokens: int) -> SampledLine:
    """`text` as an engine would have sampled it; with `ends`, the token that ends a turn follows."""
    ids = tuple(vocabulary.encode_output(text))
    finish = Finish.NEWLINE
    if ends:
        ids += (vocabulary.turn_end_id,)
        finish = Finish.EOS
    if len(ids) > max_tokens:
        ids = ids[:max_tokens]
        finish = Finish.LENGTH
    return SampledLine(ids, (0.0,) * len(ids), finish)


def turns(text: str, stops: bytes) -> list[str]:
    """`text` split after each character that ends a turn; nothing is dropped."""
    ends = "".join(re.escape(chr(stop)) for stop in stops)
    return re.findall(f"[^{ends}]*[{ends}]|[^{ends}]+", text)
