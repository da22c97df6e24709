"""Compare what a notebook holds with what its cells did on a new run, and name why they differ. Pure: runs no kernel.

Cells of one turn are compared together, because its error is recorded once. Where the `ipython` dialect shows its model
only the last echo of a run, that of the new run is compared.

Causes are named by rules that look at both texts and at the sources. They are heuristics, and meant to be read as such.
A cause read off the texts alone (an address, an order, a cut) says that nothing else differs. One read off the sources
(the clock, randomness, other processes, tools) says that the cell works with a value from there, directly or through
names of the session; whether that value made the difference is not checked.

Not covered: values that come through `eval`, `globals()`, files, or attributes set elsewhere; modules that use
randomness or the clock internally. Their differences are `other`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from repl_rl.dialect import Cell, CellRun
from repl_rl.dialect.ipython import echoed
from repl_rl.dialect.syntax import kind_of
from repl_rl.kernel.results import ExecResult, ExecStatus
from repl_rl.trajectory import LineKind
from repl_rl.utils.text import parsed

if TYPE_CHECKING:
    from nbformat import NotebookNode


class Cause(StrEnum):
    """What a difference comes from."""

    TIMEOUT = "timeout"
    """One of the two runs hit its time limit, here or in a cell whose names this one reads."""
    KILLED = "killed"
    """The interpreter died in this cell both times, having printed something else."""
    TRUNCATED = "truncated"
    """The record holds only the two ends of the output, and they are the same."""
    ADDRESS = "address"
    """Only memory addresses differ, or the cell works with `id` or `hash`."""
    ORDER_OF_SETS = "order of sets"
    """The same words in another order, around a set."""
    TIME = "time"
    RANDOMNESS = "randomness"
    PROCESSES = "processes"
    """The cell works with threads or processes, whose output may come at another moment."""
    TOOLS = "tools"
    """The cell calls a tool of the run, which a notebook does not have."""
    MEMORY = "memory"
    """One of the two ran out of memory. A forked session's limit counts only what it uses beyond its packages."""
    OTHER = "other"
    """Unexplained."""


EXPLAINED = frozenset(Cause) - {Cause.OTHER}


@dataclass(frozen=True, slots=True)
class CellOutputs:
    """The outputs of one cell, or of several in one turn: text, the exception's name, what was submitted."""

    text: str
    error_name: str | None = None
    answer: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """All of it as text, so that every difference is visible there."""
        name = "" if self.error_name is None else f"\n[{self.error_name}]"
        answer = "" if self.answer is None else f"\n[answer: {', '.join(self.answer)}]"
        return self.text + name + answer


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell with another output. `cell` is its index in the notebook, `lines` are indices into the trajectory's."""

    cell: int
    lines: tuple[int, ...]
    source: str
    expected: CellOutputs
    got: CellOutputs
    cause: Cause


@dataclass(frozen=True, slots=True)
class Replayed:
    """One notebook: how many cells ran and were compared, and what differed. `failure` says why it could not run."""

    name: str
    task_id: str = ""
    cells: int = 0
    differences: tuple[Difference, ...] = ()
    failure: str | None = None

    @property
    def is_equal(self) -> bool:
        return self.failure is None and not self.differences

    @property
    def is_explained(self) -> bool:
        """Equal, or every difference has a cause other than `other`."""
        return self.failure is None and all(difference.cause is not Cause.OTHER for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"is_equal": self.is_equal, "is_explained": self.is_explained}


def compared(name: str, notebook: NotebookNode, results: Mapping[int, ExecResult]) -> Replayed:
    """The result for a notebook whose cells did this, by their index; cells without a result were not reached."""
    metadata = notebook["metadata"]["repl_rl"]
    shows = str(metadata.get("shows", "output"))
    names = TaintedNames()
    differences: list[Difference] = []
    ran_indices = []
    for index, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code" and _metadata(cell).get("role") == "ran":
            ran_indices.append(index)
    unit: list[int] = []  # indices of cells that share their output
    cell_count = 0
    for index in ran_indices:
        unit.append(index)
        if _metadata(notebook["cells"][index]).get("shares_output") and index != ran_indices[-1]:
            continue
        cells = [notebook["cells"][number] for number in unit]
        cell_results = [results[number] for number in unit if number in results]
        cell_count += len(unit)
        difference = _difference(index, cells, cell_results, shows, names)
        if difference is not None:
            differences.append(difference)
        if len(cell_results) < len(unit) or cell_results[-1].state_lost:
            break  # no later cell was reached
        unit = []
    return Replayed(name, str(metadata.get("task_id", "")), cell_count, tuple(differences))


