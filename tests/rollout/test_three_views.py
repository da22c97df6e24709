"""What stands in the sequence, what the kernel ran and what the reward saw are one thing, whatever ids are sampled.

The real line loop over vocabularies of all kinds, and the events that it tells. The policy samples ids that hypothesis
chose, and the kernel runs nothing of them; then examples of each edge, with an interpreter.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from exactness import trajectory_in
from hypothesis import given
from hypothesis import strategies as st
from kernel_fakes import FakeKernelPool
from scripted import FakeEngine, rollout_of
from vocabularies import KINDS

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import PythonReader
from repl_rl.engine import Finish, SampledLine, Vocabulary
from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, KernelSource, Limits
from repl_rl.trajectory import StopReason, Task, Trajectory

TASK = Task("t1", "What is 6 * 7?", "42")
CONTEXT_TOKENS = 4096
PROMPTS = (">>>", "...")


class TypingSlot(FakeEngine):
    """Samples `ids` one after another and cuts them into lines as an engine does; the end of text comes after them.

    Its logprobs count: -1/64, -2/64 and so on. `given` keeps what it was handed.
    """

    def __init__(self, vocabulary: Vocabulary, ids: Sequence[int]) -> None:
        self.given: list[tuple[int, ...]] = []
        self.sampled: list[SampledLine] = []
        self.vocabulary = vocabulary
        self._ids = iter([*ids, min(vocabulary.eos_ids)])
        self._count = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self.given.append(tuple(ids))
        line = list(self._line(max_tokens))
        self._count += len(line)
        logprobs = tuple(-(self._count - len(line) + nth) / 64 for nth in range(1, len(line) + 1))
        self.sampled.append(SampledLine(tuple(line), logprobs, self._finish(line[-1])))
        return self.sampled[-1]

    def _line(self, max_tokens: int) -> Iterator[int]:
        for index, _ in zip(self._ids, range(max_tokens), strict=False):
            yield index
            if self._finish(index) is not Finish.LENGTH:
                return

    def _finish(self, last: int) -> Finish:
        if last in self.vocabulary.eos_ids:
            return Finish.EOS
        return Finish.NEWLINE if last in self.vocabulary.newline_ids else Finish.LENGTH


class RecordingKernels:
    """Runs nothing: keeps the sources of the one session that it gives and answers with `results` in turn."""

    def __init__(self, results: Iterable[ExecResult | None]) -> None:
        self.sources: list[str] = []
        self._results = cycle(results)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[RecordingKernels]:
        yield self

    async def execute(self, source: str) -> ExecResult:
        result = next(self._results)
        self.sources.append(source)
        if result is None:
            raise KernelDiedError("the connection broke")
        return result


OK = ExecResult(ExecStatus.OK)
RESULTS = (
    OK,
    ExecResult(ExecStatus.OK, output="42\n"),
    ExecResult(ExecStatus.OK, output="no newline, é€😀, <|im_end|>"),
    ExecResult(ExecStatus.ERROR, output="NameError\n", error_name="NameError"),
    ExecResult(ExecStatus.ERROR, error_name="SyntaxError", compiled=False),
)
LAST_RESULTS = (ExecResult(ExecStatus.OK, answer=("42",)), ExecResult(ExecStatus.KILLED), None)


async def roll(
    vocabulary: Vocabulary, ids: Sequence[int], kernels: KernelSource, budget: BudgetConfig
) -> tuple[Trajectory, TypingSlot]:
    slot = TypingSlot(vocabulary, ids)
    rollout = rollout_of(slot, kernels, context_tokens=CONTEXT_TOKENS, budget=budget, chat=False)
    return trajectory_in([event async for event in rollout.stream(TASK)]), slot


def typed_bytes(vocabulary: Vocabulary, slot: TypingSlot) -> list[bytes]:
    """The bytes of each turn; the end of text is none."""
    return [vocabulary.bytes_of(line.ids[:-1] if line.finish is Finish.EOS else line.ids) for line in slot.sampled]


def assert_the_ids_are_exact(vocabulary: Vocabulary, trajectory: Trajectory, slot: TypingSlot) -> None:
    """Each line stands in the sequence as it was sampled, asked for with all that stands before it, outputs masked."""
    lines, ids = trajectory.lines, trajectory.completion_ids
    assert len(ids) == len(trajectory.sampled_mask) == len(trajectory.logprobs)
    assert slot.given == [trajectory.prompt_ids + ids[: line.start] for line in lines]
    assert [ids[line.start : line.end] for line in lines] == [line.ids for line in slot.sampled]
    assert [trajectory.logprobs[line.start : line.end] for line in lines] == [line.logprobs for line in slot.sampled]
    assert [ids[line.end : after.start] for line, after in pairwise(lines)] == [
        vocabulary.encode_output(line.output) for line in lines[:-1]
    ]
    covered = {index for line in lines for index in range(line.start, line.end)}
    assert trajectory.sampled_mask == tuple(index in covered for index in range(len(ids)))
    assert all(trajectory.logprobs[index] == 0.0 for index in range(len(ids)) if index not in covered)


def assert_the_texts_are_the_bytes(trajectory: Trajectory, turns: Sequence[bytes]) -> None:
    texts = "".join(line.text for line in trajectory.lines)
    assert texts == b"".join(turns).decode("utf-8", "replace")


def assert_prompts_stand_behind_newlines_only(trajectory: Trajectory, turns: Sequence[bytes]) -> None:
    shown = [line.output.endswith(PROMPTS) for line in trajectory.lines[:-1]]
    assert shown == [turn.endswith(b"\n") for turn in turns[:-1]]


def input_of(turns: Sequence[bytes]) -> str:
    """What the interpreter reads, without the space behind a prompt. In bytes, unlike the code under test."""
    read = b""
    for turn in turns:
        read += turn.removeprefix(b" ") if not read or read.endswith(b"\n") else turn
    return read.decode("utf-8", "replace")


def assert_the_sources_are_what_was_typed(
    trajectory: Trajectory, turns: Sequence[bytes], sources: Sequence[str], last: Finish
) -> None:
    """The cells are those of the whole input read at once, and their lines are lines of it, in order."""
    ends, is_overlong = last is Finish.EOS, last is Finish.LENGTH
    read = input_of(turns[:-1] if is_overlong else turns)
    cells = [cell.source for cell in PythonReader().read(f" {read}", end_of_input=ends).cells]
    assert sources == (cells if trajectory.stop_reason in RAN_ALL else cells[: len(sources)])
    left = iter([*(line.rstrip("\r") for line in read.split("\n")), ""])
    assert all(any(line == other for other in left) for source in sources for line in source.split("\n"))


RAN_ALL = ("eos", "max_lines", "line_tokens", "max_tokens", "context")
SNIPPETS = [json.loads(line) for line in (Path(__file__).parent / "snippets.jsonl").read_text("utf-8").splitlines()]


@cache
def sampled_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Runs of ids: newlines, parts of characters, special tokens, code, any token, a row behind the last token."""
    vocabulary = KINDS[kind]()
    known = vocabulary.token_bytes
    halves = [index for index, data in enumerate(known) if "\ufffd" in data.decode("utf-8", "replace")]
    special = sorted(set(vocabulary.tokenizer.added_tokens_decoder) - vocabulary.eos_ids)
    runs = [
        st.sampled_from(sorted(vocabulary.newline_ids)).map(lambda index: (index,)),
        st.sampled_from(halves).map(lambda index: (index,)),
        st.integers(0, len(known)).map(lambda index: (index,)),
        st.sampled_from(SNIPPETS).map(vocabulary.encode_output),
        *([st.sampled_from(special).map(lambda index: (index,))] if special else []),
    ]
    return st.lists(st.one_of(runs), min_size=6, max_size=30).map(
        lambda found: [index for run in found for index in run]
    )


