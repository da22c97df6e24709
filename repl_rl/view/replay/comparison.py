"""What a notebook holds beside what its cells did when they ran again. Pure: notebooks and executions in, results out.

Cells of one turn that share what they showed are compared together. What a dialect tells its model of a run (the value
of a call, the last line of a traceback, the last echo) is made of the new run in the same way before it is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from repl_rl.dialect import Cell, CellRun
from repl_rl.dialect.ipython import echoed
from repl_rl.dialect.syntax import kind_of
from repl_rl.trajectory import LineKind
from repl_rl.view.replay.causes import Cause, Session, cause_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from repl_rl.view.replay.kernels import Execution


@dataclass(frozen=True, slots=True)
class Seen:
    """What showed in one cell, or in several of one turn: text, the exception's name, what was submitted."""

    text: str
    error_name: str | None = None
    answer: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """All of it as text: how it differs shows in there."""
        name = "" if self.error_name is None else f"\n[{self.error_name}]"
        return self.text + name + ("" if self.answer is None else f"\n[answer: {', '.join(self.answer)}]")


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell that showed something else. `cell` is its place in the notebook, `lines` those of the trajectory."""

    cell: int
    lines: tuple[int, ...]
    source: str
    expected: Seen
    got: Seen
    cause: Cause


@dataclass(frozen=True, slots=True)
class Replayed:
    """One notebook: how many cells ran and were compared, and what differed. `failure` says why nothing could be."""

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
        """Equal, or different for reasons that have a name."""
        return self.failure is None and all(each.cause is not Cause.OTHER for each in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"is_equal": self.is_equal, "is_explained": self.is_explained}


def compared(name: str, notebook: NotebookNode, executions: Mapping[int, Execution]) -> Replayed:
    """The result for a notebook whose code cells did this; those without an execution were not reached."""
    about = notebook["metadata"]["repl_rl"]
    session = Session()
    differences: list[Difference] = []
    cells = 0
    for unit in _units(notebook):
        ran = [executions[place] for place in unit if place in executions]
        cells += len(unit)
        told = [notebook["cells"][place] for place in unit]
        difference = _difference(unit, told, ran, str(about.get("shows", "output")), session)
        differences += [difference] if difference else []
        if len(ran) < len(unit) or ran[-1].status == "killed":
            break
    return Replayed(name, str(about.get("task_id", "")), cells, tuple(differences))


def _units(notebook: NotebookNode) -> Iterator[list[int]]:
    """The places of code cells that ran, those together that share what they showed."""
    unit: list[int] = []
    for place, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code" and _about(cell).get("role") == "ran":
            unit.append(place)
            if not _about(cell).get("shares_output"):
                yield unit
                unit = []
    if unit:
        yield unit


def _about(cell: NotebookNode) -> Mapping[str, Any]:
    about = cell["metadata"].get("repl_rl", {})
    return about if isinstance(about, Mapping) else {}


def _difference(
    unit: Sequence[int], cells: Sequence[NotebookNode], ran: Sequence[Execution], shows: str, session: Session
) -> Difference | None:
    last = _about(cells[-1])
    source = "\n".join(cell["source"] for cell in cells)
    expected = _recorded(cells)
    got = _again(cells, ran, shows)
    works_with = frozenset[Cause]().union(*(session.take(cell["source"], _known(last, ran)) for cell in cells))
    if _is_same(expected, got, shows, len(cells)) and _end(last, ran) == (last.get("kind") == LineKind.KILLED):
        return None
    cause = _cause(expected, got, works_with, source, (last.get("kind") == LineKind.KILLED, _end(last, ran)))
    return Difference(unit[-1], tuple(last.get("lines", ())), source, expected, got, cause)


def _known(last: Mapping[str, Any], ran: Sequence[Execution]) -> Iterator[Cause]:
    """What is known of a turn without a look at its source."""
    if last.get("kind") == LineKind.TIMEOUT or any(execution.status == "timeout" for execution in ran):
        yield Cause.TIMEOUT
    if last.get("calls"):
        yield Cause.TOOLS


def _end(last: Mapping[str, Any], ran: Sequence[Execution]) -> bool:
    """Whether the interpreter went down. An answer ends a rollout whatever its cell does then."""
    return any(execution.status == "killed" for execution in ran) and last.get("kind") != LineKind.ANSWER


def _cause(expected: Seen, got: Seen, works_with: frozenset[Cause], source: str, went_down: tuple[bool, bool]) -> Cause:
    match went_down:
        case (True, True):
            return Cause.KILLED
        case (False, True):
            return Cause.OTHER
        case (True, False):
            return Cause.TIMEOUT if Cause.TIMEOUT in works_with else Cause.OTHER
    return cause_of(str(expected), str(got), works_with, source)


def _is_same(expected: Seen, got: Seen, shows: str, cells: int) -> bool:
    if expected.answer != got.answer:
        return False
    if expected.error_name != got.error_name and cells == 1:
        return False
    if shows == "frames":  # of a dialect that is not ours: what it puts around results is unknown
        return got.text in expected.text
    return expected.text == got.text


def _recorded(cells: Sequence[NotebookNode]) -> Seen:
    text = "".join(_shown(cell["outputs"]) for cell in cells)
    answer = _about(cells[-1]).get("answer")
    return Seen(text, _error_name(cells[-1]["outputs"]), tuple(answer) if isinstance(answer, list) else None)


def _again(cells: Sequence[NotebookNode], ran: Sequence[Execution], shows: str) -> Seen:
    texts = [_told(cell, execution, shows) for cell, execution in zip(cells, ran, strict=False)]
    names = [name for execution in ran if (name := _error_name(execution.outputs))]
    answers = [execution.answer for execution in ran if execution.answer is not None]
    return Seen("".join(texts), names[-1] if names else None, answers[-1] if answers else None)


def _told(cell: NotebookNode, execution: Execution, shows: str) -> str:
    """What the dialect makes of a new run."""
    text = _shown(execution.outputs)
    if shows == "block":
        return text if not text or text.endswith("\n") else f"{text}\n"
    if shows not in ("result", "ipython", "frames"):
        return text
    message = execution.error_message
    if execution.status == "timeout":
        message = f"{message or 'KeyboardInterrupt'}: it ran out of time"
    run = CellRun(Cell(cell["source"], kind_of(cell["source"])), text, message)
    return echoed(run) if shows == "ipython" else run.result


def _shown(outputs: Sequence[Any]) -> str:
    """Texts of outputs in their order, the numbers of values aside. An error's traceback has gone out as text."""
    texts: list[str] = []
    for output in outputs:
        if output["output_type"] == "stream":
            texts.append(str(output["text"]))
        elif "data" in output:
            texts.append(f"{output['data'].get('text/plain', '')}\n")
    return "".join(texts)


def _error_name(outputs: Sequence[Any]) -> str | None:
    names = [str(output["ename"]) for output in outputs if output["output_type"] == "error"]
    return names[-1] if names else None
