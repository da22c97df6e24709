"""A trajectory as a Jupyter notebook (nbformat 4): run with our kernelspec, it shows again what the session showed.

It begins with a heading (the task, how it ended, the prompt). A code cell follows for each cell that the kernel ran,
with the exact source, and outputs in the form in which our kernel sends them: everything that the terminal showed as
stream `stdout`, tracebacks included, then an `error` with the exception's name. Comments become cells of their own,
because a comment before a statement would shift the line numbers of its traceback. What never ran is kept in raw cells,
which no notebook executes, with the reason. Execution counts are those of a run from top to bottom.

`metadata.repl_rl` of the notebook and of each cell hold what Jupyter has no field for; docs/notebooks.md lists it.
The same trajectory gives the same notebook, byte for byte. What a model wrote is escaped in markdown.

Not covered: `%magic` and `!command` of the `ipython` dialect, which our kernel does not know; tools of the run.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_rl.dialect import truncate_middle
from repl_rl.errors import ConfigError, RunError
from repl_rl.files import replace_file
from repl_rl.trajectory import Line, LineKind, Trajectory
from repl_rl.utils.text import visible, whole
from repl_rl.view.session_cells import Role, SessionCell, SessionText, session_text
from repl_rl.view.transcript import ending
from repl_rl.view.words import fenced, status

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from repl_rl.dialect import Dialect

FORMAT = 1
"""Version of the layout of `metadata.repl_rl`."""
_KERNELSPEC = {"name": "repl_rl", "display_name": "Python (repl_rl)", "language": "python"}
_LANGUAGE = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}
_THOUGHTS = ("code", "markdown")
_PROMPT_CHARS = 4000
_MARKDOWN = re.compile(r"[&<>\\`*_{}\[\]$~|#!]|^[-+=]|^\d+(?=[.)])|(?<=\n)[-+=]|(?<=\n)\d+(?=[.)])")


def to_notebook(
    trajectory: Trajectory,
    path: Path | str | None = None,
    *,
    thoughts: str = "code",
    dialect: str | Dialect | None = None,
    trust: bool = False,
) -> NotebookNode:
    """The trajectory as a notebook, written to `path` if one is given.

    `thoughts` says what comments become: "code" or "markdown". `dialect` is a name or an object; without one it is the
    trajectory's own, or else inferred from the transcript. Code that the trajectory names as its dialect is imported
    only with `trust`, or if it has been imported before. Raises ConfigError for any other value and for a dialect that
    can't be used here, RunError if the file can't be written.
    """
    import nbformat

    if thoughts not in _THOUGHTS:
        raise ConfigError(f"thoughts={thoughts!r}: take one of {', '.join(_THOUGHTS)}")
    text = session_text(trajectory, dialect, trust=trust)
    cells = [_heading(trajectory)]
    cells += [_notebook_cell(trajectory, cell, text.shows, thoughts) for cell in text.cells]
    count = 0
    for index, cell in enumerate(cells):
        # nbformat would draw ids at random, and the same trajectory gives the same notebook.
        cell["id"] = f"cell-{index}"
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
    notebook = nbformat.v4.new_notebook(
        cells=cells,
        metadata={"kernelspec": _KERNELSPEC, "language_info": _LANGUAGE, "repl_rl": _about(trajectory, text)},
    )
    nbformat.validate(notebook)
    if path is not None:
        write_notebook(notebook, Path(path))
    return notebook


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write it to `path`, in a folder that is made if need be. Raises RunError if that can't be done."""
    import nbformat

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, nbformat.writes(notebook) + "\n")
    except OSError as error:
        raise RunError(f"{path} can't be written: {error.strerror}; give another place") from error


def _notebook_cell(trajectory: Trajectory, cell: SessionCell, shows: str, thoughts: str) -> NotebookNode:
    from nbformat import v4

    metadata = {"repl_rl": _about_cell(trajectory, cell)}
    if cell.role is Role.RAN:
        return v4.new_code_cell(cell.text, outputs=_outputs(cell, shows), metadata=metadata)
    if cell.role is Role.NOT_RUN:
        return v4.new_raw_cell(f"[not run: {cell.note}]\n{cell.text}", metadata=metadata)
    if cell.role is Role.THOUGHT and thoughts == "code":
        return v4.new_code_cell(cell.text, metadata=metadata)
    lines = [line.strip() for line in cell.text.split("\n")]
    if cell.role is Role.THOUGHT:
        lines = [line.lstrip("#").strip() for line in lines]
    return v4.new_markdown_cell("  \n".join(map(plain_markdown, lines)), metadata=metadata)