AMPLE = BudgetConfig(line_tokens=64, lines=100, tokens=1000)
BUDGETS = st.just(AMPLE) | st.builds(
    BudgetConfig, line_tokens=st.integers(1, 30), lines=st.integers(1, 30), tokens=st.integers(1, 400)
)


MARKS = {"gemma": "slow", "qwen36": "more"}
"""Vocabularies that take long."""


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=[getattr(pytest.mark, MARKS[name])] if name in MARKS else []) for name in KINDS]
)
@given(data=st.data())
def test_three_views_are_one(kind: str, data: st.DataObject) -> None:
    vocabulary = KINDS[kind]()
    ids = data.draw(sampled_ids(kind))
    results = data.draw(st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4))
    last = data.draw(st.lists(st.sampled_from(LAST_RESULTS), max_size=1))
    kernels = RecordingKernels([*results * 4, *last] if last else results)
    trajectory, slot = asyncio.run(roll(vocabulary, ids, kernels, data.draw(BUDGETS)))
    turns = typed_bytes(vocabulary, slot)
    assert_the_ids_are_exact(vocabulary, trajectory, slot)
    assert_the_texts_are_the_bytes(trajectory, turns)
    assert_prompts_stand_behind_newlines_only(trajectory, turns)
    assert_the_sources_are_what_was_typed(trajectory, turns, kernels.sources, slot.sampled[-1].finish)