def _metadata(cell: NotebookNode) -> Mapping[str, Any]:
    """What the export noted about a cell."""
    metadata = cell["metadata"].get("repl_rl", {})
    return metadata if isinstance(metadata, Mapping) else {}


def _difference(
    index: int, cells: Sequence[NotebookNode], results: Sequence[ExecResult], shows: str, names: TaintedNames
) -> Difference | None:
    """The difference of cells that are compared together; `index` is that of the last one."""
    last = _metadata(cells[-1])
    expected = _recorded_outputs(cells)
    got = _new_outputs(cells, results, shows)

    causes: list[Cause] = []  # known about the turn without looking at its source
    if last.get("kind") == LineKind.TIMEOUT or any(result.status is ExecStatus.TIMEOUT for result in results):
        causes.append(Cause.TIMEOUT)
    if last.get("calls"):
        causes.append(Cause.TOOLS)
    works_with = frozenset[Cause]()
    for cell in cells:
        works_with |= names.take(cell["source"], causes)

    # Whether the interpreter died. An answer ends a rollout, whatever its cell does afterwards.
    went_down = last.get("kind") == LineKind.KILLED
    goes_down = any(result.state_lost for result in results) and last.get("kind") != LineKind.ANSWER
    # The record names one error for all cells of a turn.
    is_same_error = expected.error_name == got.error_name or len(cells) > 1
    is_same_output = expected.text == got.text and is_same_error and expected.answer == got.answer
    if is_same_output and went_down == goes_down:
        return None
    source = "\n".join(cell["source"] for cell in cells)
    if went_down and goes_down:
        cause = Cause.KILLED
    elif went_down or goes_down:
        cause = Cause.TIMEOUT if Cause.TIMEOUT in works_with else Cause.OTHER
    else:
        cause = cause_of(str(expected), str(got), works_with, source)
    return Difference(index, tuple(last.get("lines", ())), source, expected, got, cause)


def _recorded_outputs(cells: Sequence[NotebookNode]) -> CellOutputs:
    """What the notebook holds of cells that are compared together."""
    text = "".join(_text_of(cell["outputs"]) for cell in cells)
    error_name = None
    for output in cells[-1]["outputs"]:
        if output["output_type"] == "error":
            error_name = str(output["ename"])
    answer = _metadata(cells[-1]).get("answer")
    return CellOutputs(text, error_name, tuple(answer) if isinstance(answer, list) else None)


def _new_outputs(cells: Sequence[NotebookNode], results: Sequence[ExecResult], shows: str) -> CellOutputs:
    """What came of running them again, as far as they were reached."""
    texts = []
    error_name = None
    answer = None
    for cell, result in zip(cells, results, strict=False):
        texts.append(_text_of_run(cell, result, shows))
        if result.error_name is not None:
            error_name = result.error_name
        if result.answer is not None:
            answer = result.answer
    return CellOutputs("".join(texts), error_name, answer)


def _text_of_run(cell: NotebookNode, result: ExecResult, shows: str) -> str:
    """What the dialect would show of a new run."""
    if shows != "ipython":
        return result.output
    source = cell["source"]
    run = CellRun(Cell(source, kind_of(source)), result.output, result.told_message)
    return echoed(run)


def _text_of(outputs: Sequence[Any]) -> str:
    """The texts of the outputs in order, without `Out[n]`. A traceback is already among them as stream text."""
    texts: list[str] = []
    for output in outputs:
        if output["output_type"] == "stream":
            texts.append(str(output["text"]))
        elif "text/plain" in output.get("data", {}):  # images are not compared
            texts.append(f"{output['data']['text/plain']}\n")
    return "".join(texts)


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_CUT = re.compile(r"\n\.\.\. \[\d+ (?:characters|bytes) left out\] \.\.\.\n")
_WORD = re.compile(r"\w+|[^\w\s]")
_SET = re.compile(r"\b(?:frozen)?set\b|\{")
_BY_SOURCE = (Cause.TIMEOUT, Cause.TIME, Cause.RANDOMNESS, Cause.ADDRESS, Cause.PROCESSES, Cause.TOOLS)
"""Causes read off the sources; the first one that applies is chosen."""


