"""Text typed into a dialect's reader, with and without kernels behind it: shared by the tests of the dialects."""

import ast
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st

from repl_rl.dialect import Cell, Dialect, Reader, Turn
from repl_rl.kernel import KernelSource
from repl_rl.rollout.execute import TrajectoryKernel, TurnResult, run_turn

FOLDER = Path(__file__).parent
Splits = st.lists(st.integers(0, 400), max_size=8)


def sessions(name: str) -> dict[str, list[str]]:
    """The lines of each session of a file by its name. Escapes in the file are those of a Python literal."""
    written = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in f"\n{written}".rstrip("\n").split("\n=== ")[1:]]
    return {name: ast.literal_eval(f'"""{lines}\n"""').removesuffix("\n").split("\n") for name, _, lines in parts}


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`data` cut at these offsets."""
    offsets = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in pairwise(offsets)] or [b""]


def turns_of(text: str, stops: str, take: Callable[[int], int] = lambda left: 0) -> list[str]:
    """`text` as turns that end after a stop, or `take(what is left)` characters later: typed ahead."""
    turns: list[str] = []
    while text:
        stop = next((index for index, character in enumerate(text) if character in stops), len(text) - 1) + 1
        end = stop + take(len(text) - stop)
        if not any(character in stops for character in text[end:]):
            end = len(text)
        turns.append(text[:end])
        text = text[end:]
    return turns


def read_all(reader: Reader, turns: Sequence[str | bytes], ends: bool = False) -> list[Turn]:
    """All turns; with `ends`, the last one ends with the end of the text."""
    return [reader.read(turn, ends and index + 1 == len(turns)) for index, turn in enumerate(turns)]


def cells_of(reader: Reader, turns: Sequence[str | bytes], ends: bool = False) -> list[Cell]:
    return [cell for turn in read_all(reader, turns, ends) for cell in turn.cells]


def assert_texts_are_the_bytes(reader: Reader, data: bytes, cuts: Iterable[int], ends: bool) -> None:
    """Whatever is typed, and however it is cut into turns: nothing raises, and no text is lost."""
    turns = read_all(reader, pieces_of(data, cuts), ends)
    assert "".join(turn.text for turn in turns) + reader.flush() == data.decode("utf-8", "replace")
    for turn in turns:
        assert "".join(part.text for part in reader.show((), goes_on=True)) is not None
        assert all(cell.source or cell.refusal for cell in turn.cells)


async def talk(
    kernels: KernelSource, dialect: Dialect, turns: Sequence[str], ends: bool = False
) -> tuple[str, list[TurnResult]]:
    """A whole session as it reads, up to the turn that ends it, and what each turn did."""
    text, rans = "", []
    async with AsyncExitStack() as stack:
        reader = dialect.reader()
        interpreter = TrajectoryKernel(kernels, stack, setup=[dialect.setup])
        for index, typed in enumerate(turns):
            ran = await run_turn(interpreter, reader.read(typed, ends and index + 1 == len(turns)))
            rans.append(ran)
            text += typed + "".join(part.text for part in reader.show(ran.cells, goes_on=ran.stop is None))
            if ran.stop is not None:
                break
    return text, rans