@pytest.fixture(scope="module")
def gpt2() -> Vocabulary:
    return vocabularies.gpt2_like()


def ids_of(vocabulary: Vocabulary, *tokens: bytes | str) -> list[int]:
    """The ids of tokens by their bytes; a string is the name of an added token, or split into single bytes."""
    known = {data: index for index, data in enumerate(vocabulary.token_bytes)}
    added = {token.content: index for index, token in vocabulary.tokenizer.added_tokens_decoder.items()}
    found: list[int] = []
    for token in tokens:
        if isinstance(token, bytes):
            found.append(known[token])
        else:
            found += [added[token]] if token in added else [known[bytes([byte])] for byte in token.encode()]
    return found


async def typed_into(kernels: KernelSource, vocabulary: Vocabulary, *tokens: bytes | str) -> Trajectory:
    """The trajectory of a policy that samples these tokens; the ids and the texts are checked."""
    trajectory, slot = await roll(vocabulary, ids_of(vocabulary, *tokens), kernels, AMPLE)
    assert_the_ids_are_exact(vocabulary, trajectory, slot)
    assert_the_texts_are_the_bytes(trajectory, typed_bytes(vocabulary, slot))
    return trajectory


def type_tokens(vocabulary: Vocabulary, *tokens: bytes | str) -> Trajectory:
    """The same with the interpreter's real core."""
    return asyncio.run(typed_into(FakeKernelPool(), vocabulary, *tokens))


def shown(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(line.text, line.output) for line in trajectory.lines]


EDGES = [json.loads(line) for line in (Path(__file__).parent / "edges.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge["about"])
def test_edges(gpt2: Vocabulary, edge: dict[str, Any]) -> None:
    """Tokens of several bytes are written as `bytes` in Latin-1, one character each; other text is single bytes."""
    tokens = [token if isinstance(token, str) else token["bytes"].encode("latin-1") for token in edge["tokens"]]
    trajectory = type_tokens(gpt2, *tokens)
    assert [[line.text, line.output, line.kind] for line in trajectory.lines] == edge["lines"]
    assert trajectory.stop_reason == edge["stop"]


@pytest.mark.parametrize("lines", [1, 2])
def test_half_a_character_at_the_end_stands_in_the_last_line(gpt2: Vocabulary, lines: int) -> None:
    """The budget ends the trajectory behind its newline, or the end of text comes after it: the bytes are not lost."""
    ids = ids_of(gpt2, " 1", b"\n\xe2")
    budget = AMPLE.model_copy(update={"lines": lines})
    trajectory, slot = asyncio.run(roll(gpt2, ids, FakeKernelPool(), budget))
    assert "".join(line.text for line in trajectory.lines) == " 1\n�"
    assert [line.text for line in trajectory.lines] == ([" 1\n�"] if lines == 1 else [" 1\n", "�"])
    assert_the_ids_are_exact(gpt2, trajectory, slot)


def test_half_a_character_under_a_broken_kernel_stands_in_its_line(gpt2: Vocabulary) -> None:
    ids = ids_of(gpt2, " 1\n", " 2", b"\n\xe2")
    trajectory, _ = asyncio.run(roll(gpt2, ids, RecordingKernels([OK, None]), AMPLE))
    assert trajectory.stop_reason is StopReason.ABORTED
    assert [line.text for line in trajectory.lines] == [" 1\n", " 2\n�"]


def test_a_real_kernel_takes_all_of_it_and_lives(gpt2: Vocabulary) -> None:
    nul, half = [b"\x00\n", b"\x00\n"], [b"\n\xe2", b"\xff\n"]
    odd = [" '", b"\xff", "'\n", " \x1b\x07\x7f\n", " x = 1\r", "x\n", " # ", *half, " '\u2028\ufeff\U0010ffff'\n"]
    typed = [" x = 1", *nul, *odd, " f(", b"\n\n", ")\n", " 6*7\n"]

    async def go() -> Trajectory:
        async with KernelPool(1, Limits(line_s=60)) as pool:
            return await typed_into(pool, gpt2, *typed)

    real, fake = asyncio.run(go()), type_tokens(gpt2, *typed)
    assert shown(real) == shown(fake)
    assert [line.kind for line in real.lines] == [line.kind for line in fake.lines]
    assert shown(real)[-2] == (" 6*7\n", "42\n>>>")
    assert real.lines[0].output == "SyntaxError: source code string cannot contain null bytes\n>>>"