def cause_of(expected: str, got: str, works_with: frozenset[Cause], source: str) -> Cause:
    """The cause of the difference between two unequal texts. `source` is the cell's."""
    if Cause.TIMEOUT in works_with:
        return Cause.TIMEOUT
    expected = _ADDRESS.sub("0x...", expected)
    got = _ADDRESS.sub("0x...", got)
    if expected == got:
        return Cause.ADDRESS
    cut = _CUT.search(expected)
    if cut is not None:
        # A kernel keeps only the beginning of long texts: `got` may itself have been cut.
        head = expected[: cut.start()]
        tail = expected[cut.end() :]
        if len(got) >= len(head) + len(tail) and got.startswith(head) and got.endswith(tail):
            return Cause.TRUNCATED
    has_set = _SET.search(source) is not None or "{" in got
    if has_set and sorted(_WORD.findall(expected)) == sorted(_WORD.findall(got)):
        return Cause.ORDER_OF_SETS
    if "MemoryError" in expected or "MemoryError" in got:
        return Cause.MEMORY
    for cause in _BY_SOURCE:
        if cause in works_with:
            return cause
    return Cause.OTHER


_WORDS = {
    Cause.TIME: "time datetime timeit calendar sched now today utcnow perf_counter st_mtime",
    Cause.RANDOMNESS: "random secrets uuid tempfile urandom getrandom default_rng",
    Cause.PROCESSES: "subprocess threading multiprocessing concurrent asyncio _thread system popen fork Popen getpid",
}
"""Modules and attributes."""
_BUILTINS = {"id": Cause.ADDRESS, "hash": Cause.ADDRESS}


@dataclass(slots=True)
class TaintedNames:
    """What the names of a session depend on, cell by cell.

    An import of `random`, `time` and similar modules marks the names that it binds. A cell that reads a marked name
    marks every name that it binds or passes to a call, and `_` if it echoes. A cell that reads none clears the names
    that it binds.
    """

    _marked: dict[str, frozenset[Cause]] = field(default_factory=dict)

    def take(self, source: str, also: Iterable[Cause] = ()) -> frozenset[Cause]:
        """The causes that a cell works with, including `also`, those known beforehand."""
        tree = parsed(source)
        if tree is None:
            return frozenset(also)
        nodes = list(ast.walk(tree))
        for name, cause in _imports(nodes):
            self._marked[name] = frozenset({cause})

        read_names: set[str] = set()
        bound_names: set[str] = set()
        attributes: list[str] = []
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read_names.add(node.id)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound_names.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound_names.add(node.name)
            elif isinstance(node, ast.Attribute):
                attributes.append(node.attr)
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            bound_names.add("_")  # where an interpreter keeps what it echoes

        causes = frozenset(also) | frozenset(_causes_of(attributes))
        for name in read_names:
            causes |= self._marked.get(name, frozenset())
            if name in _BUILTINS:
                causes |= {_BUILTINS[name]}

        if not causes:
            for name in bound_names:
                self._marked.pop(name, None)
        else:
            for name in bound_names.union(_changed_names(nodes)):
                self._marked[name] = self._marked.get(name, frozenset()) | causes
        return causes


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, Cause]]:
    """Names that imports bind to something that depends on a cause."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (getattr(node, "module", None) or "").split(".")
            for alias in node.names:
                imported = alias.name.split(".")
                name = alias.asname or imported[0]  # `import os.path` binds os
                for cause in _causes_of([*module, *imported]):
                    yield name, cause


def _causes_of(words: Sequence[str]) -> list[Cause]:
    """The causes that modules or attributes of these names stand for."""
    return [cause for cause, names in _WORDS.items() if not set(names.split()).isdisjoint(words)]


def _changed_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names whose values a call, a method, or an assignment to a subscript or attribute may change."""
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Call):
            targets = list(node.args)
            if isinstance(node.func, ast.Attribute):
                targets.append(node.func.value)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            targets = [node.value]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