def _outputs(cell: SessionCell, shows: str) -> list[NotebookNode]:
    from nbformat import v4

    stream = cell.output
    value = None
    if shows == "ipython":  # what was printed, and the value after `Out[number]: `
        printed, mark, shown = cell.output.rpartition(f"Out[{cell.number}]: ")
        if mark:
            stream = printed
            value = shown.removesuffix("\n")
    outputs = []
    if stream:
        outputs.append(v4.new_output("stream", name="stdout", text=stream))
    if value is not None:
        outputs.append(v4.new_output("execute_result", {"text/plain": value}, execution_count=cell.number))
    for image in cell.images:
        outputs.append(v4.new_output("display_data", {"image/png": base64.b64encode(image).decode()}))
    if cell.error_name:
        name = whole(cell.error_name)
        outputs.append(v4.new_output("error", ename=name, evalue=value_of(name, cell.output), traceback=[]))
    return outputs


def value_of(name: str, shown: str) -> str:
    """An exception's `evalue`, read off the last line that was shown."""
    last = shown.splitlines()[-1] if shown else ""
    head, _, rest = last.partition(": ")
    return rest if head.rpartition(".")[2] == name else last


def _about(trajectory: Trajectory, text: SessionText) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "task_id": whole(trajectory.task_id),
        "dialect": text.dialect,
        "shows": text.shows,
        "setup": text.setup,
        "stop_reason": str(trajectory.stop_reason),
        "answer": _answer(trajectory),
        "outcome_reward": _finite(trajectory.outcome_reward),
        "environment_reward": _finite(trajectory.environment_reward),
        "duration_s": _finite(trajectory.duration_s),
        "version": trajectory.version,
        "prompt_tokens": len(trajectory.prompt_ids),
        "completion_tokens": len(trajectory.completion_ids),
        "error": None if trajectory.error is None else whole(trajectory.error),
    }


def _about_cell(trajectory: Trajectory, cell: SessionCell) -> dict[str, Any]:
    lines = [trajectory.lines[index] for index in cell.lines]
    last = lines[-1]
    rewards = [line.reward for line in lines if line.reward is not None]
    logprobs: list[float] = []
    for line in lines:
        logprobs += trajectory.logprobs[line.start : line.end]
    about: dict[str, Any] = {
        "role": str(cell.role),
        "lines": list(cell.lines),
        "kind": str(last.kind),
        "reward": _finite(math.fsum(rewards)) if rewards else None,
        "advantage": _mean_advantage(lines),
        "logprob": _finite(math.fsum(logprobs)),
        "tokens": [[line.start, line.end] for line in lines],
        "duration_s": _finite(math.fsum(line.duration_s for line in lines)),
    }
    if cell.role is Role.RAN:
        about["number"] = cell.number
        about["error_name"] = cell.error_name and whole(cell.error_name)
        if cell.shares_output:
            about["shares_output"] = True
        if last.calls:
            about["calls"] = [whole(call.name) for call in last.calls]
        if last.kind is LineKind.ANSWER and not cell.shares_output:
            about["answer"] = _answer(trajectory)
    if cell.note:
        about["note"] = cell.note
    return about


def _mean_advantage(lines: Sequence[Line]) -> float | None:
    """The mean over the tokens of those lines that have an advantage; None if none has one."""
    tokens = 0
    products = []
    for line in lines:
        if line.advantage is not None:
            count = line.end - line.start
            tokens += count
            products.append(line.advantage * count)
    if not products:
        return None
    return _finite(math.fsum(products) / tokens)


def _answer(trajectory: Trajectory) -> list[str] | None:
    if trajectory.answer is None:
        return None
    return [whole(value) for value in trajectory.answer]


def _finite(value: float | None) -> float | None:
    """`value`, or None where it is not finite: JSON has no infinities."""
    return value if value is not None and math.isfinite(value) else None


def _heading(trajectory: Trajectory) -> NotebookNode:
    from nbformat import v4

    parts = [f"# {plain_markdown(trajectory.task_id)}"]
    if trajectory.question:
        lines = trajectory.question.split("\n")
        parts.append("  \n".join(map(plain_markdown, lines)))
    parts.append(plain_markdown(f"{status(trajectory)}, {ending(trajectory)}"))
    prompt = visible(truncate_middle(trajectory.prompt, _PROMPT_CHARS))
    parts.append(f"The prompt:\n\n{fenced(prompt, 'text')}")
    return v4.new_markdown_cell("\n\n".join(parts), metadata={"repl_rl": {"role": "heading"}})


def plain_markdown(text: str) -> str:
    """`text` as markdown that shows it literally: none of it becomes a tag, a link, a formula or a list."""

    def escape(match: re.Match[str]) -> str:
        special = match[0]  # one character, or a number, which is no list once its first digit is escaped
        return f"&#{ord(special[0])};{special[1:]}"

    return _MARKDOWN.sub(escape, visible(text))
